# SPDX-License-Identifier: Apache-2.0
"""The tags of rows that the tier stores and loads: they are kept by the keys of its objects.

The bytes go the tier's own way. That an object holds the bytes of its key is what the tier's own
tests show; here tokens that are Hugging Face's show it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.upstream.npu_reference.tags import UNWRITTEN, Memory, Plane

# Key of an object, place of the tensor among those of its kind -> tags of the object's rows.
_Stored = dict[tuple[bytes, int], torch.Tensor]


def follow_tier(memory: Memory) -> None:
    """Let tags follow what the tier of this process gathers and scatters from now on."""
    from vllm_ascend.tier import staging

    move, stored = staging.Staging._move, _Stored()
    move = getattr(move, "untagged", move)

    def moved_with_tags(self: Any, shapes: Any, runs: Sequence[Any], *, is_load: bool) -> int:
        used = move(self, shapes, runs, is_load=is_load)
        for run in runs:
            _move_tags(memory, stored, shapes.parts[run.is_tail], run, is_load)
        return used

    moved_with_tags.untagged = move  # type: ignore[attr-defined]
    staging.Staging._move = moved_with_tags  # type: ignore[method-assign]


def _move_tags(memory: Memory, stored: _Stored, parts: Any, run: Any, is_load: bool) -> None:
    tensor = 0
    for place, views, num_rows in parts:
        blocks, rows, written = (torch.from_numpy(v) for v in run.segments[place].places())
        for view in views:
            plane = _plane_of(memory, view)
            for index, key in enumerate(run.keys):
                mine = slice(index * num_rows, (index + 1) * num_rows)
                chosen = written[mine]
                at = blocks[mine][chosen], rows[mine][chosen]
                if is_load:
                    unknown = torch.full((num_rows,), UNWRITTEN)
                    memory._overwrite(plane.cache, plane, at[0])
                    plane.tags[at] = stored.get((key, tensor), unknown)[chosen]
                else:
                    stored[key, tensor] = plane.tags[blocks[mine], rows[mine]]
            tensor += 1


def _plane_of(memory: Memory, view: Any) -> Plane:
    """Return the plane that a tensor of the tier is a view of."""
    address, group = view.rows.data_ptr(), view.group_id
    found = [p for p in memory.planes if (p.cache.data_ptr(), p.group) == (address, group)]
    assert len(found) == 1, f"{len(found)} caches of group {group} are at {address}"
    return found[0]
