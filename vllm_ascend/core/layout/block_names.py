# SPDX-License-Identifier: Apache-2.0
"""Names cached blocks: one hash per granule names blocks of every size.

A request's hashes chain, so the hash at the end of a granule names the whole prefix up to there. A
block that ends with a granule is named by that granule's hash, however many granules it covers; a
finer block by the hash of the granule it lies in and its place there. The hash of a granule covers
all of its tokens, so such a block can only be named once its granule is complete.

Example, one hash per 128 tokens::

    tokens [0, 16384)    block_hashes[127]
    tokens [128, 160)    block_hashes[1] + place 1
    tokens [224, 256)    block_hashes[1]
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm.v1.core.kv_cache_utils import BlockHash

_PLACE_BYTES = 2


class BlockNames:
    """The names of one request's blocks of one size, by ordinal."""

    __slots__ = ("_block_hashes", "_block_tokens", "_hash_tokens")

    def __init__(self, block_hashes: list[BlockHash], hash_tokens: int, block_tokens: int) -> None:
        """Compute nothing yet; hashes added later count. One of the two sizes divides the other."""
        self._block_hashes = block_hashes
        self._hash_tokens = hash_tokens
        self._block_tokens = block_tokens

    def __len__(self) -> int:
        return len(self._block_hashes) * self._hash_tokens // self._block_tokens

    def __getitem__(self, ordinal: int) -> BlockHash:
        index, inside = divmod((ordinal + 1) * self._block_tokens, self._hash_tokens)
        if not inside:
            return self._block_hashes[index - 1]
        place = inside // self._block_tokens
        return BlockHash(self._block_hashes[index] + place.to_bytes(_PLACE_BYTES, "big"))

    def first(self, count: int) -> Sequence[BlockHash]:
        """Return the first ``count`` names, or as many as there are; fast for coarse blocks."""
        count = min(count, len(self))
        per_block = self._block_tokens // self._hash_tokens
        if per_block:
            return self._block_hashes[per_block - 1 : count * per_block : per_block]
        return [self[ordinal] for ordinal in range(count)]
