# SPDX-License-Identifier: Apache-2.0
"""The line of the log says what happened since the last one, over all engines."""

import re

from tests.pages import blocks
from vllm_ascend.core.policy.ranks import TIERS, Rank
from vllm_ascend.core.reporting.cache_stats import BoundaryKind, CacheStats, CacheUpdate
from vllm_ascend.metrics.summary import PrefixCacheSummary

NUM_EVICTED_TIERS = len(TIERS) - TIERS.index(Rank.SPARE)


def update(used: int, free: int, *, evicted: int = 0, requests: int = 0) -> CacheUpdate:
    stats = CacheStats()
    for _ in range(requests):
        stats.note_start(1000, 250, missed_junction=False)
    stats.kept[BoundaryKind.FINISH] += requests
    taken = stats.take((used, free, *[0] * (len(TIERS) - 1)), [evicted] * NUM_EVICTED_TIERS)
    assert taken is not None
    return taken


def test_blocks_are_summed_over_engines_and_not_over_time():
    summary = PrefixCacheSummary()
    for used in (9, 5):
        summary.observe(update(used, 100 - used), engine=0)
    summary.observe(update(20, 80), engine=1)
    line = summary.take_line()
    assert "blocks: used 25, scratch 175, spare 0, cached 0" in line
    assert line.startswith("no request started; ")


def test_counters_start_anew_with_every_line():
    summary = PrefixCacheSummary()
    summary.observe(update(1, 9, evicted=2, requests=3), engine=0)
    summary.observe(update(1, 9, evicted=1, requests=1), engine=0)
    line = summary.take_line()
    assert "25.0 % of 4,000 prompt tokens hit; requests started 4, " in line
    assert "evicted with content: spare 3, cached 3" in line
    assert "finish 4" in line
    summary.observe(update(1, 9, requests=1), engine=0)
    line = summary.take_line()
    assert "requests started 1, " in line
    assert "evicted with content: spare 0, cached 0" in line


def test_nothing_happened_is_no_line():
    summary = PrefixCacheSummary()
    assert summary.take_line() is None
    summary.observe(update(1, 9), engine=0)
    assert summary.take_line() is not None
    assert summary.take_line() is None


def test_the_page_shows_the_line_as_it_is():
    (shown,) = [block.text for block in blocks("docs/metrics.md") if "Prefix cache:" in block.text]
    summary = PrefixCacheSummary()
    summary.observe(update(1, 9, requests=1), engine=0)
    line = f"Engine 000: Prefix cache: {summary.take_line()}\n"
    without_numbers = [re.sub(r"\d[\d,.]*(?=\D)", "N", text) for text in (shown, line)]
    assert without_numbers[0] == without_numbers[1]
