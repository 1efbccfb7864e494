# SPDX-License-Identifier: Apache-2.0
"""The tier's buffers on a device: rows come back whole, and waits are where they are needed.

The stream is kept busy, so that a wait that is missing is missed: each is left out once.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.ut.tier.test_staging import LAYOUT, runs, views
from vllm_ascend.tier.row_views import RowView
from vllm_ascend.tier.staging import Shapes, Staging

BUFFER = 1 << 22


def on(device: torch.device, seed: int) -> list[RowView]:
    return [RowView(view.group_id, view.rows.to(device)) for view in views(seed)]


def staging(device: torch.device, pin_memory: bool = True) -> Staging:
    return Staging(BUFFER, device, pin_memory=pin_memory)


def gathered_on_the_cpu(seed: int, moved: list) -> np.ndarray:
    """Return what a buffer holds of the rows; headers are zero."""
    buffer = staging(torch.device("cpu"), pin_memory=False)
    buffer.host[:] = 0
    buffer.gather(Shapes(LAYOUT, views(seed)), moved)
    return buffer.host


def clear(tensors: list[RowView]) -> None:
    """Let blocks be somebody else's: overwrite them, in the order of the stream."""
    for view in tensors:
        view.rows.zero_()


def rows_of(buffer: Staging, tensors: list[RowView], moved: list) -> bytes:
    """Return the objects of a buffer, without headers."""
    _, _, objects = buffer.objects(Shapes(LAYOUT, tensors), moved)
    return b"".join(data[64:].tobytes() for data in objects)


def expected_rows(seed: int, moved: list) -> bytes:
    buffer = staging(torch.device("cpu"), pin_memory=False)
    buffer.host[:] = gathered_on_the_cpu(seed, moved)
    return rows_of(buffer, views(seed), moved)


@pytest.mark.parametrize("pin_memory", [True, False])
@pytest.mark.parametrize("skip_before", [0, 5])
def test_rows_are_gathered_and_scattered_as_on_the_cpu(device, pin_memory, skip_before):
    moved, tensors = runs(60, 20, skip_before), on(device, 1)
    buffer = staging(device, pin_memory)
    event = buffer.gather(Shapes(LAYOUT, tensors), moved)
    assert event is not None
    event.synchronize()
    assert rows_of(buffer, tensors, moved) == expected_rows(1, moved)
    others, reference = on(device, 2), views(2)
    buffer.scatter(Shapes(LAYOUT, others), moved)
    on_cpu = staging(torch.device("cpu"), pin_memory=False)
    on_cpu.host[:] = buffer.host
    on_cpu.scatter(Shapes(LAYOUT, reference), moved)
    for ours, theirs in zip(others, reference, strict=True):
        assert torch.equal(ours.rows.cpu(), theirs.rows)


def test_pinned_memory_is_pinned(device):
    assert staging(device)._host.is_pinned()


def warm_up(device: torch.device, moved: list) -> None:
    """Load the kernels, and let torch keep the memory: either may wait for the device."""
    tensors, buffer = on(device, 3), staging(device)
    for _ in range(2):
        event = buffer.gather(Shapes(LAYOUT, tensors), moved)
        assert event is not None
        event.synchronize()
        buffer.scatter(Shapes(LAYOUT, tensors), moved)
        buffer.wait_until_read()


def gather_from_overwritten_blocks(device, keep_busy, *, waits: bool) -> bool:
    """Gather behind other work, and overwrite the blocks at once; return whether rows are right."""
    moved, tensors = runs(60, 20), on(device, 1)
    warm_up(device, moved)
    buffer = staging(device)
    buffer.host[:] = 0
    done = keep_busy()
    event = buffer.gather(Shapes(LAYOUT, tensors), moved)
    assert event is not None
    assert not done.query(), "the host waits for nothing"
    clear(tensors)
    if waits:
        event.synchronize()
    is_right = rows_of(buffer, tensors, moved) == expected_rows(1, moved)
    event.synchronize()
    return is_right


def test_what_is_gathered_survives_the_blocks(device, keep_busy):
    assert gather_from_overwritten_blocks(device, keep_busy, waits=True)


def test_a_gather_that_nobody_waits_for_is_caught(device, keep_busy):
    assert not gather_from_overwritten_blocks(device, keep_busy, waits=False)


def scatter_from_overwritten_buffer(device, keep_busy, *, waits: bool) -> bool:
    """Scatter behind other work, and fill the buffer anew; return whether rows are right."""
    moved, tensors = runs(60, 20), on(device, 2)
    buffer = staging(device)
    warm_up(device, moved)
    buffer.host[:] = gathered_on_the_cpu(1, moved)
    done = keep_busy()
    buffer.scatter(Shapes(LAYOUT, tensors), moved)
    assert not done.query(), "the host waits for nothing"
    if waits:
        buffer.wait_until_read()
    buffer.host[:] = 255
    back = staging(device)
    event = back.gather(Shapes(LAYOUT, tensors), moved)
    assert event is not None
    event.synchronize()
    return rows_of(back, tensors, moved) == expected_rows(1, moved)


def test_a_buffer_is_filled_anew_once_the_device_has_read_it(device, keep_busy):
    assert scatter_from_overwritten_buffer(device, keep_busy, waits=True)


def test_a_buffer_that_is_filled_too_early_is_caught(device, keep_busy):
    assert not scatter_from_overwritten_buffer(device, keep_busy, waits=False)
