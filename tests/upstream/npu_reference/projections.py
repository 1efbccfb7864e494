# SPDX-License-Identifier: Apache-2.0
"""Products for each group of heads, and layouts of weights.

Sources: torch_npu's documentation of ``npu_transpose_batchmatmul`` and ``npu_format_cast``;
the shapes of ``_npu_matmul_add_fp32`` are those of its one call, in ``worker/worker.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def npu_transpose_batchmatmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    perm_x1: Sequence[int] = (0, 1, 2),
    perm_x2: Sequence[int] = (0, 1, 2),
    perm_y: Sequence[int] = (1, 0, 2),
    batch_split_factor: int = 1,
) -> torch.Tensor:
    """Return the batched product of permuted operands, permuted.

    Raises:
        ValueError: There is a bias, a scale, or more than one part.
    """
    if bias is not None or scale is not None or batch_split_factor != 1:
        raise ValueError("npu_transpose_batchmatmul: bias, scale and parts are not written")
    product = torch.bmm(x1.permute(*perm_x1), x2.permute(*perm_x2))
    return product.permute(*perm_y).contiguous()


def npu_format_cast(tensor: torch.Tensor, acl_format: int) -> torch.Tensor:
    """Return the tensor: on the CPU there is one layout."""
    return tensor


def _npu_matmul_add_fp32(x: torch.Tensor, weight: torch.Tensor, c: torch.Tensor) -> None:
    """Add ``x.T @ weight`` to ``c``, which is fp32."""
    c.add_(x.float().T @ weight.float())
