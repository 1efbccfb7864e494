# SPDX-License-Identifier: Apache-2.0
"""``goodput`` against a runner that runs nothing, and its search against any threshold."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ut.evaluation.replay.test_commands import PNG, invoke, runner
from vllm_ascend_evaluation.replay.curves.speeds import SLOWEST, SpeedSearch

__all__ = ["runner"]  # a fixture

FILES = ("--json", "out/g.json", *PNG)
CHAT = ("--workload", "chat:2", "--variant", "upstream-like", "--variant", "best")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def searched(threshold):
    """Return what a search finds where a promise is broken from a speed on, and its runs."""
    search, num_runs = SpeedSearch(), 0
    while (speed := search.next_speed()) is not None:
        search.tell(speed, is_kept=speed < threshold)
        num_runs += 1
    return search.kept, num_runs


@given(st.floats(-9.9, 9.9))
def test_the_search_ends_right_below_the_threshold(exponent):
    threshold = 2.0**exponent
    kept, num_runs = searched(threshold)
    assert kept < threshold <= 1.05 * kept
    assert num_runs <= 7 + abs(exponent)


def test_what_nobody_can_keep_takes_two_runs():
    assert searched(SLOWEST / 2) == (None, 2)


def test_a_promise_that_always_holds_ends_the_search():
    kept, num_runs = searched(1e9)
    assert kept == 1024 and num_runs == 11


def test_the_goodput_of_each_variant(runner, tmp_path):
    runner.too_fast = {"upstream-like": 0.6, "best": 1.3}
    result = invoke("goodput", *CHAT, *FILES)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out" / "g.json").read_text())
    assert report["slo"] == "TTFT <= 5 s for 99 % of requests"
    goodput = report["goodput"]
    assert 0.57 < goodput["upstream-like"] / 2 < 0.6 and 1.25 < goodput["best"] / 2 < 1.3
    rows = [line.split() for line in result.output.splitlines() if line.startswith("best ")]
    assert ["best", "2.59", "1.3", "2.18", "30.85"] in rows
    assert ["best", "0.10", "/", "0.20", "/", "0.30", "100", "/", "200", "/", "300"] in rows
    assert (tmp_path / "out" / "summary.png").read_bytes().startswith(b"\x89PNG")
    speeds = [load["speed"] for load in report["loads"] if load["variant"] == "best"]
    assert speeds == sorted(speeds) and speeds[0] == 1.0


def test_one_that_keeps_it_at_no_load_is_named(runner):
    runner.too_fast = {"upstream-like": 0.0}
    result = invoke("goodput", *CHAT, *FILES)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "upstream-like: at no load, for of 0.00195 requests per s 50.00 % are served so" in said


def test_a_promise_that_nobody_keeps_is_refused(runner, tmp_path):
    runner.too_fast = {"upstream-like": 0.0, "best": 0.0}
    result = invoke("goodput", *CHAT, *FILES, "--slo", "tpot=1ms")
    assert result.exit_code == 2
    error = "error: --slo tpot=1ms: no variant keeps it at any load; of requests that come one by "
    assert error in " ".join(result.output.split())
    assert not list(tmp_path.glob("out/*"))


def test_a_search_that_is_interrupted_in_its_first_run_leaves_what_there_is(
    runner, tmp_path, monkeypatch
):
    monkeypatch.setattr(runner, "is_complete", False)
    runner.outcome = {"interrupted": True}
    result = invoke("goodput", *CHAT, *FILES)
    assert result.exit_code == 130, result.output
    report = json.loads((tmp_path / "out" / "g.json").read_text())
    assert report["goodput"] == {"upstream-like": None, "best": None} and not report["complete"]
    assert (tmp_path / "out" / "summary.png").read_bytes().startswith(b"\x89PNG")


def test_ranks_and_tiers_stand_side_by_side(runner, tmp_path):
    options = ("--data-parallel", "1", "--data-parallel", "2", "--tier-gib", "0", "--tier-gib", "8")
    both = ("--dp-routing", "vllm", "--dp-routing", "cache")
    result = invoke("goodput", *CHAT[:4], *options, *both, *FILES)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out" / "g.json").read_text())
    assert list(report["goodput"]) == [
        f"upstream-like, {setup}"
        for setup in (
            *("1 rank", "1 rank, tier 8 GiB", "2 ranks", "2 ranks, tier 8 GiB"),
            *("2 ranks by cache", "2 ranks by cache, tier 8 GiB"),
        )
    ]
    last = max(runner.jobs, key=lambda job: len(job.variant))
    assert (last.num_ranks, last.dp_routing, last.tier_gib) == (2, "cache", 8.0)
    assert last.environment["VLLM_ASCEND_DP_ROUTING"] == "cache"


def test_one_setup_leaves_a_variant_its_name(runner, tmp_path):
    assert invoke("goodput", *CHAT, "--data-parallel", "2", *FILES).exit_code == 0
    assert {job.variant for job in runner.jobs} == {"upstream-like", "best"}
    assert {job.num_ranks for job in runner.jobs} == {2}


@pytest.mark.parametrize("ranks", [(), ("--data-parallel", "1")])
def test_one_rank_alone_has_nobody_to_choose(runner, ranks):
    result = invoke("goodput", *CHAT, *ranks, "--dp-routing", "cache", *FILES)
    assert result.exit_code == 2
    assert "--dp-routing cache: needs --data-parallel" in " ".join(result.output.split())
