# SPDX-License-Identifier: Apache-2.0
"""Which experts a token goes to. Source: ``csrc/moe/moe_gating_top_k_hash``."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_SQRT_SOFTPLUS = 2


@dataclass
class Choices:
    """How close the choices of experts have been.

    Attributes:
        margin: The least difference between the last expert chosen and the next one; sums in
            another order can turn a choice that is closer than rounding.
    """

    margin: float = math.inf


choices = Choices()


def moe_gating_top_k_hash(
    x: torch.Tensor,
    k: int,
    bias: torch.Tensor | None = None,
    input_ids: torch.Tensor | None = None,
    tid2eid: torch.Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    bias_vl: torch.Tensor | None = None,
    image_sentinel_lo: int = 0,
    image_sentinel_count: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return weights and experts of every token, and all scores.

    The weights sum up to the scaling factor, whatever ``renorm`` says: the kernel divides by their
    sum for this kind of score.

    Args:
        x: ``[tokens, experts]``, logits.
        k: Experts for a token.
        bias: ``[experts]``, added for choosing only.
        input_ids: ``[tokens]``; with ``tid2eid`` the token alone says which experts.
        tid2eid: ``[vocabulary, k]``.
        k_group: One, as is ``group_count``: no groups.
        group_count: See there.
        routed_scaling_factor: What the weights sum up to.
        eps: Added to the sum.
        group_select_mode: Of no effect with one group.
        renorm: Nothing but 0, as the kernel's host side demands.
        norm_type: 2: ``sqrt(softplus(logit))``.
        out_flag: Whether all scores are asked for.
        bias_vl: None: there are no images, of which the two below tell.
        image_sentinel_lo: See there.
        image_sentinel_count: See there.

    Raises:
        ValueError: What DeepSeek-V4 does not ask for is asked for.
    """
    modes = (k_group, group_count, renorm, norm_type)
    if modes != (1, 1, 0, _SQRT_SOFTPLUS) or bias_vl is not None:
        raise ValueError("moe_gating_top_k_hash: only one group and norm_type 2 are written")
    scores = torch.nn.functional.softplus(x.float()).sqrt()
    if tid2eid is not None:
        assert input_ids is not None
        experts = tid2eid[input_ids.long()].long()
    else:
        chosen = scores if bias is None else scores + bias.float()
        ordered, experts = chosen.sort(dim=-1, descending=True, stable=True)
        experts = experts[:, :k]
        if len(ordered) and k < ordered.shape[1]:
            margin = float((ordered[:, k - 1] - ordered[:, k]).min())
            choices.margin = min(choices.margin, margin)
    weights = scores.gather(1, experts)
    weights = weights / (weights.sum(-1, keepdim=True) + eps) * routed_scaling_factor
    return weights.to(x.dtype), experts.int(), scores if out_flag else scores.new_empty(0)
