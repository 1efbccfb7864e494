# SPDX-License-Identifier: Apache-2.0
"""``vllm_ascend/worker/block_table.py``: rows that moved are emptied."""

from __future__ import annotations

from collections.abc import Callable

from vllm_ascend.patch.features import CHECKOUT_CACHE
from vllm_ascend.patch.table import Patch, changes


@changes("vllm_ascend.worker.block_table:BlockTable.move_row", CHECKOUT_CACHE)
def wrap_move_row(self, src: int, tgt: int, *, original: Callable) -> None:
    """A moved row keeps its blocks, so drafts overwrite other requests' rows."""
    original(self, src, tgt)
    if src != tgt:
        self.clear_row(src)


PATCHES: tuple[Patch, ...] = (wrap_move_row,)
