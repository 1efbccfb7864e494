# SPDX-License-Identifier: Apache-2.0
"""The ceiling: what a cache would hit that never forgets anything.

The hit of a prompt is its longest common prefix with any prompt before it, at most all but its last
token, cut to the granule. Prefixes are compared block by block (chained digests), and inside the
first block that differs token by token: among the blocks seen behind the same prefix, sorted as
bytes, one of the two neighbours shares the most.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from vllm_ascend.replay.results import Bounds
from vllm_ascend.replay.trace import Workload

_BLOCK_TOKENS = 128
_TOKEN_BYTES = 8


@dataclass(frozen=True)
class Survey:
    """What can be said of a workload without running it.

    Attributes:
        bounds: Hit rates of an unlimited cache.
        digest: SHA-256 prefix over all prompts and output lengths.
    """

    bounds: Bounds
    digest: str


class PrefixIndex:
    """Every prompt seen so far."""

    def __init__(self) -> None:
        # Digest of a prefix of whole blocks -> the blocks (as sortable bytes) seen behind it.
        self._behind: defaultdict[bytes, list[bytes]] = defaultdict(list)

    def common_prefix(self, prompt: np.ndarray) -> int:
        """Return the longest common prefix with any earlier prompt in tokens, and remember this.

        Args:
            prompt: Token ids.
        """
        # Big-endian, so that the order of bytes is the order of tokens.
        data = prompt.astype(">i8").tobytes()
        step = _BLOCK_TOKENS * _TOKEN_BYTES
        prefix = b""
        common = 0
        diverged = False
        for start in range(0, len(data), step):
            block = data[start : start + step]
            if not diverged:
                shared = self._longest(prefix, block)
                common += shared
                diverged = shared < _BLOCK_TOKENS
            self._remember(prefix, block)
            prefix = hashlib.blake2b(prefix + block, digest_size=16).digest()
        return common

    def _longest(self, prefix: bytes, block: bytes) -> int:
        blocks = self._behind.get(prefix, [])
        place = bisect_left(blocks, block)
        return max((_common(block, other) for other in blocks[max(place - 1, 0) : place + 1]),
                   default=0)  # fmt: skip

    def _remember(self, prefix: bytes, block: bytes) -> None:
        blocks = self._behind[prefix]
        place = bisect_left(blocks, block)
        if place == len(blocks) or blocks[place] != block:
            insort(blocks, block)


def _common(one: bytes, other: bytes) -> int:
    """Return how many tokens two blocks share at their start."""
    length = min(len(one), len(other)) // _TOKEN_BYTES
    left = np.frombuffer(one, dtype=">i8", count=length)
    right = np.frombuffer(other, dtype=">i8", count=length)
    different = np.flatnonzero(left != right)
    return int(different[0]) if len(different) else length


def survey(workload: Workload, alignments: Collection[int]) -> Survey:
    """Compute the bounds of a workload for granules 1 and 128 and some alignments, in tokens."""
    index = PrefixIndex()
    digest = hashlib.sha256()
    granules = {1, 128, *alignments}
    hits = dict.fromkeys(granules, 0)
    prompt_tokens = 0
    for request in workload.requests():
        prompt = np.asarray(request.prompt_token_ids, dtype=np.int64)
        digest.update(prompt.tobytes())
        digest.update(f";{request.output_tokens};".encode())
        common = min(index.common_prefix(prompt), len(prompt) - 1)
        prompt_tokens += len(prompt)
        for granule in granules:
            hits[granule] += common // granule * granule
    rates = {granule: 100.0 * hit / prompt_tokens for granule, hit in hits.items()}
    return Survey(
        bounds=Bounds(
            granule_1=rates[1],
            granule_128=rates[128],
            aligned={alignment: rates[alignment] for alignment in sorted(alignments)},
        ),
        digest=digest.hexdigest()[:16],
    )
