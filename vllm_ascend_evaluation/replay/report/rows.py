# SPDX-License-Identifier: Apache-2.0
"""The comparison as rows of text, for the terminal and for the page alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from vllm_ascend_evaluation.replay.memory_use import MemoryUse
from vllm_ascend_evaluation.replay.results import (
    Bounds,
    DataParallelResult,
    HitRates,
    Percentiles,
    ReplayReport,
    RunResult,
    WorkloadReport,
)
from vllm_ascend_evaluation.replay.tier_use import DiskUse, TierUse

if TYPE_CHECKING:  # the client in there costs every command its start
    from vllm_ascend_evaluation.replay.http.results import HttpRun

_GIB = 1 << 30
# What the memory holds under a textbook policy.
PREFIX_BLOCKS_ALONE = "prefix blocks of 512 tokens alone in this memory"

Run = TypeVar("Run", contravariant=True)
OneRun = TypeVar("OneRun")


@dataclass(frozen=True)
class Column(Generic[Run]):
    """One column: its heading, and how a run fills it."""

    heading: str
    cell: Callable[[Run], str]

    @property
    def in_a_line(self) -> str:
        """The heading without the breaks that a table has."""
        return self.heading.replace("-\n", "").replace("\n", " ")


def name_of(run: RunResult | HttpRun) -> str:
    """Return a run's variant or model, and whether it is all of it."""
    return run.variant if run.complete else f"{run.variant} (partial)"


def _pair(times: Percentiles | None) -> str:
    return "-" if times is None else f"{times.p50:,.0f} / {times.p99:,.0f}"


def _of_tier(run: RunResult, cell: Callable[[RunResult, TierUse], str]) -> str:
    return "-" if run.tier is None else cell(run, run.tier)


def _share_of_tier(run: RunResult, tier: TierUse) -> str:
    return _percent(run, tier.hit_tokens)


def _megabytes(run: RunResult, tier: TierUse) -> str:
    return f"{tier.loaded_bytes / 1e6 / max(run.num_requests, 1):,.1f}"


def _milliseconds(run: RunResult, tier: TierUse) -> str:
    return f"{1e3 * tier.load_seconds / max(run.num_requests, 1):,.1f}"


def _of_disk(heading: str, cell: Callable[[RunResult, DiskUse], str]) -> Column[RunResult]:
    """Return a column that only runs with a disk fill."""
    return Column(heading, lambda run: cell(run, run.disk) if run.disk else "-")


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.1f}"


def _checked(run: RunResult) -> str:
    if run.violations:
        return f"{len(run.violations)} WRONG"
    return "ok" if run.verified else "-"


def _of_memory(heading: str, cell: Callable[[RunResult, MemoryUse], str]) -> Column[RunResult]:
    """Return a column that only runs fill whose memory was looked at."""
    return Column(heading, lambda run: cell(run, run.memory) if run.memory else "-")


def _share(heading: str, name: str) -> Column[RunResult]:
    """Return a column with the share of the memory that is for a purpose."""
    return _of_memory(heading, lambda run, use: f"{use.share(name):.1f}")


def _percent(run: RunResult, tokens: int | None) -> str:
    if tokens is None:
        return "-"
    return f"{100 * tokens / max(run.prompt_tokens, 1):.2f}"


def _rest_rate(use: MemoryUse, place: int) -> str:
    return "-" if use.rest_rates is None else f"{list(use.rest_rates.values())[place]:.2f}"


def _of_ranks(heading: str, cell: Callable[[DataParallelResult], str]) -> Column[RunResult]:
    """Return a column that only runs of several data-parallel ranks fill."""
    return Column(heading, lambda run: cell(run.data_parallel) if run.data_parallel else "-")


def _range_of_hits(ranks: DataParallelResult) -> str:
    return f"{min(ranks.hit_rates):.1f} to {max(ranks.hit_rates):.1f}"


def _moves(ranks: DataParallelResult) -> str:
    return f"{ranks.num_moves:,} / {ranks.num_sessions:,}" if ranks.num_sessions else "-"


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
TIER: tuple[Column[RunResult], ...] = (
    Column("tier hits\n% tokens", lambda run: _of_tier(run, _share_of_tier)),
    Column("tier MB\nper request", lambda run: _of_tier(run, _megabytes)),
    Column("tier ms\nper request", lambda run: _of_tier(run, _milliseconds)),
)
DISK: tuple[Column[RunResult], ...] = (
    _of_disk("of these from\nits disk", lambda run, disk: _percent(run, disk.hit_tokens)),
    _of_disk("GB written\nto the disk", lambda run, disk: f"{disk.written_bytes / 1e9:,.1f}"),
    _of_disk("GB read\nfrom it", lambda run, disk: f"{disk.read_bytes / 1e9:,.1f}"),
    _of_disk("not\nwritten", lambda run, disk: f"{disk.num_not_written:,}"),
    _of_disk("failed\nloads", lambda run, disk: f"{disk.num_failed_loads:,}"),
)
MEMORY: tuple[Column[RunResult], ...] = (
    _share("live\n%", "live"),
    _share("rows\n%", "rows"),
    _share("kept\ntails %", "kept_tails"),
    _share("mar-\nginal %", "marginal"),
    _share("super-\nseded %", "superseded"),
    _share("spares\n%", "spares"),
    _share("frag-\nments %", "fragments"),
    _share("empty\n%", "empty"),
)
LOST: tuple[Column[RunResult], ...] = (
    _of_memory("lost: no tail\n% tokens", lambda run, use: _percent(run, use.no_tail_tokens)),
    _of_memory("lost: no rows\n% tokens", lambda run, use: _percent(run, use.no_rows_tokens)),
    _of_memory("waited\nreqs", lambda run, use: f"{use.num_waited:,}"),
    _of_memory("without live:\nLRU", lambda run, use: _rest_rate(use, 0)),
    _of_memory("\nBelady", lambda run, use: _rest_rate(use, -1)),
)
COSTS: tuple[Column[RunResult], ...] = (
    Column("work\nsaved %", lambda run: f"{run.saved_work:.2f}"),
    Column("pre-\nempted", lambda run: f"{run.num_preemptions:,}"),
    Column("cached\nevicted", lambda run: f"{run.num_cached_blocks_evicted:,}"),
    Column("schedule() µs\np50 / p99", lambda run: _pair(run.schedule_us)),
    Column("add_request() µs\np50 / p99", lambda run: _pair(run.add_request_us)),
)
RANKS: tuple[Column[RunResult], ...] = (
    _of_ranks("ranks", lambda ranks: f"{ranks.num_ranks} by {ranks.routing}"),
    _of_ranks("hits of ranks\n% tokens", _range_of_hits),
    _of_ranks("computed\ntokens", lambda ranks: f"{sum(ranks.computed_tokens):,}"),
    _of_ranks("work\nmax / mean", lambda ranks: f"{ranks.work_imbalance:.2f}"),
    _of_ranks("live\nmax / mean", lambda ranks: f"{ranks.live_imbalance:.2f}"),
    _of_ranks("moves /\nsessions", _moves),
    _of_ranks("choice µs\np50 / p99", lambda ranks: _pair(ranks.choice_us)),
)
MODELLED: tuple[Column[RunResult], ...] = (
    Column("TTFT modelled, ms\np50 / p99", lambda run: _pair(run.modelled_ttft_ms)),
    Column("of those with half\ntheir prompt hit", lambda run: _pair(run.modelled_ttft_hit_ms)),
    Column("of the others\np50 / p99", lambda run: _pair(run.modelled_ttft_cold_ms)),
    Column("all, s\nmodelled", lambda run: _seconds(run.modelled_seconds)),
)


def that_tell(
    columns: Sequence[Column[OneRun]], runs: Iterable[OneRun]
) -> tuple[Column[OneRun], ...]:
    """Return the columns in which any run has something to tell."""
    each = list(runs)
    return tuple(column for column in columns if any(column.cell(run) != "-" for run in each))


def bound_lines(bounds: Bounds) -> list[tuple[str, str]]:
    """Return (granule, hit rate) of an unlimited cache, the finest granule first."""
    rates = {1: bounds.granule_1, 128: bounds.granule_128, **bounds.aligned}
    return [(f"{granule:,}", f"{rate:.2f}") for granule, rate in sorted(rates.items())]


def policy_lines(workload: WorkloadReport) -> list[tuple[str, str]]:
    """Return (textbook policy, hit rate) if they were asked for."""
    return [(name, f"{rate:.2f}") for name, rate in workload.policy_rates.items()]


def variant_lines(report: ReplayReport) -> list[tuple[str, str]]:
    """Return (variant, what it is and its block size) of all that were run and are described."""
    sizes: dict[tuple[str, str], list[int]] = {}
    for run in (run for workload in report.workloads for run in workload.runs if run.description):
        sizes.setdefault((run.variant, run.description), []).append(run.block_size)
    return [
        (name, f"{description}; block size {', '.join(map(str, dict.fromkeys(found)))}")
        for (name, description), found in sizes.items()
    ]


def header(report: ReplayReport, workload: WorkloadReport) -> str:
    """Return what all runs of a workload have in common, in one line."""
    runs = workload.runs
    drafts = {run.drafts for run in runs}
    ranks = [run.data_parallel for run in runs]
    common = {
        "layout": ", ".join(sorted({run.layout for run in runs})),
        "ranks": ", ".join(sorted({f"{of.num_ranks} by {of.routing}" for of in ranks if of})),
        "KV": ", ".join(f"{gib:g}" for gib in sorted({run.kv_memory_bytes / _GIB for run in runs})),
        # Runs with and without drafts say it themselves.
        "drafts": "".join(drafts) if len(drafts) == 1 else "",
        "vLLM": report.vllm_version,
        "seed": str(report.seed),
        "digest of the requests": workload.digest,
    }
    units = {"KV": " GiB" + (" each" if any(ranks) else "")}
    return ", ".join(
        f"{what} {value}{units.get(what, '')}" for what, value in common.items() if value
    )
