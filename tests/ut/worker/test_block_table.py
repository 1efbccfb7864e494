# SPDX-License-Identifier: Apache-2.0
"""Slots of compressed rows, against a plain count over tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.platforms import current_platform
from vllm.utils import cpu_triton_utils
from vllm.v1.kv_cache_interface import KVCacheGroupSpec, UniformTypeKVCacheSpecs
from vllm.v1.worker import block_table as vllm_block_table

from tests.ut.worker.flash import block_tables
from vllm_ascend.core.layout.dsv4_specs import ascend_specs
from vllm_ascend.worker.block_table import BlockTable, MultiGroupBlockTable

PAD = -1


@pytest.fixture(autouse=True, scope="module")
def slot_kernel_for_the_cpu():
    """What vLLM's CPU runner puts in the place of the Triton kernel, its library loaded."""
    current_platform.import_kernels()
    patch = pytest.MonkeyPatch()
    patch.setattr(
        vllm_block_table,
        "_compute_slot_mapping_kernel",
        cpu_triton_utils.compute_slot_mapping_kernel,
    )
    yield
    patch.undo()


def group(ratio: int, rows: int = 32) -> KVCacheGroupSpec:
    """A group as the engine makes it: specs of its layers, packed."""
    specs = ascend_specs(rows)
    spec = specs.window if ratio == 1 else specs.mla[ratio]
    return KVCacheGroupSpec(["layer"], UniformTypeKVCacheSpecs.from_specs({"layer": spec}))


def tables(groups: list[KVCacheGroupSpec], max_model_len: int = 8192) -> MultiGroupBlockTable:
    return block_tables(groups, max_model_len, max_num_batched_tokens=1024, max_num_reqs=4)


@given(
    spans=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 250)), min_size=1, max_size=4),
    rows=st.sampled_from((32, 64, 128)),
)
@settings(max_examples=60, deadline=None)
def test_a_token_has_the_slot_of_the_row_it_closes(spans, rows):
    """For any chunks of up to four requests in one batch."""
    groups = [group(1, rows), group(4, rows), group(128, rows)]
    batch = tables(groups)
    ids = np.random.default_rng(0).permutation(np.arange(1, 4000))
    for request in range(len(spans)):
        blocks = tuple(
            ids[request * 1000 + i * 300 :][: table.max_num_blocks_per_req].tolist()
            for i, table in enumerate(batch.block_tables)
        )
        batch.add_row(blocks, request)
    batch.commit_block_table(len(spans))
    starts = np.cumsum([0] + [length for _, length in spans])
    positions = np.concatenate([np.arange(first, first + length) for first, length in spans])
    batch.compute_slot_mapping(
        len(spans), torch.tensor(starts, dtype=torch.int32), torch.tensor(positions)
    )
    requests = np.repeat(np.arange(len(spans)), [length for _, length in spans])
    for ratio, table in zip((1, 4, 128), batch.block_tables, strict=True):
        slots = table.slot_mapping.gpu.tolist()
        for token, (request, position) in enumerate(zip(requests, positions, strict=True)):
            if (position + 1) % ratio:
                assert slots[token] == PAD
                continue
            row = position // ratio
            block = table.block_table.np[request, row // rows]
            assert slots[token] == block * rows + row % rows
        if ratio > 1:
            assert set(slots[len(positions) :]) <= {PAD}


def test_a_row_that_moved_leaves_nothing_behind():
    """A request with fewer blocks gets it next, and drafts reach behind those."""
    batch = tables([group(1), group(4)])
    batch.add_row(([11, 12, 13], [21, 22]), 2)
    batch.move_row(2, 0)
    batch.add_row(([31], []), 2)
    batch.commit_block_table(3)
    window, compressed = (table.get_device_tensor() for table in batch.block_tables)
    assert window[0, :4].tolist() == [11, 12, 13, 0] and compressed[0, :3].tolist() == [21, 22, 0]
    assert window[2, :4].tolist() == [31, 0, 0, 0] and compressed[2, :3].tolist() == [0, 0, 0]


def test_a_row_of_the_table_is_as_long_as_the_longest_request_needs():
    """The ratio is inside the packed spec; without it a million tokens would take 0.75 MiB more."""
    window, c4, c128 = tables([group(1), group(4), group(128)], max_model_len=1 << 20).block_tables
    assert window.max_num_blocks_per_req == (1 << 20) // 32
    assert c4.max_num_blocks_per_req == (1 << 20) // 128
    assert c128.max_num_blocks_per_req == (1 << 20) // 4096


def test_rows_that_the_caller_has_counted():
    batch = tables([group(1), group(4)])
    batch.add_row(([5, 6, 7], [9, 8]), 0)
    requests, rows = np.zeros(3, dtype=np.int64), np.array([0, 31, 33])
    batch.compute_slot_mapping_draft(requests, rows)
    assert batch[1].slot_mapping.cpu[:3].tolist() == [9 * 32, 9 * 32 + 31, 8 * 32 + 1]
    batch.compute_slot_mapping(1, None, None, [rows, rows[:1]], [requests, requests[:1]])
    assert batch[0].slot_mapping.cpu[:3].tolist() == [5 * 32, 5 * 32 + 31, 6 * 32 + 1]
    assert batch[1].slot_mapping.cpu[0].item() == 9 * 32


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="kv_cache_groups length"):
        MultiGroupBlockTable(
            4, 1024, 64, False, torch.device("cpu"), [32, 32], kv_cache_groups=[group(1)]
        )
    with pytest.raises(ValueError, match="can divide physical block size 32"):
        BlockTable(32, 4, 8, 64, False, torch.device("cpu"), kernel_sizes=[48])


ROW_OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 3), st.integers(1, 12)),
        st.tuples(st.just("add"), st.integers(0, 3), st.integers(1, 12)),
        st.tuples(st.just("clear"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("move"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("swap"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("commit"), st.integers(1, 4), st.just(0)),
    ),
    max_size=40,
)


@given(operations=ROW_OPERATIONS, kernel_size=st.sampled_from((32, 8)))
@settings(max_examples=150, deadline=None)
def test_the_device_sees_every_row_as_the_host_does(operations, kernel_size):
    """Although only what has changed is uploaded, and runners fill the rows behind a batch."""
    table = BlockTable(32, 4, 200, 64, False, torch.device("cpu"), [kernel_size])
    next_id = iter(range(1, 10_000))
    for name, row, argument in operations:
        if name in ("append", "add"):
            blocks = [next(next_id) for _ in range(argument)]
            if name == "append" and table.num_blocks_per_row[row] > 60:
                continue
            getattr(table, f"{name}_row")(blocks, row)
        elif name == "clear":
            table.clear_row(row)
        elif name in ("move", "swap"):
            getattr(table, f"{name}_row")(row, argument)
        else:
            table.commit_block_table(row)
            for request in range(row):
                num_blocks = table.num_blocks_per_row[request]
                host, device = table.get_cpu_tensor()[request], table.get_device_tensor()[request]
                assert torch.equal(device[:num_blocks], host[:num_blocks])
            table.get_device_tensor()[row:].fill_(0)


def test_a_decode_step_uploads_one_entry(monkeypatch):
    table = BlockTable(8, 4, 1 << 17, 64, False, torch.device("cpu"))
    table.add_row(list(range(1, 100_001)), 0)
    table.commit_block_table(1)
    uploaded = []
    take = table._dirty.take
    monkeypatch.setattr(table._dirty, "take", lambda n: uploaded.extend(spans := take(n)) or spans)
    table.append_row([7], 0)
    table.commit_block_table(1)
    table.commit_block_table(1)
    assert uploaded == [(0, 100_000, 100_001)]


@given(
    ranks=st.sampled_from(((1, 1), (2, 1), (1, 2), (2, 2))),
    interleave=st.sampled_from((1, 4, 32)),
    positions=st.lists(st.integers(0, 500), min_size=1, max_size=30),
)
@settings(max_examples=60, deadline=None)
def test_under_context_parallelism_every_row_is_on_one_rank(ranks, interleave, positions):
    """And no two rows have one slot there."""
    pcp, dcp = ranks
    rows = np.array(sorted(set(positions)))
    owners: dict[int, tuple[int, int]] = {}
    for pcp_rank in range(pcp):
        for dcp_rank in range(dcp):
            table = BlockTable(
                32, 4, 600, 64, False, torch.device("cpu"), [32], interleave, kv_cache_group=None
            )
            table.pcp_world_size, table.pcp_rank = pcp, pcp_rank
            table.dcp_world_size, table.dcp_rank = dcp, dcp_rank
            table.add_row(list(range(1, 21)), 0)
            table.compute_slot_mapping_draft(np.zeros_like(rows), rows)
            slots = table.slot_mapping.np[: len(rows)].tolist()
            for row, slot in zip(rows.tolist(), slots, strict=True):
                if slot != PAD:
                    assert row not in owners
                    owners[row] = (pcp_rank * dcp + dcp_rank, slot)
    assert set(owners) == set(rows.tolist())
    assert len(set(owners.values())) == len(rows)
