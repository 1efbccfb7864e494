# SPDX-License-Identifier: Apache-2.0
"""Short rows of compressor-state tables: what a kernel finds there is what a whole row holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.kv_cache_interface import KVCacheGroupSpec

from tests.ut.worker.flash import block_tables, flash_groups
from vllm_ascend.worker import state_window
from vllm_ascend.worker.block_table import MultiGroupBlockTable
from vllm_ascend.worker.state_window import current_state_window, set_current_state_window

MIB = 1 << 20
CHUNK = 512


@pytest.fixture
def over_checkout(monkeypatch):
    """Only vllm-ascend's metadata can count from where a short row begins."""
    monkeypatch.setattr(state_window, "is_over_checkout", lambda: True)
    monkeypatch.setenv("VLLM_ASCEND_APPLY_DSV4_PATCH", "1")
    yield
    set_current_state_window(None)


def tables(rows: int, max_model_len: int, max_num_batched_tokens: int = CHUNK, num_reqs: int = 3):
    return block_tables(
        flash_groups(rows),
        max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_reqs=num_reqs,
    )


def row_mib(batch: MultiGroupBlockTable) -> float:
    return sum(table.block_table.gpu.nbytes for table in batch.block_tables) / MIB


@pytest.mark.parametrize("rows", (128, 64, 32))
def test_a_million_tokens_have_a_row_of_a_fraction_of_a_mebibyte(over_checkout, rows):
    batch = tables(rows, 1 << 20, max_num_batched_tokens=10_240, num_reqs=1)
    assert row_mib(batch) <= 0.8


def test_beside_vllm_rows_begin_at_the_first_token():
    batch = tables(32, 1 << 20, num_reqs=1)
    assert batch.state_window is None and current_state_window() is None
    assert row_mib(batch) > 2


class Reference:
    """Whole rows: request -> the blocks of every group."""

    def __init__(self, groups: list[KVCacheGroupSpec]) -> None:
        self.block_tokens = [
            group.kv_cache_spec.block_size
            * max(
                getattr(
                    next(iter(group.kv_cache_spec.kv_cache_specs.values())), "compress_ratio", 1
                ),
                1,
            )
            for group in groups
        ]
        self.rows: dict[int, list[list[int]]] = {}
        self.next_id = 1

    def grow(self, row: int, end_token: int) -> tuple[list[int], ...]:
        """Return the new blocks of every group for a request that reaches ``end_token``."""
        held = self.rows.setdefault(row, [[] for _ in self.block_tokens])
        new = []
        for blocks, tokens in zip(held, self.block_tokens, strict=True):
            count = max(-(-end_token // tokens) - len(blocks), 0)
            added = list(range(self.next_id, self.next_id + count))
            self.next_id += count
            blocks += added
            new.append(added)
        return tuple(new)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(0, 2), st.integers(1, CHUNK)),
        st.tuples(st.just("resume"), st.integers(0, 2), st.integers(1, 30_000)),
        st.tuples(st.just("swap"), st.integers(0, 2), st.integers(0, 2)),
        st.tuples(st.just("clear"), st.integers(0, 2), st.just(0)),
    ),
    min_size=1,
    max_size=25,
)


@given(steps=STEPS, rows=st.sampled_from((128, 32)))
@settings(max_examples=60, deadline=None)
def test_what_a_step_reads_and_writes_is_found_where_the_kernel_looks(steps, rows):
    """From a window before its first token to its last one, with positions shifted alike."""
    patch = pytest.MonkeyPatch()
    patch.setattr(state_window, "is_over_checkout", lambda: True)
    patch.setenv("VLLM_ASCEND_APPLY_DSV4_PATCH", "1")
    try:
        check(steps, rows)
    finally:
        patch.undo()
        set_current_state_window(None)


def check(steps, rows: int) -> None:
    batch = tables(rows, 1 << 17)
    reference, computed = Reference(flash_groups(rows)), [0, 0, 0]
    window = batch.state_window
    assert window is not None
    for name, row, argument in steps:
        if name == "clear":
            batch.clear_row(row)
            reference.rows.pop(row, None)
            computed[row] = 0
            continue
        if name == "swap":
            batch.swap_row(row, argument)
            held = {i: reference.rows.get(i) for i in (row, argument)}
            for target, source in ((row, argument), (argument, row)):
                reference.rows.pop(target, None)
                if held[source] is not None:
                    reference.rows[target] = held[source]
            computed[row], computed[argument] = computed[argument], computed[row]
            continue
        start = computed[row]
        if name == "resume":  # a hit of that many tokens, then a chunk
            reference.rows.pop(row, None)
            start, length = argument, CHUNK
            batch.add_row(reference.grow(row, start + length), row)
        else:
            length = argument
            batch.append_row(reference.grow(row, start + length), row)
        computed[row] = start + length
        batch.commit_block_table(3)
        shifted = torch.tensor([start], dtype=torch.int32)
        window.shift(shifted, row)
        first = start - int(shifted)
        assert first % 128 == 0 and (first == 0 or int(shifted) >= 256)
        for group, table in enumerate(batch.block_tables):
            if table.shifted is None:
                continue
            size = table.block_size
            for token in {max(start - 128, 0), max(start - 8, 0), start, start + length - 1}:
                block = reference.rows[row][group][token // size]
                assert int(table.get_device_tensor()[row, (token - first) // size]) == block
            positions = np.array([start, start + length - 1])
            table.compute_slot_mapping_draft(np.full(2, row), positions)
            assert table.slot_mapping.np[:2].tolist() == [
                reference.rows[row][group][p // size] * size + p % size for p in positions
            ]
