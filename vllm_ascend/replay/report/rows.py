# SPDX-License-Identifier: Apache-2.0
"""The comparison as rows of text, for the terminal and for the page alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from vllm_ascend.replay.results import (
    Bounds,
    HitRates,
    Percentiles,
    ReplayReport,
    RunResult,
    WorkloadReport,
)

if TYPE_CHECKING:  # the client in there costs every command its start
    from vllm_ascend.replay.http.results import HttpRun

_GIB = 1 << 30
# What the memory holds under a textbook policy.
PREFIX_BLOCKS_ALONE = "prefix blocks of 512 tokens alone in this memory"

Run = TypeVar("Run", contravariant=True)


@dataclass(frozen=True)
class Column(Generic[Run]):
    """One column: its heading, and how a run fills it."""

    heading: str
    cell: Callable[[Run], str]


def name_of(run: RunResult | HttpRun) -> str:
    """Return a run's variant or model, and whether it is all of it."""
    return run.variant if run.complete else f"{run.variant} (partial)"


def _pair(times: Percentiles | None) -> str:
    return "-" if times is None else f"{times.p50:,.0f} / {times.p99:,.0f}"


def _checked(run: RunResult) -> str:
    if run.violations:
        return f"{len(run.violations)} WRONG"
    return "ok" if run.verified else "-"


NAME = Column("", name_of)
BLOCK = Column[RunResult]("block", lambda run: str(run.block_size))
HIT_RATES: tuple[Column[HitRates], ...] = (
    Column("hits\n% tokens", lambda run: f"{run.hit_rate:.2f}"),
    Column("hits\n% reqs", lambda run: f"{run.request_hit_rate:.1f}"),
    Column("hit tokens", lambda run: f"{run.hit_tokens:,}"),
)
HITS: tuple[Column[RunResult], ...] = (
    *HIT_RATES,
    Column("blocks\npeak / all", lambda run: f"{run.peak_used_blocks:,} / {run.num_blocks:,}"),
)
CHECKED = Column("rows\nchecked", _checked)
COSTS: tuple[Column[RunResult], ...] = (
    Column("work\nsaved %", lambda run: f"{run.saved_work:.2f}"),
    Column("pre-\nempted", lambda run: f"{run.num_preemptions:,}"),
    Column("cached\nevicted", lambda run: f"{run.num_cached_blocks_evicted:,}"),
    Column("schedule() µs\np50 / p99", lambda run: _pair(run.schedule_us)),
    Column("add_request() µs\np50 / p99", lambda run: _pair(run.add_request_us)),
)
MODELLED = Column[RunResult](
    "TTFT modelled, ms\np50 / p99", lambda run: _pair(run.modelled_ttft_ms)
)


def bound_lines(bounds: Bounds) -> list[tuple[str, str]]:
    """Return (granule, hit rate) of an unlimited cache, the finest granule first."""
    rates = {1: bounds.granule_1, 128: bounds.granule_128, **bounds.aligned}
    return [(f"{granule:,}", f"{rate:.2f}") for granule, rate in sorted(rates.items())]


def policy_lines(workload: WorkloadReport) -> list[tuple[str, str]]:
    """Return (textbook policy, hit rate) if they were asked for."""
    return [(name, f"{rate:.2f}") for name, rate in workload.policy_rates.items()]


def variant_lines(report: ReplayReport) -> list[tuple[str, str]]:
    """Return (variant, what it is) of all that were run and are described."""
    runs = (run for workload in report.workloads for run in workload.runs)
    return list(dict.fromkeys((run.variant, run.description) for run in runs if run.description))


def header(report: ReplayReport, workload: WorkloadReport) -> str:
    """Return what all runs of a workload have in common, in one line."""
    runs = workload.runs
    drafts = {run.num_speculative_tokens for run in runs}
    common = {
        "layout": ", ".join(sorted({run.layout for run in runs})),
        "KV": ", ".join(f"{gib:g}" for gib in sorted({run.kv_memory_bytes / _GIB for run in runs})),
        # Runs with and without drafts say it themselves.
        "MTP": ", ".join(map(str, drafts)) if len(drafts) == 1 and drafts != {0} else "",
        "vLLM": report.vllm_version,
        "seed": str(report.seed),
        "requests": workload.digest,
    }
    units = {"KV": " GiB"}
    return ", ".join(
        f"{what} {value}{units.get(what, '')}" for what, value in common.items() if value
    )
