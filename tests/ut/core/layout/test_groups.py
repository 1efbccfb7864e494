# SPDX-License-Identifier: Apache-2.0
"""What look-ups know of a group: its tails, where hits may end inside its blocks, its drafts."""

from __future__ import annotations

import pytest
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

from tests.e2e.core import layouts
from tests.ut.core.real_groups import compressed, full, make_groups, window
from vllm_ascend.core.layout.dsv4_specs import ascend_specs
from vllm_ascend.core.layout.groups import (
    Groups,
    find_draft_groups,
    hits_end_inside,
    tail_length,
    tail_spec,
)


def dsv4_specs() -> list:
    """Window of 128 tokens, C4, C128, C4 state, C128 state; blocks of 128 rows."""
    kinds = ascend_specs(128)
    return [kinds.window, *kinds.mla.values(), *kinds.state.values()]


def test_deepseek_v4s_groups_where_hits_end_at_granules():
    groups = make_groups(*dsv4_specs(), alignment=128, ends_inside_blocks=True)
    assert [group.block_tokens for group in groups] == [128, 512, 16_384, 8, 32]
    assert [group.ends_inside for group in groups] == [False, True, True, False, False]
    assert [group.is_retained for group in groups] == [True, False, False, True, True]
    assert [group.is_read_first for group in groups] == [False, False, False, True, True]
    assert [group.window for group in groups] == [128, 0, 0, 8, 128]
    assert groups[3].suffix == b"\0\0\0\3"


def test_without_partial_hits_none_ends_inside_a_block():
    groups = make_groups(*dsv4_specs(), alignment=16_384)
    assert not any(group.ends_inside for group in groups)


def test_the_blocks_of_deepseek_v4s_tails_at_token_1024():
    """The window reads [897, 1024), the C4 compressor [1020, 1024), the C128 compressor nothing."""
    window_group, _, _, c4_state, c128_state = make_groups(*dsv4_specs(), alignment=128)
    assert window_group.tail(1024) == range(7, 8)
    assert c4_state.tail(1024) == range(127, 128)
    assert len(c128_state.tail(1024)) == 0


def test_the_tokens_whose_rows_take_the_memory_of_a_tail():
    """Two blocks: 992 tokens have 1.94 blocks of 512 tokens, and 0.06 of 16,384."""
    groups = Groups(tuple(make_groups(*dsv4_specs(), alignment=128)))
    assert groups.tokens_for_a_tail(16_512) == 992
    assert Groups(tuple(make_groups(window(4, 10), alignment=4))).tokens_for_a_tail(40) == 0


@pytest.mark.parametrize(
    ("boundary", "tail"),
    [(4, range(1)), (8, range(2)), (12, range(3)), (16, range(1, 4)), (40, range(7, 10))],
)
def test_a_tail_is_cut_at_the_first_token(boundary, tail):
    """A window of 10 tokens in blocks of 4 reads 9 tokens back: into a third block."""
    (group,) = make_groups(window(4, 10), alignment=4)
    assert group.tail(boundary) == tail


def test_stock_tails_are_what_the_manager_keeps():
    (group,) = make_groups(window(4, 10), alignment=4, changes_caching=False)
    assert (group.tail_length, group.window) == (None, 0)
    assert [group.tail_start(boundary) for boundary in (4, 16, 40)] == [0, 7, 31]
    assert group.tail(40) == range(7, 10)


@pytest.mark.parametrize(
    ("block_tokens", "window_tokens", "alignment", "blocks"),
    [(4, 9, 4, 2), (4, 10, 4, 3), (4, 1, 4, 0), (4, 100, 8, 25), (4, 102, 8, 26), (2, 9, 8, 4)],
)
def test_the_blocks_of_a_tail_far_from_the_start(block_tokens, window_tokens, alignment, blocks):
    spec = window(block_tokens, window_tokens)
    assert tail_length(tail_spec(spec, [spec], alignment)) == blocks


@pytest.mark.parametrize(
    ("spec", "alignment", "expected"),
    [
        (compressed(4, 4), 8, True),
        (compressed(4, 4), 16, False),
        (full(16), 8, False),
        (window(16, 32), 8, False),
    ],
)
def test_only_blocks_of_compressed_rows_are_cut(spec, alignment, expected):
    assert hits_end_inside(spec, alignment) is expected


def config(*specs, flagged: tuple[int, ...] = ()) -> KVCacheConfig:
    groups = [
        KVCacheGroupSpec([f"layers.{i}"], spec, is_eagle_group=i in flagged)
        for i, spec in enumerate(specs)
    ]
    return KVCacheConfig(num_blocks=2, kv_cache_tensors=[], kv_cache_groups=groups)


def test_without_drafts_only_flagged_groups_hold_some():
    assert find_draft_groups(config(full(4), window(4, 8)), None, use_eagle=False) == set()
    flagged = config(full(4), window(4, 8), flagged=(1,))
    assert find_draft_groups(flagged, None, use_eagle=False) == {1}
    assert find_draft_groups(flagged, None, use_eagle=True) == {1}


def test_known_draft_layers_decide():
    two = config(full(4), window(4, 8), flagged=(1,))
    assert find_draft_groups(two, ["layers.0"], use_eagle=True) == {0}
    with pytest.raises(ValueError, match=r"draft layers \['mtp.0'\] are in no KV cache group"):
        find_draft_groups(two, ["layers.0", "mtp.0"], use_eagle=True)


def test_unknown_draft_layers_may_be_wherever_tokens_are_attended_to():
    """Not among compressed rows, nor in the state of a compressor."""
    assert find_draft_groups(config(*dsv4_specs()), None, use_eagle=True) == {0}
    assert find_draft_groups(config(full(4), window(4, 8)), None, use_eagle=True) == {0, 1}
    mamba = layouts.mamba_hybrid().specs["layers.1"]
    assert find_draft_groups(config(full(4), mamba), None, use_eagle=True) == {0}
    assert find_draft_groups(config(mamba), None, use_eagle=True) == {0}, "it must be somewhere"
