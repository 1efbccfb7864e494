# SPDX-License-Identifier: Apache-2.0
"""Rows go between tensors and a buffer in a constant number of launches, and come back whole."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vllm_ascend.tier.layout import GroupLayout, TierLayout
from vllm_ascend.tier.orders import Run, Segment
from vllm_ascend.tier.row_views import RowView
from vllm_ascend.tier.staging import Shapes, Staging, StagingError, split_to_fit

UNIT, NUM_BLOCKS, TAIL_ROWS = 16, 512, 8
# Rows per block, tokens per row: of a group with all rows, and of a window.
ALL, WINDOW = GroupLayout(0, 4, 8, 24), GroupLayout(1, 1, 4, 8, tail_rows=TAIL_ROWS)
LAYOUT = TierLayout(
    unit=UNIT,
    hash_tokens=UNIT,
    rows=(ALL,),
    tails=(WINDOW,),
    rows_look_ahead=False,
    tail_looks_ahead=False,
    is_replicated=True,
    digest="0",
)
# They launch nothing.
VIEWS_ONLY = {"view", "slice", "select", "permute", "unsqueeze", "_unsafe_view", "detach", "alias"}


class Launches(TorchDispatchMode):
    """Counts what would be launched on a device."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name not in VIEWS_ONLY:
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


def views(seed: int) -> list[RowView]:
    """Return two tensors of one group, and one of the other."""
    random = torch.Generator().manual_seed(seed)
    shapes = [(0, (NUM_BLOCKS, 1, 8, 16)), (0, (NUM_BLOCKS, 2, 8, 4)), (1, (NUM_BLOCKS, 1, 4, 8))]
    return [
        RowView(group, torch.randint(256, shape, dtype=torch.uint8, generator=random))
        for group, shape in shapes
    ]


def runs(num_units: int, num_tails: int, skip_before: int = 0) -> list[Run]:
    """Return so many units and tails of one request, in blocks that lie apart."""
    blocks = num_units * UNIT // (ALL.tokens_per_row * ALL.rows_per_block) + 1
    ids = tuple(1 + 3 * i % (NUM_BLOCKS - 1) for i in range(blocks))
    keys = tuple(b"r%d" % i for i in range(num_units))
    rows = Segment(0, 0, num_units * UNIT // 4, skip_before, 8, ids)
    made = [Run(False, keys, (0,) * num_units, (rows,))]
    for number in range(num_tails):
        window = Segment(1, 0, TAIL_ROWS, 0, 4, (2 * number + 1, 2 * number + 2))
        made.append(Run(True, (b"t%d" % number,), (0,), (window,)))
    return made


def buffer(num_bytes: int = 1 << 18) -> Staging:
    return Staging(num_bytes, torch.device("cpu"), pin_memory=False)


def launches(num_units: int, num_tails: int, skip_before: int = 0) -> list[Counter[str]]:
    """Return what gathering and scattering so much launches."""
    counted = []
    tensors = views(1)
    shapes, moved = Shapes(LAYOUT, tensors), runs(num_units, num_tails, skip_before)
    staging = buffer()
    for move in (staging.gather, staging.scatter):
        with Launches() as mode:
            move(shapes, moved)
        counted.append(mode.counts)
    return counted


@pytest.mark.parametrize("skip_before", [0, 3])
def test_launches_do_not_depend_on_how_much_is_moved(skip_before):
    few, many = launches(2, 2, skip_before), launches(100, 40, skip_before)
    assert few == many
    gathered, scattered = many
    assert gathered["index"] == 3 and gathered["copy_"] == 3, "one of each per raw tensor"
    assert scattered["index_put_"] == 3
    assert sum(gathered.values()) <= 4 * 3 and sum(scattered.values()) <= 5 * 3


def test_what_was_gathered_is_scattered_to_the_same_rows():
    tensors, others = views(1), views(2)
    moved = runs(20, 3)
    staging = buffer()
    staging.gather(Shapes(LAYOUT, tensors), moved)
    staging.scatter(Shapes(LAYOUT, others), moved)
    for run in moved:
        for segment in run.segments:
            blocks, places, _ = segment.places()
            for ours, theirs in zip(tensors, others, strict=True):
                if ours.group_id == segment.group_id:
                    assert torch.equal(ours.rows[blocks, :, places], theirs.rows[blocks, :, places])


def test_rows_in_front_of_what_is_skipped_are_left_alone():
    tensors, others = views(1), views(2)
    before = [view.rows.clone() for view in others]
    staging = buffer()
    staging.gather(Shapes(LAYOUT, tensors), runs(4, 0))
    staging.scatter(Shapes(LAYOUT, others), runs(4, 0, skip_before=5))
    blocks, places, moved = runs(4, 0, skip_before=5)[0].segments[0].places()
    for ours, theirs, old in zip(tensors[:2], others[:2], before[:2], strict=True):
        expected = [
            (ours.rows if is_moved else old)[block, :, place]
            for block, place, is_moved in zip(blocks, places, moved, strict=True)
        ]
        assert torch.equal(theirs.rows[blocks, :, places], torch.stack(expected))


def test_what_does_not_fit_is_cut_and_nothing_is_lost():
    shapes = Shapes(LAYOUT, views(1))
    moved = runs(20, 3)
    size = 3 * max(shapes.num_bytes.values())
    lists = split_to_fit(shapes, moved, size)
    assert all(
        sum(shapes.num_bytes[run.is_tail] * len(run.keys) for run in part) <= size for part in lists
    )
    keys = [key for part in lists for run in part for key in run.keys]
    assert keys == [key for run in moved for key in run.keys]
    with pytest.raises(StagingError):
        split_to_fit(shapes, moved, min(shapes.num_bytes.values()) - 1)
