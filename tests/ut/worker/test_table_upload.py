# SPDX-License-Identifier: Apache-2.0
"""What has changed in a table is on the device behind one copy, whatever it is."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.v1.utils import CpuGpuBuffer

from vllm_ascend.worker import table_upload
from vllm_ascend.worker.block_table import BlockTable
from vllm_ascend.worker.table_upload import TableUpload

CPU = torch.device("cpu")
NUM_REQS = 256


class Copies(TorchDispatchMode):
    """Counts copies into tensors that exist: on an NPU, uploads."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.copy_.default
        return func(*args, **(kwargs or {}))


def decoding_table(block_size: int) -> BlockTable:
    """Return the table of a state group in which every request has a prompt of 1,000 tokens."""
    table = BlockTable(block_size, NUM_REQS, 1 << 12, NUM_REQS, False, CPU)
    for row in range(NUM_REQS):
        table.add_row(list(range(1, 1000 // block_size + 1)), row)
    table.commit_block_table(NUM_REQS)
    return table


@pytest.mark.parametrize(
    ("block_size", "num_rows_that_grow"),
    [(8, 32), (2, 128)],
    ids=["C4 state at block 128", "C4 state at block 32"],
)
def test_a_decode_step_is_one_copy(block_size: int, num_rows_that_grow: int) -> None:
    """Of 256 requests one in ``block_size`` gets a block in a step."""
    table = decoding_table(block_size)
    with Copies() as copies:
        for row in range(0, NUM_REQS, block_size):
            table.append_row([7000 + row], row)
        table.commit_block_table(NUM_REQS)
        assert copies.count == 1
        table.commit_block_table(NUM_REQS)
        assert copies.count == 1, "nothing has changed"
    assert (table.get_device_tensor() == table.get_cpu_tensor()).all()
    assert (table.get_numpy_array() >= 7000).sum() == num_rows_that_grow


def test_a_step_that_changes_more_than_is_staged_is_one_copy() -> None:
    table = decoding_table(8)
    with Copies() as copies:
        for row in range(NUM_REQS):
            table.append_row(list(range(row, row + 100)), row)
        table.commit_block_table(NUM_REQS)
    assert copies.count == 1
    assert (table.get_device_tensor() == table.get_cpu_tensor()).all()


def test_a_copy_under_way_is_not_overwritten_by_the_next_step() -> None:
    table = CpuGpuBuffer(4, 10, dtype=torch.int32, device=CPU, pin_memory=False)
    upload = TableUpload(table, pin_memory=False)
    sources = []
    with mock.patch.object(
        CpuGpuBuffer, "copy_to_gpu", lambda buffer, n: sources.append(buffer) or buffer.gpu[:n]
    ):
        for row in range(3):
            upload.upload([(row, 0, 1)], 4)
    first, second, third = sources
    assert first is not second and third is first


SPANS = st.dictionaries(
    st.integers(0, 5), st.tuples(st.integers(0, 9), st.integers(1, 10)), min_size=1
)


@given(steps=st.lists(SPANS, max_size=6), capacity=st.sampled_from((0, 7, 60)))
@settings(max_examples=100, deadline=None)
def test_what_has_changed_arrives_and_nothing_else_does(steps, capacity: int) -> None:
    with mock.patch.object(table_upload, "_MAX_ENTRIES", capacity):
        table = CpuGpuBuffer(8, 10, dtype=torch.int32, device=CPU, pin_memory=False)
        upload = TableUpload(table, pin_memory=False)
    for number, step in enumerate(steps):
        spans = [(row, start, min(start + size, 10)) for row, (start, size) in step.items()]
        for row, start, end in spans:
            table.np[row, start:end] = 100 * number + np.arange(start, end)
        table.gpu[6:].fill_(-1)  # what runners write behind the batch
        upload.upload(spans, 6)
        assert torch.equal(table.gpu[:6], table.cpu[:6])
        assert (table.gpu[6:] == -1).all()
