# SPDX-License-Identifier: Apache-2.0
"""The report as one self-contained page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from markupsafe import Markup

from vllm_ascend_evaluation.replay.report import plots
from vllm_ascend_evaluation.replay.report.colours import UNLIMITED, variant_colours
from vllm_ascend_evaluation.replay.report.page import write_page
from vllm_ascend_evaluation.replay.report.rows import (
    BLOCK,
    CHECKED,
    COSTS,
    DISK,
    HITS,
    LOST,
    MEMORY,
    MODELLED,
    NAME,
    PREFIX_BLOCKS_ALONE,
    RANKS,
    TIER,
    Column,
    bound_lines,
    policy_lines,
    that_tell,
    variant_lines,
)
from vllm_ascend_evaluation.replay.results import ReplayReport, RunResult, WorkloadReport


def write_html(report: ReplayReport, path: Path) -> None:
    """Write the page; it refers to nothing outside itself.

    Raises:
        OSError: The file cannot be written.
    """
    write_page(
        "report.html.j2",
        path,
        report=report,
        colours=variant_colours(report),
        unlimited_colour=UNLIMITED,
        variants=variant_lines(report),
        policy_words=PREFIX_BLOCKS_ALONE,
        sections=[_section(workload, variant_colours(report)) for workload in report.workloads],
    )


def _section(workload: WorkloadReport, colours: Mapping[str, str]) -> dict[str, object]:
    tables: list[tuple[Column[RunResult], ...]] = [
        (NAME, BLOCK, *HITS, CHECKED),
        (NAME, *COSTS, *MODELLED, *TIER, *DISK),
    ]
    by_rank = None
    if any(run.data_parallel for run in workload.runs):
        tables.append((NAME, *RANKS))
        by_rank = Markup(plots.hit_rate_by_rank(workload, colours))
    if any(run.memory for run in workload.runs):
        tables.append((NAME, *MEMORY, *LOST))
    return {
        "workload": workload,
        "tables": [that_tell(columns, workload.runs) for columns in tables],
        "bounds": bound_lines(workload.bounds),
        "policies": policy_lines(workload),
        "over_time": Markup(plots.hit_rate_over_time(workload, colours)),
        "by_length": Markup(plots.hit_rate_by_length(workload, colours)),
        "by_rank": by_rank,
        "pools": [Markup(plots.pool_composition(run)) for run in workload.runs],
    }
