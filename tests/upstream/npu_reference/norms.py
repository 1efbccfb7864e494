# SPDX-License-Identifier: Apache-2.0
"""RMS norms, alone and with what follows them.

Sources: torch_npu's documentation of ``npu_rms_norm``; ``csrc/attention/rms_norm_dynamic_quant``,
``csrc/moe/add_rms_norm_bias`` and ``csrc/moe/rms_norm_cast``.
"""

from __future__ import annotations

import torch

from tests.upstream.npu_reference.quantization import npu_dynamic_quant


def npu_rms_norm(
    x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``x / rms(x) * gamma`` over the last dimension, and ``1 / rms(x)`` in fp32."""
    wide = x.float()
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (wide * inverse * gamma.float()).to(x.dtype), inverse


def npu_rms_norm_cast(
    x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm, and the same numbers in fp32."""
    y, _ = npu_rms_norm(x, gamma, epsilon)
    return y, y.float()


def npu_add_rms_norm_bias(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor | None = None,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the norm of ``x1 + x2`` (and ``beta`` on top), ``1 / rms``, and the sum."""
    total = x1 + x2
    y, inverse = npu_rms_norm(total, gamma, epsilon)
    return (y if beta is None else y + beta.to(y.dtype)), inverse, total


def npu_rms_norm_dynamic_quant(
    x: torch.Tensor,
    gamma: torch.Tensor,
    smooth_scale: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm as int8 and its scale for each row.

    Raises:
        ValueError: There is a smooth scale or a beta, which DeepSeek-V4 has not.
    """
    if smooth_scale is not None or beta is not None:
        raise ValueError("npu_rms_norm_dynamic_quant: smooth_scale and beta are not written")
    return npu_dynamic_quant(npu_rms_norm(x.float(), gamma, epsilon)[0])
