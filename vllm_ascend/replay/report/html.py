# SPDX-License-Identifier: Apache-2.0
"""The report as one self-contained page."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from vllm_ascend.replay.report import plots
from vllm_ascend.replay.report.figures import colours
from vllm_ascend.replay.report.page import write_page
from vllm_ascend.replay.report.rows import (
    BLOCK,
    CHECKED,
    COSTS,
    HITS,
    MODELLED,
    NAME,
    PREFIX_BLOCKS_ALONE,
    bound_lines,
    policy_lines,
    variant_lines,
)
from vllm_ascend.replay.results import ReplayReport, WorkloadReport


def write_html(report: ReplayReport, path: Path) -> None:
    """Write the page; it refers to nothing outside itself.

    Raises:
        OSError: The file cannot be written.
    """
    columns = (NAME, BLOCK, *HITS, CHECKED, *COSTS, *([MODELLED] if report.cost_model else []))
    write_page(
        "report.html.j2",
        path,
        report=report,
        columns=columns,
        variants=variant_lines(report),
        sections=[_section(workload) for workload in report.workloads],
    )


def _section(workload: WorkloadReport) -> dict[str, object]:
    bounds = bound_lines(workload.bounds)
    return {
        "workload": workload,
        "runs": list(zip(workload.runs, colours(len(workload.runs)), strict=True)),
        "bounds": [
            *((f"unlimited cache, granule {granule}", rate) for granule, rate in bounds),
            *((f"{PREFIX_BLOCKS_ALONE}: {name}", rate) for name, rate in policy_lines(workload)),
        ],
        "over_time": Markup(plots.hit_rate_over_time(workload)),
        "by_length": Markup(plots.hit_rate_by_length(workload)),
        "pools": [Markup(plots.pool_composition(run)) for run in workload.runs],
    }
