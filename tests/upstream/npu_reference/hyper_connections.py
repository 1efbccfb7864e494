# SPDX-License-Identifier: Apache-2.0
"""Hyper-connections: several residual streams in, one out, and back.

Sources: ``csrc/torch_binding.cpp`` (``run_hc_pre_composite``), ``csrc/moe/hc_pre_sinkhorn``,
``csrc/moe/hc_post``; the DeepSeek-V4 paper, section 2.2.
"""

from __future__ import annotations

import torch


def npu_hc_pre(
    x: torch.Tensor,
    hc_fn: torch.Tensor,
    hc_scale: torch.Tensor,
    hc_base: torch.Tensor,
    hc_mult: int,
    hc_sinkhorn_iters: int,
    norm_eps: float,
    hc_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the layer's input and the weights with which its output goes back.

    Args:
        x: ``[tokens, streams, hidden]``.
        hc_fn: ``[(2 + streams) * streams, streams * hidden]``, fp32.
        hc_scale: ``[3]``, of the weights in, the weights back and the mixing.
        hc_base: ``[(2 + streams) * streams]``.
        hc_mult: Streams.
        hc_sinkhorn_iters: Of making the mixing doubly stochastic; columns first.
        norm_eps: Of the root mean square.
        hc_eps: Added wherever something is divided.

    Returns:
        ``[tokens, hidden]`` in ``x``'s type (the kernel rounds it to bf16 whatever that is),
        ``[tokens, streams]`` and ``[tokens, streams, streams]`` in fp32.
    """
    flat = x.flatten(1).float()
    inverse = torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    mixes = torch.nn.functional.linear(flat, hc_fn) * inverse
    into, back, mixing = mixes.split([hc_mult, hc_mult, hc_mult * hc_mult], dim=-1)
    base_into, base_back, base_mixing = hc_base.split([hc_mult, hc_mult, hc_mult * hc_mult])
    into = torch.sigmoid(into * hc_scale[0] + base_into) + hc_eps
    back = 2 * torch.sigmoid(back * hc_scale[1] + base_back)
    mixing = (mixing * hc_scale[2] + base_mixing).view(-1, hc_mult, hc_mult)
    mixing = mixing.softmax(-1) + hc_eps
    mixing = mixing / (mixing.sum(-2, keepdim=True) + hc_eps)
    for _ in range(hc_sinkhorn_iters - 1):
        mixing = mixing / (mixing.sum(-1, keepdim=True) + hc_eps)
        mixing = mixing / (mixing.sum(-2, keepdim=True) + hc_eps)
    return (into[..., None] * x.float()).sum(1).to(x.dtype), back, mixing


def npu_hc_post(
    x: torch.Tensor, residual: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
) -> torch.Tensor:
    """Return the streams after a layer: its output, weighted, and the old streams, mixed.

    Args:
        x: ``[batch, tokens, hidden]``.
        residual: ``[batch, tokens, streams, hidden]``.
        post: ``[batch, tokens, streams]``.
        comb: ``[batch, tokens, from stream, to stream]``.

    Returns:
        ``[batch, tokens, streams, hidden]`` in ``x``'s type.
    """
    mixed = torch.einsum("btij,btid->btjd", comb.float(), residual.float())
    return (post.float()[..., None] * x.float()[..., None, :] + mixed).to(x.dtype)
