# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4-Flash on an A3 with compressor state in rings: groups, and bytes."""

from __future__ import annotations

import pytest

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from vllm_ascend.core.layout.groups import tail_length, tail_spec
from vllm_ascend.core.layout.kv_cache_groups import (
    bytes_per_block,
    group_specs_by_kind,
    split_into_groups,
)
from vllm_ascend.core.layout.specs import (
    carries_ring,
    is_compressor_state,
    is_windowed,
    unpack_uniform,
)
from vllm_ascend.core.ring_tails.layout import ring_bytes, ring_rows, snapshot_bytes
from vllm_ascend.dry_run.layouts import dsv4_flash_a3, in_rings
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler

GIB = 1 << 30


def test_state_leaves_the_pool_and_every_window_carries_it():
    layout = in_rings(dsv4_flash_a3(128))
    assert not any(map(is_compressor_state, layout.specs.values()))
    assert all(carries_ring(s) == is_windowed(s) for s in layout.specs.values())
    assert len(layout.rings) == 62  # of 21 C4 layers, their indexers, and 20 C128 layers
    assert not any(map(carries_ring, dsv4_flash_a3(128).specs.values()))


def test_what_a_snapshot_and_a_requests_rings_take():
    """Of 4 tokens the values and scores for the next window: 512 of C4, 128 of its indexer."""
    states = in_rings(dsv4_flash_a3(128)).rings.values()
    assert snapshot_bytes(states) == 21 * 4 * 2 * (512 + 128) * 4 == 430_080
    assert ring_bytes(states, num_drafts=0) == 21 * 8 * 8 * 1280 + 20 * 128 * 4096 == 12_206_080


@pytest.mark.parametrize("rows", [32, 64, 128])
def test_a_snapshot_fits_where_the_windows_blocks_leave_the_indexers_pages(rows):
    """Page i of every tensor is block i's, and no window has rows in the indexer's tensors."""
    layout = in_rings(dsv4_flash_a3(rows))
    window = next(s for s in layout.specs.values() if is_windowed(s))
    specs = tuple(dict.fromkeys(layout.specs.values()))
    num_blocks = 2 * tail_length(tail_spec(window, specs, 128))  # of two groups
    indexers = [s for name, s in layout.specs.items() if name.endswith("indexer.k_cache")]
    unused = num_blocks * sum(spec.page_size_bytes for spec in indexers)
    assert unused == 698_880 > snapshot_bytes(layout.rings.values())


def test_what_a_tail_takes():
    """Of its 128 tokens' windows, 44 layers have pages without padding."""
    layout, sizes = dsv4_flash_a3(128), []
    for made in (layout, in_rings(layout)):
        groups = split_into_groups(group_specs_by_kind(made.specs))
        specs = [unpack_uniform(group.kv_cache_spec) for group in groups]
        tails = [tail_length(tail_spec(s, specs, 128)) for s in specs if is_windowed(s)]
        sizes.append((sum(tails), sum(tails) * bytes_per_block(groups)))
    assert sizes == [(3, 10_092_288), (2, 6_728_192)]
    windows = sum(s.page_size_bytes for s in in_rings(layout).specs.values() if is_windowed(s))
    snapshot = snapshot_bytes(in_rings(layout).rings.values())
    # In the pool a tail has whole rows of state.
    assert (windows + 2 * snapshot, windows + snapshot) == (6_627_328, 6_197_248)


def test_rings_take_memory_from_the_pool():
    """Of 16 GiB as much as 32 requests hold."""
    options = SchedulerOptions(kv_memory_bytes=16 * GIB, enable_prefix_caching=False)
    layout = dsv4_flash_a3(128)
    pools = [build_scheduler(made, options).kv_cache_config for made in (layout, in_rings(layout))]
    block_bytes = 16 * GIB // pools[0].num_blocks
    rings = 32 * ring_bytes(in_rings(layout).rings.values(), 0)
    assert [len(pool.kv_cache_groups) for pool in pools] == [6, 4]
    assert pools[0].num_blocks - pools[1].num_blocks == pytest.approx(rings / block_bytes, abs=1)


@pytest.mark.parametrize(
    ("window", "num_drafts", "rows"),
    [(8, 0, 8), (8, 1, 9), (8, 7, 27), (128, 0, 128), (128, 7, 135)],
)
def test_the_rows_of_a_ring(window, num_drafts, rows):
    assert ring_rows(window, num_drafts) == rows
