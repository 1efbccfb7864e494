# SPDX-License-Identifier: Apache-2.0
"""What textbook policies would hit with a given memory: no scheduler, one prompt after another.

A prompt is a sequence of prefix blocks: block k stands for all tokens up to its end, so a block
counts as a hit only if all before it in the prompt are there. The last one may be partial. Prompts
come in order of arrival, each is over before the next, and nothing but prefix blocks takes memory.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile

import numpy as np

_NEVER = 1 << 60


@dataclass(frozen=True)
class PrefixTrace:
    """Prompts as prefix blocks.

    Attributes:
        block_tokens: Tokens per block.
        prompts: The blocks of every prompt; equal numbers stand for equal prefixes.
        prompt_tokens: Tokens of every prompt.
    """

    block_tokens: int
    prompts: tuple[tuple[int, ...], ...]
    prompt_tokens: tuple[int, ...]

    @classmethod
    def of(cls, prompts: Iterable[Sequence[int]], block_tokens: int) -> PrefixTrace:
        """Cut prompts of token ids into prefix blocks of ``block_tokens`` tokens."""
        numbers: dict[bytes, int] = {}
        cut, lengths = [], []
        for prompt in prompts:
            cut.append(tuple(_number_blocks(prompt, block_tokens, numbers)))
            lengths.append(len(prompt))
        return cls(block_tokens, tuple(cut), tuple(lengths))

    def rate(self, num_hit_blocks: Sequence[int]) -> float:
        """Return hit tokens in percent of prompt tokens.

        Args:
            num_hit_blocks: Of every prompt the blocks at its start that were hits.
        """
        hit_tokens = sum(
            # -1: the last prompt token is computed for its logits.
            min(num_blocks * self.block_tokens, num_tokens - 1)
            for num_blocks, num_tokens in zip(num_hit_blocks, self.prompt_tokens, strict=True)
        )
        total = sum(self.prompt_tokens)
        return 100.0 * hit_tokens / total if total else 0.0


def _number_blocks(
    prompt: Sequence[int], block_tokens: int, numbers: dict[bytes, int]
) -> Iterable[int]:
    tokens = np.asarray(prompt, dtype=np.int64)
    digest = b""
    for start in range(0, len(tokens), block_tokens):
        block = tokens[start : start + block_tokens].tobytes()
        digest = blake2b(digest + block, digest_size=16).digest()
        yield numbers.setdefault(digest, len(numbers))


def lru(trace: PrefixTrace, capacity_blocks: int) -> list[int]:
    """Keep what was used last; of one prompt the blocks at its start, as vLLM frees them.

    Args:
        trace: The prompts.
        capacity_blocks: Blocks that stay between two prompts.

    Returns:
        Of every prompt the blocks at its start that were there.
    """
    all_of_them = ([True] * len(blocks) for blocks in trace.prompts)
    return _least_recently_used(trace, capacity_blocks, all_of_them)


def knows_whether(trace: PrefixTrace, capacity_blocks: int) -> list[int]:
    """Know which blocks come again, not when: the others go first, then as in :func:`lru`.

    Args:
        trace: The prompts.
        capacity_blocks: Blocks that stay between two prompts.

    Returns:
        Of every prompt the blocks at its start that were there.
    """
    again = ([use < _NEVER for use in uses] for uses in _next_uses(trace))
    return _least_recently_used(trace, capacity_blocks, again)


def _least_recently_used(
    trace: PrefixTrace, capacity_blocks: int, wanted: Iterable[Sequence[bool]]
) -> list[int]:
    """Give up blocks that are not wanted first, for every prompt one flag a block."""
    waiting: OrderedDict[int, None] = OrderedDict()
    useless: OrderedDict[int, None] = OrderedDict()
    hits = []
    for blocks, flags in zip(trace.prompts, wanted, strict=True):
        hits.append(sum(1 for _ in takewhile(waiting.__contains__, blocks)))
        for block, is_wanted in zip(reversed(blocks), reversed(flags), strict=True):
            waiting.pop(block, None)
            (waiting if is_wanted else useless)[block] = None
        while len(waiting) + len(useless) > capacity_blocks:
            (useless or waiting).popitem(last=False)
    return hits


def belady(trace: PrefixTrace, capacity_blocks: int) -> list[int]:
    """Know the future: give up the block whose next use is furthest away, of equals the deepest.

    A block is used no later than those behind it, so a prefix is always given up from its end.

    Args:
        trace: The prompts.
        capacity_blocks: Blocks that stay between two prompts.

    Returns:
        Of every prompt the blocks at its start that were there.
    """
    next_uses = _next_uses(trace)
    # Block -> number of the prompt that uses it next.
    cached: dict[int, int] = {}
    # (-next use, -depth, block), the first to give up in front; outdated entries are skipped.
    heap: list[tuple[int, int, int]] = []
    hits = []
    for blocks, uses in zip(trace.prompts, next_uses, strict=True):
        hits.append(sum(1 for _ in takewhile(cached.__contains__, blocks)))
        for depth, (block, use) in enumerate(zip(blocks, uses, strict=True)):
            cached[block] = use
            heapq.heappush(heap, (-use, -depth, block))
        while len(cached) > capacity_blocks:
            negative_use, _, block = heapq.heappop(heap)
            if cached.get(block) == -negative_use:
                del cached[block]
    return hits


def _next_uses(trace: PrefixTrace) -> list[list[int]]:
    """Return for every block of every prompt the number of the prompt that uses it next."""
    coming: dict[int, int] = {}
    uses: list[list[int]] = []
    for number in reversed(range(len(trace.prompts))):
        blocks = trace.prompts[number]
        uses.append([coming.get(block, _NEVER) for block in blocks])
        coming.update(dict.fromkeys(blocks, number))
    return uses[::-1]
