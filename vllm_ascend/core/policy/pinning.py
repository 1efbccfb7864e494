# SPDX-License-Identifier: Apache-2.0
"""Decides whether the window that a request leaves is pinned: arithmetic on ints only.

Source of the idea: vllm-project/vllm#40676.

Example: windows of 1,024 tokens, blocks of 16, chunks of 8,192. Going on from token 8,192 to
16,384 drops blocks [448, 960), 512 at once: the window before 8,192 is pinned. Decoding drops one
block every 16 steps: nothing is.
"""

from __future__ import annotations

from collections.abc import Iterable


def dropped_blocks(
    start_tokens: int, end_tokens: int, *, window_tokens: int, block_tokens: int
) -> range:
    """Return the ordinals of the blocks that a window drops as more tokens are computed.

    A window includes the token being computed.
    """

    def first_held(num_tokens: int) -> int:
        # +1: the next token is part of its own window.
        return max(num_tokens - window_tokens + 1, 0) // block_tokens

    return range(first_held(start_tokens), first_held(end_tokens))


def leaves_by_chunk(
    start_tokens: int, end_tokens: int, windows: Iterable[tuple[int, int]], *, min_drop_blocks: int
) -> bool:
    """Whether a move is that of a prefill chunk, so that the window just left is pinned.

    A request resumes only where every group has its window, so all of them have to agree, given as
    pairs of window and block size in tokens, and drop ``min_drop_blocks`` at once. A move that
    drops nothing leaves no window, so 0 means 1.
    """
    least = max(min_drop_blocks, 1)
    return all(
        len(dropped_blocks(start_tokens, end_tokens, window_tokens=window, block_tokens=tokens))
        >= least
        for window, tokens in windows
    )


def check_pinning(*, pin_swa_tokens: bool, has_windowed_group: bool) -> None:
    """Raise ``ValueError`` if the model has no window to pin, but that is asked for."""
    if pin_swa_tokens and not has_windowed_group:
        raise ValueError(
            "VLLM_PIN_SWA_TOKENS='1' has no effect on this model: it has no sliding-window KV "
            "cache group (or the hybrid KV cache manager is disabled). Unset it."
        )
