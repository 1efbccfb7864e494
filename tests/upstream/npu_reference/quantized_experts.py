# SPDX-License-Identifier: Apache-2.0
"""Experts of W8A8 weights: int8 products, SwiGLU of what they are worth, int8 again.

Sources: ``csrc/gmm/grouped_matmul_swiglu_quant/README.md``; torch_npu's documentation of
``npu_dequant_swiglu_quant``, signature and defaults in ``csrc/torch_binding.cpp``.
"""

from __future__ import annotations

import torch

from tests.upstream.npu_reference.experts import npu_grouped_matmul
from tests.upstream.npu_reference.quantization import npu_dynamic_quant

_DYNAMIC, _CLAMPED = 1, 1


def _swiglu(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Return ``silu(first half) * second half``, both limited above, the second below as well."""
    gate, up = x.chunk(2, -1)
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return torch.nn.functional.silu(gate) * up


def grouped_matmul_swiglu_quant_weight_nz(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    x_scale: torch.Tensor,
    group_list: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    swiglu_limit: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Multiply every group of rows by its own matrix, gate, and quantise every row.

    Args:
        x: ``[rows, k]``, int8.
        weight: ``[groups, k, 2 n]``, int8.
        weight_scale: ``[groups, 2 n]``.
        x_scale: ``[rows]``.
        group_list: ``[groups]``: where every group ends.
        bias: None, as is ``offset``.
        offset: See there.
        swiglu_limit: See :func:`_swiglu`; 0: none.

    Returns:
        ``[rows, n]`` int8, ``[rows]`` scales, and no offsets.

    Raises:
        ValueError: There is a bias or an offset.
    """
    if bias is not None or offset is not None:
        raise ValueError("grouped_matmul_swiglu_quant_weight_nz: bias and offset are not written")
    (product,) = npu_grouped_matmul(
        [x],
        [weight],
        scale=[weight_scale],
        per_token_scale=[x_scale],
        group_list=group_list,
        split_item=2,
        group_type=0,
        group_list_type=0,
        output_dtype=torch.float32,
    )
    rows, scales = npu_dynamic_quant(_swiglu(product, swiglu_limit))
    return rows, scales, x.new_empty(0, dtype=torch.float32)


def npu_dequant_swiglu_quant(
    x: torch.Tensor,
    *,
    weight_scale: torch.Tensor | None = None,
    activation_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    quant_scale: torch.Tensor | None = None,
    quant_offset: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    activate_left: bool = True,
    quant_mode: int = 0,
    swiglu_mode: int = 0,
    clamp_limit: float = 0.0,
    glu_alpha: float = 1.0,
    glu_bias: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate what int32 sums of products are worth, and quantise every row.

    Args:
        x: ``[rows, 2 n]``, int32.
        weight_scale: ``[2 n]``.
        activation_scale: ``[rows]``.
        bias: None, as are ``quant_scale``, ``quant_offset`` and ``group_index``.
        quant_scale: See there.
        quant_offset: See there.
        group_index: See there.
        activate_left: True: the first half is the gate.
        quant_mode: 1: a scale for each row.
        swiglu_mode: 1: halves are limited.
        clamp_limit: By what; 0: not at all.
        glu_alpha: 1, and ``glu_bias`` 0: SwiGLU as it is.
        glu_bias: See there.

    Returns:
        ``[rows, n]`` int8, and ``[rows]`` scales.

    Raises:
        ValueError: Something else is asked for.
    """
    others = (bias, quant_scale, quant_offset, group_index)
    modes = (activate_left, quant_mode, swiglu_mode, glu_alpha, glu_bias)
    if any(other is not None for other in others) or modes != (True, _DYNAMIC, _CLAMPED, 1, 0):
        raise ValueError(f"npu_dequant_swiglu_quant: not written for {modes}")
    assert weight_scale is not None and activation_scale is not None
    worth = x.float() * weight_scale.float() * activation_scale.float().view(-1, 1)
    return npu_dynamic_quant(_swiglu(worth, clamp_limit))
