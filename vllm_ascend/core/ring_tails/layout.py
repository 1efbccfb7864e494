# SPDX-License-Identifier: Apache-2.0
"""The layout without state groups, and what its rings and snapshots take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from vllm.utils.torch_utils import get_dtype_size
from vllm.v1.kv_cache_interface import KVCacheSpec

from vllm_ascend.core.kv_cache_interface import AscendSlidingWindowMLASpec
from vllm_ascend.core.layout.dsv4_layout import C4_STATE_WINDOW
from vllm_ascend.core.layout.specs import is_compressor_state, is_windowed


@dataclass(frozen=True, kw_only=True)
class RingWindowSpec(AscendSlidingWindowMLASpec):
    """A sliding window whose cached blocks carry a snapshot of the rings at their end."""

    carries_ring: ClassVar[bool] = True


def with_rings(specs: Mapping[str, KVCacheSpec]) -> dict[str, KVCacheSpec]:
    """Return a model's specs by layer, without compressor state, whose windows carry the rings."""
    return {
        name: carrying(spec) if is_windowed(spec) else spec
        for name, spec in specs.items()
        if not is_compressor_state(spec)
    }


def ring_specs(specs: Mapping[str, KVCacheSpec]) -> dict[str, KVCacheSpec]:
    """Return the compressor state among a model's specs by layer, which goes into rings."""
    return {name: spec for name, spec in specs.items() if is_compressor_state(spec)}


def carrying(window: KVCacheSpec) -> RingWindowSpec:
    """Return a window's spec whose blocks carry the rings."""
    values = {f.name: getattr(window, f.name) for f in fields(window) if f.init}
    return RingWindowSpec(**values)


def is_overlapping(window: int) -> bool:
    """Whether a compressor that looks back over so many tokens has overlapping windows."""
    return window == C4_STATE_WINDOW


def snapshot_rows(window: int) -> int:
    """Return the rows that a snapshot holds of a ring, at a boundary where no window is open.

    Of overlapping windows the next one reads the last; others need nothing.
    """
    return window // 2 if is_overlapping(window) else 0


def ring_rows(window: int, num_drafts: int) -> int:
    """Return the rows of a ring: row ``p % rows`` holds the state of token ``p``.

    Drafts may be rejected behind rows that are still read. A boundary that drafts have passed is
    confirmed up to two steps later, and its snapshot taken then.

    Args:
        window: Tokens that the compressor looks back over, its own included.
        num_drafts: Draft tokens of a step.
    """
    late = 2 * (num_drafts + 1)
    return max(window + num_drafts, snapshot_rows(window) + late + num_drafts)


def ring_bytes(states: Iterable[KVCacheSpec], num_drafts: int) -> int:
    """Return the bytes of one request's rings.

    Args:
        states: The specs of all layers' compressor state.
        num_drafts: Draft tokens of a step.
    """
    return sum(ring_rows(s.sliding_window, num_drafts) * _row_bytes(s) for s in states)


def snapshot_bytes(states: Iterable[KVCacheSpec]) -> int:
    """Return the bytes of one snapshot of all layers' rings.

    The next window reads half of a row: the values and scores for the window behind their own.
    """
    return sum(snapshot_rows(s.sliding_window) * _row_bytes(s) // 2 for s in states)


def _row_bytes(state: KVCacheSpec) -> int:
    return state.head_size * get_dtype_size(state.dtype)
