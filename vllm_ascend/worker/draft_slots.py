# SPDX-License-Identifier: Apache-2.0
"""The slots of draft tokens, one per request and draft step."""

from __future__ import annotations

import torch

_PADDING = -1


def write_draft_slots(
    slot_mapping: torch.Tensor,
    block_table: torch.Tensor,
    positions: torch.Tensor,
    *,
    block_size: int,
) -> None:
    """Overwrite the slots that are not padding by those of the requests' own blocks.

    On the device and in place: graphs and metadata hold these tensors, and nothing waits.

    Args:
        slot_mapping: ``[slots]``; the first of them are the requests', negative where a request
            writes nothing (its length is exhausted), and so is the padding behind them.
        block_table: ``[requests or more, blocks]``, block ids.
        positions: ``[requests or more]``, the place of every request's draft token; within its
            row of the table, or its slot is padding.
        block_size: Rows of a block of the table.
    """
    num_slots = min(len(slot_mapping), len(block_table), len(positions))
    places = positions[:num_slots].long()
    columns = (places // block_size).clamp_(max=block_table.shape[1] - 1)
    blocks = block_table[:num_slots].gather(1, columns.view(-1, 1)).view(-1).long()
    slots = (blocks * block_size + places % block_size).to(slot_mapping.dtype)
    old = slot_mapping[:num_slots]
    old.copy_(torch.where(old == _PADDING, old, slots))
