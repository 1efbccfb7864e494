# SPDX-License-Identifier: Apache-2.0
"""Table, JSON, page and picture from one hand-made report."""

import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

from vllm_ascend_evaluation.replay.report import print_report, summary_png, write_html, write_json
from vllm_ascend_evaluation.replay.results import (
    Bounds,
    LengthBucket,
    Percentiles,
    ReplayReport,
    RunResult,
    Sample,
    WorkloadReport,
)


def make_run(variant: str = "retention-0", **changes) -> RunResult:
    run = RunResult(
        variant=variant,
        settings={"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "0"},
        workload="W1",
        layout="dsv4-flash-a3",
        block_size=32,
        num_speculative_tokens=0,
        alignment_tokens=4096,
        kv_memory_bytes=16 << 30,
        num_blocks=20_427,
        bytes_per_block=841_032,
        num_requests=4,
        num_requests_hit=3,
        prompt_tokens=4000,
        hit_tokens=1234,
        prompt_work=4040.0,
        hit_work=1010.0,
        num_preemptions=5,
        peak_used_blocks=6789,
        num_cached_blocks_evicted=77,
        num_steps=10,
        seconds=1.5,
        schedule_us=Percentiles(12.0, 345.0, 345.0),
        add_request_us=Percentiles(1000.0, 2000.0, 2000.0),
        modelled_ttft_ms=None,
        samples=(Sample(1, 1, 1000, 0, 10, 5, 85), Sample(5, 4, 4000, 1234, 40, 30, 30)),
        buckets=(LengthBucket(0, 1024, 4, 4000, 1234), LengthBucket(131_072, 1 << 40, 1, 9, 1)),
        complete=True,
        violations=(),
        verified=True,
    )
    return replace(run, **changes)


def make_report(*runs: RunResult, **changes) -> ReplayReport:
    workload = WorkloadReport(
        "W1",
        "4 prompts <of> a kind",
        "0123456789abcdef",
        Bounds(89.71, 88.78, {4096: 49.84}),
        runs or (make_run("upstream-like", hit_tokens=0), make_run()),
    )
    report = ReplayReport("python -m vllm_ascend replay", 7, "0.20.2", {}, (workload,), True)
    return replace(report, **changes)


def table(report: ReplayReport, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_report(report, console)
    return console.file.getvalue()


def test_rates():
    run = make_run()
    assert run.hit_rate == pytest.approx(30.85)
    assert run.request_hit_rate == 75.0
    assert make_run(prompt_tokens=0, num_requests=0).hit_rate == 0.0


def test_table_fits_80_columns_and_says_it_all():
    text = table(make_report())
    assert max(map(len, text.splitlines())) <= 80
    for expected in ("30.85", "75.0", "1,234", "6,789 / 20,427", "77", "12 / 345", "ok"):
        assert expected in text
    for expected in ("89.71 % (1)", "88.78 % (128)", "49.84 % (4,096)", "seed 7", "16 GiB"):
        assert expected in text.replace("\n", " ")
    assert "modelled" not in text


def test_textbook_policies_stand_beside_the_unlimited_cache(tmp_path):
    report = make_report()
    (workload,) = report.workloads
    rates = {"LRU": 10.334, "Belady (optimal)": 21.57}
    asked = replace(report, workloads=(replace(workload, policy_rates=rates),))
    said = "prefix blocks of 512 tokens alone in this memory: LRU 10.33 %, Belady (optimal) 21.57 %"
    assert said in table(asked, width=100) and said not in table(report, width=100)
    write_html(asked, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    page = " ".join(page.split())
    assert "in this memory: LRU 10.33 %, Belady (optimal) 21.57 %." in page
    write_json(asked, tmp_path / "report.json")
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["workloads"][0]["policy_rates"] == rates


def test_table_keeps_its_numbers_together_in_long_runs():
    """At 80 columns, with a long name and numbers of a real trace."""
    long = make_run(
        "stock@dsv4-flash-gpu",
        hit_tokens=12_286_592,
        num_cached_blocks_evicted=9_568_037,
        num_blocks=81_709,
        peak_used_blocks=11_294,
        schedule_us=Percentiles(24_252.0, 245_277.0, 245_277.0),
        add_request_us=Percentiles(194_905.0, 298_064.0, 298_064.0),
        modelled_ttft_ms=Percentiles(194_905.0, 298_064.0, 298_064.0),
    )
    text = table(make_report(long, cost_model={"step_ms": 20.0}))
    assert max(map(len, text.splitlines())) <= 80
    for number in ("24,252 / 245,277", "194,905 / 298,064", "11,294 / 81,709", "9,568,037"):
        assert number in text


def test_a_narrow_terminal_gets_lists_of_the_same_numbers():
    text = table(make_report(), width=40)
    assert max(map(len, text.splitlines())) <= 40
    for line in ("upstream-like", "retention-0", "hits % tokens: 30.85", "preempted: 5"):
        assert line in [found.strip() for found in text.splitlines()]
    assert "blocks peak / all: 6,789 / 20,427" in text


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("num_violations", [1, 12, 1234])
@pytest.mark.parametrize(
    "name",
    [
        "best",
        "stock@dsv4-flash-gpu",
        "mine:VLLM_PREFIX_CACHE_RETENTION_INTERVAL=16384,VLLM_ASCEND_DSV4_PARTIAL_HITS=1",
    ],
)
def test_a_verdict_is_never_cut_off(name, num_violations, width):
    """Neither by a long name nor by wide numbers nor by a narrow terminal."""
    run = make_run(
        name,
        complete=False,
        violations=("row",) * num_violations,
        block_size=256,
        hit_tokens=112_286_592,
        prompt_tokens=112_286_592,
        num_requests=4,
        num_requests_hit=4,
        num_blocks=1_081_709,
        peak_used_blocks=1_011_294,
    )
    text = table(make_report(run, make_run(verified=False)), width)
    assert f"{num_violations} WRONG" in text
    if width == 80:
        assert max(map(len, text.splitlines())) <= 80
        for number in ("112,286,592", "1,011,294 / 1,081,709", "100.00"):
            assert number in text


def test_drafts_are_in_the_heading_if_all_runs_have_them():
    drafting = make_run("best", num_speculative_tokens=1)
    assert "drafts mtp:1" in table(make_report(drafting))
    assert "MTP" not in table(make_report(drafting, make_run()))
    assert "MTP" not in table(make_report(make_run()))


def test_names_are_not_taken_for_markup(tmp_path):
    report = make_report(make_run("mine[/b]"))
    report = replace(report, workloads=(replace(report.workloads[0], workload="x[/y].jsonl"),))
    assert "mine[/b]" in table(report) and "x[/y].jsonl" in table(report)


def test_modelled_times_are_labelled():
    run = make_run(
        modelled_ttft_ms=Percentiles(50.0, 99.0, 99.0),
        modelled_ttft_hit_ms=Percentiles(40.0, 60.0, 60.0),
        modelled_seconds=1234.5,
    )
    report = make_report(run, cost_model={"step_ms": 20.0, "token_us": 60.0})
    text = table(report)
    assert "modelled" in text and "50 / 99" in text
    assert "40 / 60" in text and "1,234.5" in text and "of the others" not in text
    assert "step_ms 20, token_us 60" in text


def test_violations_and_partial_runs_stand_out():
    report = make_report(make_run(violations=("row 3 is foreign",), complete=False))
    assert "1 WRONG" in table(report)
    assert "(partial)" in table(report)
    assert report.violations == ["W1 on retention-0: row 3 is foreign"]


def test_json_round_trip(tmp_path):
    report = make_report()
    write_json(report, tmp_path / "report.json")
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["schema_version"] == 1
    runs = data["workloads"][0]["runs"]
    assert tuple(map(RunResult.from_dict, runs)) == report.workloads[0].runs
    assert runs[1]["hit_rate_percent"] == 30.85
    assert runs[1]["saved_work_percent"] == 25
    assert list(tmp_path.iterdir()) == [tmp_path / "report.json"]


def page(report: ReplayReport, folder) -> str:
    write_html(report, folder / "report.html")
    return (folder / "report.html").read_text()


def test_page_is_self_contained(tmp_path):
    text = page(make_report(), tmp_path)
    # What remains are names of XML vocabularies inside the SVGs; nothing is loaded.
    assert not re.search(
        r"<(script|link|img|iframe|object|embed)\b|@import|url\(\s*['\"]?https?:", text
    )
    assert not re.search(r"\b(src|href)\s*=\s*['\"]https?:", text)
    assert text.count("<svg") == 4  # over time, by length, and a pool per run
    assert "30.85" in text and "upstream-like" in text
    assert "&lt;of&gt;" in text
    assert "partial" not in text and "Violation" not in text


def test_page_says_what_went_wrong(tmp_path):
    report = make_report(make_run(violations=("row <3>",)), complete=False)
    text = page(report, tmp_path)
    assert "this report is partial" in text
    assert "Violation: W1 on retention-0: row &lt;3&gt;" in text


def test_page_says_which_runs_died(tmp_path):
    report = make_report(complete=False, failures=("W1 on <x> ended with exit code 9",))
    assert "W1 on &lt;x&gt; ended with exit code 9" in page(report, tmp_path)
    write_json(report, tmp_path / "report.json")
    failures = json.loads((tmp_path / "report.json").read_text())["failures"]
    assert failures == ["W1 on <x> ended with exit code 9"]


def test_picture(tmp_path):
    summary_png(make_report(), tmp_path / "summary.png")
    data = (tmp_path / "summary.png").read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) > 10_000


def test_a_report_of_nothing_is_still_a_report(tmp_path):
    empty = replace(make_report(), workloads=(), complete=False)
    write_json(empty, tmp_path / "report.json")
    assert "partial" in page(empty, tmp_path)
    summary_png(empty, tmp_path / "summary.png")
