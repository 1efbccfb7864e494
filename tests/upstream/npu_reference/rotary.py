# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings.

Sources: torch_npu's documentation of ``npu_rotary_mul``;
``csrc/attention/inplace_partial_rotary_mul`` and its signature in ``csrc/torch_binding.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def npu_rotary_mul(
    x: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half"
) -> torch.Tensor:
    """Return ``x`` turned: ``x * r1 + rotate(x) * r2``.

    Args:
        x: ``[tokens, heads, 1, width]`` or anything that the others spread over.
        r1: Cosines, ``[tokens, 1, 1, width]``, one for each element (pairs have equal ones).
        r2: Sines, likewise.
        rotary_mode: ``interleave``: neighbours are a pair.
    """
    assert rotary_mode == "interleave", f"npu_rotary_mul: rotary_mode {rotary_mode}"
    wide = torch.promote_types(x.dtype, r1.dtype)
    even, odd = x.to(wide).unflatten(-1, (-1, 2)).unbind(-1)
    rotated = torch.stack([-odd, even], dim=-1).flatten(-2)
    return (x.to(wide) * r1 + rotated * r2).to(x.dtype)


def inplace_partial_rotary_mul(
    x: torch.Tensor,
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str,
    partial_slice: Sequence[int],
    negate_sin: bool = False,
) -> None:
    """Turn a slice of the last dimension of ``x`` in place.

    Args:
        x: ``[tokens, 1, heads, width]``; the rest of the width stays as it is.
        r1: Cosines, ``[tokens, 1, 1, slice]``.
        r2: Sines, likewise.
        rotary_mode: See :func:`npu_rotary_mul`.
        partial_slice: Where the slice begins and ends.
        negate_sin: Turn backwards.
    """
    first, end = partial_slice
    part = x[..., first:end]
    part.copy_(npu_rotary_mul(part, r1, -r2 if negate_sin else r2, rotary_mode))
