# SPDX-License-Identifier: Apache-2.0
"""One line per logging interval about the prefix cache, if anything happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vllm_ascend.core.reporting.cache_stats import CacheUpdate
from vllm_ascend.metrics.prometheus import EVICTED_TIERS, KINDS, TIERS

_SUMMED = ("prompt_tokens", "partial_hits", "copied_blocks", "junction_misses")


class PrefixCacheSummary:
    """Adds updates up until they are told."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()
        self._evicted: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()
        self._blocks: dict[int, tuple[int, ...]] = {}
        self._has_news = False

    def observe(self, update: CacheUpdate, engine: int) -> None:
        """Note what is new of one engine."""
        self._has_news = True
        self._blocks[engine] = update.blocks
        self._evicted.update(dict(zip(EVICTED_TIERS, update.evicted, strict=False)))
        self._kept.update(dict(zip(KINDS, update.kept, strict=False)))
        self._totals.update({name: getattr(update, name) for name in _SUMMED})
        self._totals["requests"] += len(update.hit_tokens)
        self._totals["hit_tokens"] += sum(update.hit_tokens)

    def take_line(self) -> str | None:
        """Return a line about everything since the last one; ``None`` if nothing happened."""
        if not self._has_news:
            return None
        self._has_news = False
        blocks = [sum(numbers) for numbers in zip(*self._blocks.values(), strict=True)]
        line = "; ".join(
            (
                _hits(self._totals),
                f"blocks: {_list(dict(zip(TIERS, blocks, strict=True)), TIERS)}",
                f"evicted with content: {_list(self._evicted, EVICTED_TIERS)}",
                f"boundaries kept: {_list(self._kept, KINDS)}",
            )
        )
        for totals in (self._totals, self._evicted, self._kept):
            totals.clear()
        return line


def _hits(totals: Counter[str]) -> str:
    if not totals["requests"]:
        return "no request started"
    return (
        f"{100 * totals['hit_tokens'] / max(totals['prompt_tokens'], 1):.1f} % of "
        f"{totals['prompt_tokens']:,} prompt tokens hit; requests started {totals['requests']:,}, "
        f"hits inside a block {totals['partial_hits']:,}, blocks copied "
        f"{totals['copied_blocks']:,}, junction misses (rows matched further than any tail was "
        f"cached) {totals['junction_misses']:,}"
    )


def _list(numbers: dict[str, int], names: Sequence[str]) -> str:
    return ", ".join(f"{name} {numbers.get(name, 0):,}" for name in names)
