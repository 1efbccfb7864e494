# SPDX-License-Identifier: Apache-2.0
"""The report as one self-contained page."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from vllm_ascend.replay.report import plots
from vllm_ascend.replay.report.rows import BLOCK, CHECKED, COSTS, HITS, MODELLED, NAME, bound_lines
from vllm_ascend.replay.results import ReplayReport, WorkloadReport


def write_html(report: ReplayReport, path: Path) -> None:
    """Write the page; it refers to nothing outside itself.

    Raises:
        OSError: The file cannot be written.
    """
    environment = Environment(
        loader=PackageLoader("vllm_ascend.replay", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html.j2")
    columns = (NAME, BLOCK, *HITS, CHECKED, *COSTS, *([MODELLED] if report.cost_model else []))
    page = template.render(
        report=report,
        columns=columns,
        sections=[_section(workload) for workload in report.workloads],
    )
    path.write_text(page, encoding="utf-8")


def _section(workload: WorkloadReport) -> dict[str, object]:
    return {
        "workload": workload,
        "runs": list(zip(workload.runs, plots.colours(len(workload.runs)), strict=True)),
        "bounds": bound_lines(workload.bounds),
        "over_time": Markup(plots.hit_rate_over_time(workload)),
        "by_length": Markup(plots.hit_rate_by_length(workload)),
        "pools": [Markup(plots.pool_composition(run)) for run in workload.runs],
    }
