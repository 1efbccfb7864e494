# SPDX-License-Identifier: Apache-2.0
"""A calibration as a table, a picture and the contents of its file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from matplotlib.axes import Axes
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vllm_ascend.server_access.server import Target
from vllm_ascend_evaluation.calibrate.measuring import Measured, Plan, Point
from vllm_ascend_evaluation.replay.cost.fit import Fit
from vllm_ascend_evaluation.replay.cost.model import CostModel
from vllm_ascend_evaluation.replay.cost.stored import StoredCostModel, layout_key
from vllm_ascend_evaluation.replay.report.figures import FAINT, picture, scale_by_decades

# Unit, and what has the time.
_MEANING = {
    "step_ms": ("ms", "per step: scheduling, launches"),
    "token_us": ("µs", "per computed token: dense layers, experts"),
    "request_us": ("µs", "per request of a step: inputs, sampling, answer"),
    "prefill_pair_ns": ("ns", "per pair of tokens of a step: attention of prompts"),
    "prefill_context_ns": ("ns", "per pair with a token before it: attention of prompts"),
    "decode_row_ns": ("ns", "per token of context: attention of answers"),
    "front_end_ms": ("ms", "per request, beside steps: HTTP, checks"),
}


def stored_model(
    found: Fit, measured: Measured, plan: Plan, target: Target, layout: str
) -> StoredCostModel:
    """Return what the file of a calibration holds."""
    return StoredCostModel(
        model=found.model,
        layout=layout_key(layout),
        host=urlsplit(target.url).netloc,
        vllm=target.vllm_version or "unknown",
        served_model=plan.model,
        settings={
            "max_num_batched_tokens": plan.chunk,
            "longest_prompt": plan.longest,
            "most_requests": plan.most_requests,
            "data_parallel_ranks": plan.num_ranks,
            "seconds": plan.seconds,
            "server_started": target.started,
        },
        num_fitted=found.num_fitted,
        error_percent=found.error._asdict(),
        points=tuple(_told(point, found.model) for point in measured.points),
        complete=not measured.interrupted,
    )


def _told(point: Point, model: CostModel) -> dict[str, float]:
    """Return a point in ms: of whole prompts, or of one step of the answers, a token each."""
    shot, seen = point
    is_prefill = seen.num_arrivals > 0
    num_steps = 1 if is_prefill else seen.work.num_steps
    return {
        "prompt_tokens": shot.prompt_tokens,
        "computed_tokens": seen.work.num_tokens if is_prefill else 1,
        "num_requests": shot.num_requests,
        "is_prefill": is_prefill,
        "measured_ms": seen.duration_ms / num_steps,
        "modelled_ms": seen.said_ms(model) / num_steps,
    }


def print_calibration(stored: StoredCostModel, console: Console) -> None:
    """Print the terms of a fit, and its error on the points kept apart."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("term", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("", overflow="fold")
    for name, value in vars(stored.model).items():
        table.add_row(name, f"{value:.4g}", *_MEANING[name])
    of = f"{stored.served_model} at {stored.host}, vLLM {stored.vllm}, layout {stored.layout}"
    console.print(f"[bold]{escape(of)}[/]\n", highlight=False)
    console.print(table)
    error = stored.error_percent
    console.print(
        f"\nfitted to {stored.num_fitted} measurements; error on {error['num_points']:.0f} kept "
        f"apart: median {error['median']:.1f} %, p90 {error['p90']:.1f} %, "
        f"worst {error['worst']:.1f} %",
        highlight=False,
        soft_wrap=True,
    )


def calibration_png(stored: StoredCostModel, path: Path) -> None:
    """Write the picture: times of prompts and of answers, measured and as the model has them.

    Raises:
        OSError: The file cannot be written.
    """
    prefills = [point for point in stored.points if point["is_prefill"]]
    decodes = [point for point in stored.points if not point["is_prefill"]]
    with picture(path) as figure:
        left, right = figure.subplots(1, 2)
        computed = [point["computed_tokens"] for point in prefills]
        _draw(left, computed, prefills, "computed tokens of prompts", "time to first tokens, ms")
        rows = [point["prompt_tokens"] * point["num_requests"] for point in decodes]
        _draw(right, rows, decodes, "tokens of context, all requests", "time per token, ms")
        figure.legend(
            *left.get_legend_handles_labels(), loc="outside upper left", ncols=2, frameon=False
        )


def _draw(
    axes: Axes, x: Sequence[float], points: Sequence[dict[str, float]], xlabel: str, ylabel: str
) -> None:
    measured = [point["measured_ms"] for point in points]
    modelled = [point["modelled_ms"] for point in points]
    axes.plot(x, measured, "o", markersize=4, label="measured")
    axes.plot(x, modelled, "x", markersize=5, color=FAINT, label="modelled")
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if not points:
        return
    scale_by_decades(axes)
    axes.tick_params(axis="x", labelsize=8)
