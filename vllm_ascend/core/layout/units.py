# SPDX-License-Identifier: Apache-2.0
"""What numbers count. A plain ``int`` counts tokens, or says how many of something there are.

Everything else has a type of its own, so that none is taken for another, or for tokens.
"""

from __future__ import annotations

from typing import NewType

GroupId = NewType("GroupId", int)
"""The place of a KV cache group in the model's configuration."""

BlockId = NewType("BlockId", int)
"""The place of a block in the pool."""

Ordinal = NewType("Ordinal", int)
"""The place of a block in its request, from 0."""

Granule = NewType("Granule", int)
"""The place of a granule in its request, from 0: that of its hash among the request's hashes."""
