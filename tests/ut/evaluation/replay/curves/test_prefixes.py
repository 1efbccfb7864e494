# SPDX-License-Identifier: Apache-2.0
"""The curve over the number of prefixes from hand-made runs, and the memory behind its tokens."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.ut.evaluation.replay.test_report import make_report, make_run
from vllm_ascend.dry_run.layouts import from_hf_config
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, kv_memory_for
from vllm_ascend_evaluation.replay.curves.lines import Line, PrefixCurve
from vllm_ascend_evaluation.replay.curves.prefixes import GEMMA
from vllm_ascend_evaluation.replay.report import prefix_curve_png, print_prefix_curve, write_json


def make_curve() -> PrefixCurve:
    few = make_report(make_run("stock", hit_tokens=2000), make_run("pinned", hit_tokens=2400))
    many = make_report(
        make_run("stock", hit_tokens=0), make_run("pinned", hit_tokens=2000, complete=False)
    )
    workloads = (
        replace(few.workloads[0], workload="5x3:1:1:1"),
        replace(many.workloads[0], workload="9x3:1:1:1"),
    )
    names = {"5x3:1:1:1": 5, "9x3:1:1:1": 9}
    return PrefixCurve(replace(few, workloads=workloads), names, 3, 1000)


def test_rates_leave_the_first_round_out_and_unfinished_runs():
    """2,000 of 4,000 prompt tokens over three rounds are 2,000 of the 2,667 that can be hit."""
    stock, pinned = make_curve().lines
    assert stock == Line("stock", {5: pytest.approx(75.0), 9: 0.0})
    assert pinned == Line("pinned", {5: pytest.approx(90.0)})


def test_table():
    console = Console(file=io.StringIO(), width=80)
    print_prefix_curve(make_curve(), console)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    rows = [line.split() for line in text.splitlines()]
    assert ["5", "75.00", "90.00"] in rows
    assert ["9", "0.00", "-"] in rows
    assert "KV cache of 1,000 tokens" in text


def test_picture_and_json(tmp_path):
    curve = make_curve()
    prefix_curve_png(curve, tmp_path / "curve.png")
    data = (tmp_path / "curve.png").read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) > 10_000
    write_json(curve, tmp_path / "curve.json")
    written = json.loads((tmp_path / "curve.json").read_text())
    assert written["warm_rates"][0]["rates"]["9"] == 0.0
    assert (written["kv_tokens"], written["num_rounds"]) == (1000, 3)


def test_memory_is_what_vllm_would_log_as_so_many_tokens():
    """Ten requests of the greatest length are ten times that length."""
    layout = from_hf_config(Path(GEMMA), 16)
    options = SchedulerOptions(num_blocks=1, max_model_len=32_768)
    memory = kv_memory_for(layout, 10 * 32_768, options)
    sized = replace(options, num_blocks=None, kv_memory_bytes=memory)
    config = build_scheduler(layout, sized).kv_cache_config
    # A window holds itself and a step's tokens, and starts anywhere in its first block.
    window = -(-(1023 + 8192) // 16) + 1
    assert len(config.kv_cache_groups) == 7
    assert config.num_blocks == pytest.approx(10 * (32_768 // 16 + 6 * window), abs=2)
