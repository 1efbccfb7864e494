# SPDX-License-Identifier: Apache-2.0
"""Int8 for each row, and products of it.

Sources: torch_npu's documentation of ``npu_dynamic_quant`` and ``npu_quant_matmul``.
"""

from __future__ import annotations

import torch

_LARGEST = 127


def npu_dynamic_quant(
    x: torch.Tensor, *, dst_type: torch.dtype = torch.int8
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``x`` as int8, and what one is worth in every row: fp32, without the last dimension.

    A row of zeros stays zero, with scale 0.

    Raises:
        ValueError: Another type than int8 is asked for.
    """
    if dst_type != torch.int8:
        raise ValueError(f"npu_dynamic_quant: dst_type {dst_type}")
    wide = x.float()
    scale = wide.abs().amax(-1) / _LARGEST
    steps = wide / scale.clamp(min=torch.finfo(torch.float32).tiny)[..., None]
    return steps.round().to(torch.int8), scale


def npu_quant_matmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    *,
    pertoken_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    output_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """Return the product of int8 matrices, scaled by column and by row.

    Args:
        x1: ``[m, k]``, int8.
        x2: ``[k, n]``, int8.
        scale: ``[n]``.
        pertoken_scale: ``[m]``.
        bias: ``[n]``, int32 (before scaling) or in floating point (after it).
        output_dtype: Of the result; int32: the product itself, which nothing scales.
    """
    exact = x1.double() @ x2.double()
    if output_dtype == torch.int32 and pertoken_scale is None and bias is None:
        return exact.to(torch.int32)
    product = exact.float()
    if bias is not None and not bias.is_floating_point():
        product = product + bias
    product = product * scale.float()
    if pertoken_scale is not None:
        product = product * pertoken_scale.float().view(-1, 1)
    if bias is not None and bias.is_floating_point():
        product = product + bias.float()
    return product.to(output_dtype)
