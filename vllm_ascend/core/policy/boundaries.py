# SPDX-License-Identifier: Apache-2.0
"""Computes the boundaries that keep a tail, and the blocks of a tail: arithmetic on ints only.

Boundaries, alignments (all boundaries are multiples of one) and intervals count tokens, block
ordinals count blocks from a request's start, ranges are half-open.

Example: windows of 128 tokens, blocks of 32, alignment 4096, interval 0, a prompt of 10,000::

    replay boundary   (10,000 - 1) // 4096 * 4096 = 8192
    its tail          tokens [8192 - 127, 8192), blocks [252, 256)
"""

from __future__ import annotations

from collections.abc import Iterable

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


def finish_boundary(num_tokens: int, alignment: int, lookahead: int) -> int:
    """Return the deepest boundary ``b`` that a request going on behind these tokens can hit::

    computed at the end  [0, num_tokens)
    hit                  [0, b), b + lookahead <= num_tokens
    """
    return align_down(max(num_tokens - lookahead, 0), alignment)


def is_worth_a_tail(boundary: int, kept: Iterable[int], least_gain: int) -> bool:
    """Whether hits that end at a boundary are ``least_gain`` tokens longer than at those kept.

    With none kept before it, they are worth it: ``kept`` may have a 0, which is none.
    """
    return not any(max(boundary - least_gain, 0) < other < boundary for other in kept)


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
