# SPDX-License-Identifier: Apache-2.0
"""Records the way of requests: which part of the scheduler's side calls which other part."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType

from vllm.v1.core.kv_cache_manager import KVCacheManager

from vllm_ascend.core.admission.block_allocation import BlockAllocation
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.core.kv_cache_manager import CachingKVCacheManager
from vllm_ascend.core.lookup.hit_search import HitSearch, RequestLookup
from vllm_ascend.core.lookup.prefix_lookup import PrefixLookup
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.ranked_caching import RankedCaching
from vllm_ascend.core.retention.ledger import Ledger
from vllm_ascend.core.retention.partial_hits import PartialHits
from vllm_ascend.core.retention.sparse_state import SparseState
from vllm_ascend.core.retention.tail_cache import TailCache

# From vLLM's manager down to the pool: none calls one in front of it.
PARTS = (
    KVCacheManager,
    AscendHybridKVCacheCoordinator,
    RequestLookup,
    HitSearch,
    PrefixLookup,
    RankedCaching,
    BlockAllocation,
    PartialHits,
    Ledger,
    SparseState,
    TailCache,
    AscendBlockPool,
)
# What is put over a part, and is one thing with it.
_OVER: dict[type, tuple[type, ...]] = {KVCacheManager: (CachingKVCacheManager,)}
# Questions about what is known, asked in passing.
_ANSWERS = {
    "create_kv_cache_blocks",
    "get_blocks",
    "is_sparse",
    "make_prefix_cache_stats",
    "passes_boundary",
    "rank",
    "ranked",
    "rolling",
    "singled_out",
    "take_events",
}


class Way:
    """Calls from one part to another, in order.

    Attributes:
        lines: One for each call, indented by how deep it is; what repeats itself under the same
            caller once.
        calls: Caller and called part, of every call.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.calls: set[tuple[str, str]] = set()
        self._seen: set[tuple[str, ...]] = set()
        self._parts = _codes_of_parts()
        self._open: list[tuple[CodeType, str, str]] = []

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "return" and self._open and self._open[-1][0] is code:
            self._open.pop()
        if event != "call" or code not in self._parts:
            return
        part, name = self._parts[code]
        callers = [(owner, called) for _, owner, called in self._open]
        if callers and callers[-1][0] == part:
            name = callers[-1][1]  # on its way inside a part
        else:
            self._note(part, name, callers)
        self._open.append((code, part, name))

    def _note(self, part: str, name: str, callers: list[tuple[str, str]]) -> None:
        way = tuple(f"{owner}.{called}" for owner, called in dict.fromkeys(callers))
        if callers:
            self.calls.add((callers[-1][0], part))
        if (*way, f"{part}.{name}") not in self._seen:
            self._seen.add((*way, f"{part}.{name}"))
            self.lines.append("    " * len(way) + f"{part}.{name}")


def _codes_of_parts() -> dict[CodeType, tuple[str, str]]:
    """Return code -> part and name, of the public methods of all parts."""
    codes: dict[CodeType, tuple[str, str]] = {}
    for part in PARTS:
        methods = [item for cls in (part, *_OVER.get(part, ())) for item in vars(cls).items()]
        for name, value in methods:
            code = getattr(getattr(value, "__wrapped__", value), "__code__", None)
            if code is not None and not name.startswith("_") and name not in _ANSWERS:
                codes[code] = (part.__name__, name)
    return codes


@contextmanager
def recorded() -> Iterator[Way]:
    """Record the calls made inside."""
    way = Way()
    before: Callable | None = sys.getprofile()
    sys.setprofile(way)
    try:
        yield way
    finally:
        sys.setprofile(before)
