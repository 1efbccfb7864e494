# SPDX-License-Identifier: Apache-2.0
"""The memory curve from hand-made runs: lines, bounds, table, picture, JSON."""

import io
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.ut.evaluation.replay.test_report import make_report, make_run
from vllm_ascend_evaluation.replay.curves.lines import (
    Line,
    MemoryCurve,
    Refusal,
    bytes_per_block,
    policy_lines,
    policy_rates,
)
from vllm_ascend_evaluation.replay.curves.policies import PrefixTrace
from vllm_ascend_evaluation.replay.report import curve_png, print_curve, write_json

GIB = 1 << 30


def make_curve(*runs) -> MemoryCurve:
    runs = runs or (
        make_run("best", kv_memory_bytes=8 * GIB),
        make_run("best", kv_memory_bytes=4 * GIB, hit_tokens=400),
        make_run("other", kv_memory_bytes=8 * GIB, hit_tokens=0),
    )
    bounds = (Line("LRU", {4 * GIB: 1.0, 8 * GIB: 2.0}), Line("Belady", {4 * GIB: 3.0}))
    refusals = tuple(Refusal(name, 4 * GIB, "too little") for name in ("other", "third"))
    return MemoryCurve(make_report(*runs), 1000, bounds, refusals)


def terminal(curve: MemoryCurve) -> str:
    console = Console(file=io.StringIO(), width=80)
    print_curve(curve, console)
    return console.file.getvalue()


def test_a_line_per_variant_of_runs_that_ended():
    unfinished = make_run("best", kv_memory_bytes=16 * GIB, complete=False)
    assert make_curve(unfinished).lines == (Line("best", {}),)
    assert make_curve().lines == (
        Line("best", {8 * GIB: 30.85, 4 * GIB: 10.0}),
        Line("other", {8 * GIB: 0.0}),
    )


def test_table():
    text = terminal(make_curve())
    assert max(map(len, text.splitlines())) <= 80
    rows = [line.split() for line in text.splitlines() if line.strip()[:2] in ("4 ", "8 ")]
    assert ["4", "10.00", "-", "1.00", "3.00"] in rows
    assert ["8", "30.85", "0.00", "2.00", "-"] in rows
    assert text.count("-  4 GiB refused for other / third: too little") == 1
    assert "1,000 bytes" in text


def test_picture(tmp_path):
    for curve in (make_curve(), make_curve(make_run(complete=False))):
        curve_png(curve, tmp_path / "curve.png")
        data = (tmp_path / "curve.png").read_bytes()
        assert data.startswith(b"\x89PNG") and len(data) > 10_000


def test_json(tmp_path):
    write_json(make_curve(), tmp_path / "curve.json")
    data = json.loads((tmp_path / "curve.json").read_text())
    assert len(data["workloads"][0]["runs"]) == 3
    assert data["bytes_per_block"] == 1000 and data["bound_block_tokens"] == 512
    assert data["bounds"][0] == {"name": "LRU", "rates": {str(4 * GIB): 1.0, str(8 * GIB): 2.0}}
    assert data["refusals"][0]["reason"] == "too little"


@pytest.mark.parametrize(("block_size", "num_bytes"), [(128, 28), (32, 7)])
def test_a_block_of_the_pool_counts_as_if_it_had_128_rows(block_size, num_bytes):
    other = make_run(layout="dsv4-flash-gpu")
    runs = (other, make_run(block_size=block_size, bytes_per_block=num_bytes))
    assert bytes_per_block(runs) == 28
    assert bytes_per_block([other]) is None


class _InTurn:
    """Two prompts of 512 tokens in turn."""

    def requests(self):
        prompts = ([number] * 512 for number in (1, 2, 1, 2))
        return (SimpleNamespace(prompt_token_ids=prompt) for prompt in prompts)


def test_what_policies_would_hit_in_the_memory_of_a_run():
    run = make_run(block_size=128, bytes_per_block=100, kv_memory_bytes=200)
    rates = policy_rates(_InTurn(), [run])
    assert list(rates) == ["LRU", "knows what comes again", "Belady (optimal)"]
    assert list(rates.values()) == pytest.approx([100 * 2 * 511 / 2048] * 3)
    assert policy_rates(_InTurn(), [replace(run, kv_memory_bytes=199)])["LRU"] == 0
    assert policy_rates(_InTurn(), [replace(run, layout="config.json")]) == {}


def test_of_another_layout_the_policies_have_no_lines(tmp_path):
    assert policy_lines(PrefixTrace.of([[1]], 1), [1], None) == ()
    curve = replace(make_curve(), bytes_per_block=None, bounds=())
    curve_png(curve, tmp_path / "curve.png")
    console = Console(file=io.StringIO(), width=80)
    print_curve(curve, console)
    assert "Belady" not in console.file.getvalue()


def test_capacity_is_memory_by_bytes_per_block():
    """Two prompts in turn, one block each: room for one is none, room for two is all."""
    in_turn = PrefixTrace.of([[1, 1], [2, 2], [1, 1], [2, 2]], 2)
    lru, knows, belady = policy_lines(in_turn, [199, 200], 100)
    assert lru.rates == {199: 0.0, 200: pytest.approx(25.0)}
    assert knows.rates == belady.rates  # the last time that a prompt comes, its block goes
    assert belady.rates == {199: pytest.approx(12.5), 200: pytest.approx(25.0)}
