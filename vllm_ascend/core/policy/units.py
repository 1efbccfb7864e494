# SPDX-License-Identifier: Apache-2.0
"""Types that say what a number counts. A plain ``int`` is a number of tokens, or of things.

Everything else has a type of its own, so that none is taken for another, or for tokens.
"""

from __future__ import annotations

from typing import NamedTuple, NewType

GroupId = NewType("GroupId", int)
"""The place of a KV cache group in the model's configuration."""

BlockId = NewType("BlockId", int)
"""The place of a block in the pool."""

Ordinal = NewType("Ordinal", int)
"""The place of a block in its request, from 0."""

Granule = NewType("Granule", int)
"""The place of a granule in its request, from 0: that of its hash among the request's hashes."""


class KVCacheBlockCopy(NamedTuple):
    """Copy page ``src_block_id`` to page ``dst_block_id`` in every raw KV cache tensor."""

    src_block_id: BlockId
    dst_block_id: BlockId
