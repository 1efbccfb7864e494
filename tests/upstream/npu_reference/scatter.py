# SPDX-License-Identifier: Apache-2.0
"""Writing rows of a paged cache. Source: ``csrc/moe/scatter_nd_update_v2``."""

from __future__ import annotations

import torch

from tests.upstream.npu_reference import tags


def npu_scatter_nd_update_v2(
    var: torch.Tensor, indices: torch.Tensor, update: torch.Tensor
) -> None:
    """Write rows into the places that indices name; the last of several for a place stays.

    Args:
        var: ``[blocks, rows, heads, width]``, with any stride between blocks (pages are padded).
        indices: ``[num_rows, 2]``, int32 or int64: block and row. The kernel multiplies both by
            their strides; where the sum lies outside ``var`` nothing is written, which is how
            slots of -1 are left out.
        update: ``[at least num_rows, heads, width]``, of ``var``'s type; only as many rows as there
            are indices are written.

    Raises:
        ValueError: The types differ, or rows are missing.
    """
    if var.dtype != update.dtype:
        raise ValueError(f"npu_scatter_nd_update_v2: {update.dtype} into {var.dtype}")
    if len(update) < len(indices):
        raise ValueError(f"npu_scatter_nd_update_v2: {len(update)} rows for {len(indices)} indices")
    blocks, rows = indices.long().unbind(-1)
    linear = blocks * var.stride(0) + rows * var.stride(1)
    inside = (linear >= 0) & (blocks < len(var))
    sources = inside.nonzero().flatten()
    blocks, rows = blocks[sources], rows[sources]
    # One at a time where a place is named twice: index_put_ gives no order.
    places = blocks * var.shape[1] + rows
    if len(places.unique()) < len(places):
        last = {place: index for index, place in enumerate(places.tolist())}
        kept = torch.tensor(sorted(last.values()))
        sources, blocks, rows = sources[kept], blocks[kept], rows[kept]
    var[blocks, rows] = update.view(len(update), *var.shape[2:])[sources]
    tags.wrote(var, blocks, rows, sources)
