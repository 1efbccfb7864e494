# SPDX-License-Identifier: Apache-2.0
"""Loads that are repeated, and those ahead for warming up."""

from tests.ut.evaluation.regress.chat_server import ChatServer
from tests.ut.evaluation.regress.gate.command import PERFORMANCE, invoke, report_of


def test_loads_are_repeated_behind_those_for_warming_up(tmp_path):
    """What is sent is counted: 2 + 3 loads of 6 requests, each with one ahead of it."""
    hits = iter([0, 0, 750, 700, 800])
    often = (*PERFORMANCE, "--warmup", "2", "--repeats", "3")
    with ChatServer(hits_of_load=lambda number: next(hits), requests_of_load=7) as server:
        result = invoke(server, tmp_path, *often)
    assert result.exit_code == 0, result.output
    assert [path for path, _ in server.bodies].count("/v1/completions") == 5 * 7
    report = report_of(tmp_path)
    rates = [load["cache"]["hit_rate_percent"] for load in report["performance"]["loads"]]
    assert rates == [75, 70, 80]
    hit_rate = report["verdicts"][0]
    assert hit_rate["now"] == {"median": 75, "min": 70, "max": 80, "loads": 3}
    assert hit_rate["noise"] == 10 and " 10.00 points not compared" in result.output
    assert "loads: 3 loads after 2 warm-up loads; medians are judged" in result.output


def test_an_interrupted_repetition_goes_on_with_the_next_load(tmp_path):
    often = (*PERFORMANCE, "--warmup", "1", "--repeats", "2")
    with ChatServer(fails_from=2 * 7) as server:
        assert invoke(server, tmp_path, *often).exit_code == 2
        server.fails_from, already = None, len(server.bodies)
        assert invoke(server, tmp_path, *often).exit_code == 0
        assert len(server.bodies) - already == 7
    assert len(report_of(tmp_path)["performance"]["loads"]) == 2


def test_a_baseline_of_fewer_loads_will_do_and_is_noted(tmp_path):
    base = tmp_path / "base.json"
    with ChatServer() as server:
        assert invoke(server, tmp_path, *PERFORMANCE, "--save-baseline", base).exit_code == 0
        more = (*PERFORMANCE, "--repeats", "2", "--baseline", base, "--restart")
        result = invoke(server, tmp_path, *more)
    assert result.exit_code == 0, result.output
    told = (
        "the baseline was measured with 1 load after 0 warm-up loads, this run with 2 loads after"
    )
    assert told in result.output
