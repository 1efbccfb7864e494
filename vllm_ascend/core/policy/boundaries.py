# SPDX-License-Identifier: Apache-2.0
"""Computes the boundaries that keep a tail, and the blocks of a tail: arithmetic on ints only.

A prompt singles out, for the cache and the tier alike::

    fallback  shortly before the prompt's end, where the next turn may leave it
    replay    where the same prompt, sent again, goes on; may be marginal
    junction  where a request was seen to leave a cached prefix

Boundaries, alignments (all boundaries are multiples of one) and intervals count tokens, block
ordinals count blocks from a request's start, ranges are half-open.

Example: windows of 128 tokens, blocks of 32, alignment 4096, interval 0, a prompt of 10,000::

    replay boundary   (10,000 - 1) // 4096 * 4096 = 8192
    its tail          tokens [8192 - 127, 8192), blocks [252, 256)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from vllm.utils.math_utils import cdiv

AUTO_RETENTION_INTERVAL_TOKENS = 32_768
# How far before a prompt's end its fallback boundary lies at most, in alignments.
_FALLBACK_ALIGNMENTS = 4


def align_down(num_tokens: int, alignment: int) -> int:
    """Return the largest multiple of ``alignment`` that is <= ``num_tokens``."""
    return num_tokens // alignment * alignment


def contiguous_blocks_for_hit(window: int, block_tokens: int, *, peek_block: bool) -> int:
    """Return how many blocks in a row must be cached for a window to resume at a boundary ``b``::

        read    [b - window + 1, b)    the window includes the token being computed
        peeked  [b, b + block_tokens)  with ``peek_block`` (vLLM's EAGLE rule)

    Source: vLLM 0.23.0 ``SlidingWindowManager._contiguous_blocks_for_hit``.
    """
    # -1: the token to be computed is itself part of the window and is not read from the cache.
    return cdiv(window - 1, block_tokens) + int(peek_block)


def tail_blocks(boundary: int, first_token: int, block_tokens: int) -> range:
    """Return the block ordinals that must be cached to resume at a boundary, a block's end::

    rows read  [first_token, boundary)
    ordinals   [first_token // block_tokens, boundary // block_tokens)
    """
    return range(first_token // block_tokens, boundary // block_tokens)


def replay_boundary(num_prompt_tokens: int, alignment: int, lookahead: int) -> int:
    """Return the deepest boundary ``b`` that a replay of the same prompt can hit::

        hit       [0, b)
        computed  [b, num_prompt_tokens), at least ``lookahead`` tokens

    Args:
        lookahead: Tokens behind the boundary that the replay must still have: one (its
            logits are wanted), or more where a draft layer looks ahead.
    """
    return align_down(max(num_prompt_tokens - lookahead, 0), alignment)


def fallback_boundary(replay: int, alignment: int, lookahead: int) -> int:
    """Return a boundary ``b`` shortly before the replay boundary, 0 if there is none::

        prompt that leaves it  [0, c), c the last multiple of 4 alignments < replay + lookahead
        hit                    [0, b), b + lookahead <= c

    The next turn of a chat often leaves the prompt before it just in front of its end: a template
    ends a prompt differently from how it later repeats it, reasoning is taken out, the last line is
    edited. All of it would be computed anew for a few tokens.

    Args:
        lookahead: Tokens behind a boundary that must be known as well: none, or more where
            a draft layer looks ahead.
    """
    coarse = _FALLBACK_ALIGNMENTS * alignment
    leaves_at = align_down(max(replay + lookahead - 1, 0), coarse)
    return align_down(max(leaves_at - lookahead, 0), alignment)


def is_worth_a_tail(boundary: int, kept: Iterable[int], least_gain_tokens: int) -> bool:
    """Whether hits that end at a boundary are longer by ``least_gain_tokens`` than at those kept.

    With none kept before it, they are worth it: ``kept`` may have a 0, which is none.
    """
    return not any(max(boundary - least_gain_tokens, 0) < other < boundary for other in kept)


def kept_boundaries(
    start: int,
    end: int,
    *,
    alignment: int,
    interval: int | None,
    singled_out: Iterable[int],
) -> list[int]:
    """Return the boundaries in ``(start, end]`` whose tails are kept, ascending.

    Args:
        interval: ``None`` keeps all multiples of ``alignment``, 0 only those singled
            out, N also every multiple of N.
        singled_out: Kept whatever the interval: replay, finish, junctions.
    """
    kept = {boundary for boundary in singled_out if start < boundary <= end}
    spacing = alignment if interval is None else interval
    if spacing:
        kept.update(range(align_down(start, spacing) + spacing, end + 1, spacing))
    return sorted(kept)


class PromptBoundaries(NamedTuple):
    """Where a prompt is left or gone on with, in tokens; a boundary of 0 is none.

    Attributes:
        num_prompt_tokens: The prompt's length.
        junction: Where a request was seen to leave a cached prefix.
        ends: The replay boundary, and the fallback boundary where it is kept as well.
        kept: Those of the ends that are worth a tail, and the junction.
        marginal: The other ends, but for multiples of the interval.
    """

    num_prompt_tokens: int
    junction: int
    ends: frozenset[int]
    kept: frozenset[int]
    marginal: frozenset[int]

    @property
    def singled_out(self) -> frozenset[int]:
        """All of them."""
        return self.ends | {self.junction}


@dataclass(frozen=True)
class BoundaryRules:
    """By what boundaries are singled out.

    Attributes:
        alignment: Tokens between boundaries.
        lookahead: Draft layers need so many tokens behind a boundary, others 0.
        least_gain_tokens: So many tokens' rows take the memory of a tail.
        interval: A tail every so many tokens, a multiple of the alignment; ``None``: at every
            boundary, 0: at those of prompts alone.
        keeps_fallback: A boundary shortly before the replay boundary is kept as well.
    """

    alignment: int
    lookahead: int = 0
    least_gain_tokens: int = 0
    interval: int | None = AUTO_RETENTION_INTERVAL_TOKENS
    keeps_fallback: bool = True

    def of_prompt(self, num_prompt_tokens: int, junction: int) -> PromptBoundaries:
        """Return the boundaries that a prompt of so many tokens singles out."""
        replay = replay_boundary(num_prompt_tokens, self.alignment, max(self.lookahead, 1))
        ends = {replay}
        if self.keeps_fallback:
            ends.add(fallback_boundary(replay, self.alignment, self.lookahead))
        kept = {b for b in ends if is_worth_a_tail(b, ends, self.least_gain_tokens)} | {junction}
        spacing = self.alignment if self.interval is None else self.interval
        marginal = {b for b in ends - kept if not spacing or b % spacing}
        sets = map(frozenset, (ends, kept, marginal))
        return PromptBoundaries(num_prompt_tokens, junction, *sets)

    def kept(self, start: int, end: int, singled_out: Iterable[int]) -> list[int]:
        """Return those singled out, and multiples of the interval, in ``(start, end]``; sorted."""
        return kept_boundaries(
            start, end, alignment=self.alignment, interval=self.interval, singled_out=singled_out
        )

    def finish(self, num_tokens: int) -> int:
        """Return the deepest boundary ``b`` that a request going on behind these tokens can hit::

        computed at the end  [0, num_tokens)
        hit                  [0, b), b + lookahead <= num_tokens
        """
        return align_down(max(num_tokens - self.lookahead, 0), self.alignment)


def resolve_retention_interval(
    retention: int | str | None, alignment: int, *, has_windowed_group: bool
) -> int | None:
    """Turn the configured retention, ``"auto"`` or tokens, into an interval in tokens.

    Raises ``ValueError`` if nothing is there to retain, or the interval does not fit the alignment.
    """
    if retention is None:
        return None
    if not has_windowed_group:
        raise ValueError(
            f"VLLM_PREFIX_CACHE_RETENTION_INTERVAL={retention!r} has no effect on this model: it "
            "has no sliding-window KV cache group (or the hybrid KV cache manager is disabled). "
            "Unset it."
        )
    if retention == "auto":
        # An alignment that does not divide the default gets the next interval that fits.
        return cdiv(AUTO_RETENTION_INTERVAL_TOKENS, alignment) * alignment
    interval = int(retention)
    if interval < 0 or interval % alignment:
        raise ValueError(
            f"VLLM_PREFIX_CACHE_RETENTION_INTERVAL={retention!r} is invalid: allowed are 'auto', "
            f"0 and multiples of {alignment} tokens, the alignment in force"
        )
    return interval
