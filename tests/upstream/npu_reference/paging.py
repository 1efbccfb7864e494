# SPDX-License-Identifier: Apache-2.0
"""Rows of a request in a paged cache."""

from __future__ import annotations

import torch


def places(
    block_table: torch.Tensor, first: int, end: int, rows_per_block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return block and row of a request's rows ``[first, end)``.

    Args:
        block_table: ``[blocks of the request]``, its row of the table.
        first: The first row of the request.
        end: Behind the last one.
        rows_per_block: In the cache.

    Raises:
        IndexError: The table is too short: the kernel would read what lies behind it.
    """
    rows = torch.arange(first, end)
    ordinals = rows // rows_per_block
    if end > first and int(ordinals[-1]) >= len(block_table):
        raise IndexError(f"row {end - 1} lies behind the {len(block_table)} blocks of the table")
    return block_table.long()[ordinals], rows % rows_per_block
