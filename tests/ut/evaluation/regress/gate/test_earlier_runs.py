# SPDX-License-Identifier: Apache-2.0
"""What is in ``--out`` already, and baselines of other loads."""

import pytest

from tests.ut.evaluation.regress.chat_server import ChatServer
from tests.ut.evaluation.regress.gate.command import (
    ACCURACY,
    BOTH,
    NUM_QUESTIONS,
    PERFORMANCE,
    QUESTIONS,
    invoke,
    report_of,
    run_command,
)


def test_another_run_is_not_mixed_in(tmp_path):
    with ChatServer() as server:
        assert invoke(server, tmp_path, *PERFORMANCE).exit_code == 0
        other = (*PERFORMANCE, "--requests", "7")
        result = invoke(server, tmp_path, *other)
        assert result.exit_code == 2 and "requests 6, now 7" in result.output
        assert invoke(server, tmp_path, *other, "--restart").exit_code == 0
    assert report_of(tmp_path)["performance"]["loads"][0]["times"]["requests"] == 7


def test_another_load_is_not_compared(tmp_path):
    base = tmp_path / "base.json"
    with ChatServer() as server:
        invoke(server, tmp_path, *PERFORMANCE, "--save-baseline", base)
        already = len(server.bodies)
        other = (*PERFORMANCE, "--baseline", base, "--restart", "--requests", "7")
        result = invoke(server, tmp_path, *other)
        assert result.exit_code == 2
        assert "performance was measured otherwise" in result.output
        result = invoke(server, tmp_path, *BOTH, "--baseline", base, "--restart")
        assert result.exit_code == 2 and "accuracy was not measured then" in result.output
    assert len(server.bodies) == already


def test_a_finished_run_is_not_passed_off_as_a_new_one(tmp_path):
    """Twice with the same --out: no load is sent, so there is no verdict either."""
    base = tmp_path / "base.json"
    with ChatServer() as server:
        assert invoke(server, tmp_path, *PERFORMANCE, "--save-baseline", base).exit_code == 0
        before, already = report_of(tmp_path), len(server.bodies)
        result = invoke(server, tmp_path, *PERFORMANCE, "--baseline", base)
        assert result.exit_code == 2, result.output
        assert "holds a finished run" in result.output and "--rejudge" in result.output
        assert (report_of(tmp_path), len(server.bodies)) == (before, already)


def rejudge(folder, *arguments):
    arguments = ("regress", "--rejudge", "--out", folder / "out", *arguments)
    return run_command(*map(str, arguments))


def test_a_finished_run_is_judged_anew_without_the_server_and_without_what_it_was_measured_with(
    tmp_path,
):
    base = tmp_path / "base.json"
    with ChatServer() as server:
        assert invoke(server, tmp_path, *BOTH, "--save-baseline", base).exit_code == 0
    result = rejudge(tmp_path, "--baseline", base)
    assert result.exit_code == 0, result.output
    assert "no regression in 7 metrics" in result.output
    report = report_of(tmp_path)
    assert "performance is kept from before (--restart measures anew)" in report["notes"]
    assert report["performance"]["finished"] in result.output
    result = rejudge(tmp_path, "--baseline", base, "--suite", "performance")
    assert "no regression in 6 metrics" in result.output
    assert invoke(server, tmp_path, *BOTH, "--baseline", base, "--rejudge").exit_code == 0


CONTRADICTIONS = {
    "--url http://other:1": "http://127.0.0.1:",
    "--suite accuracy": "performance",
    "--requests 7": "6",
    "--warmup 3": "0",
    "--tool vllm": "ais_bench",
    "--model other": "tiny",
}


def test_an_option_that_contradicts_the_run_is_one_error(tmp_path):
    with ChatServer() as server:
        assert invoke(server, tmp_path, *PERFORMANCE).exit_code == 0
    for given, recorded in CONTRADICTIONS.items():
        result = rejudge(tmp_path, *given.split())
        assert result.exit_code == 2
        told = f"error: {given}: the run in {tmp_path / 'out'} was measured with {recorded}"
        assert result.output.startswith(told), result.output


def test_other_questions_contradict_the_run(tmp_path):
    with ChatServer() as server:
        assert invoke(server, tmp_path, *ACCURACY).exit_code == 0
    other = tmp_path / "other.csv"
    other.write_text(QUESTIONS.read_text().replace("a", "b"))
    result = rejudge(tmp_path, "--gpqa-file", other)
    assert result.exit_code == 2
    assert result.output.startswith(f"error: --gpqa-file {other} (digest ")
    assert rejudge(tmp_path, "--gpqa-file", QUESTIONS).exit_code == 0


def test_a_step_that_was_interrupted_is_not_passed_over(tmp_path):
    with ChatServer(fails_from=9) as server:
        assert invoke(server, tmp_path, *BOTH, "--concurrency", "1").exit_code == 2
    result = rejudge(tmp_path)
    assert result.exit_code == 2, result.output
    assert f"--rejudge: accuracy is not finished in {tmp_path / 'out'}" in result.output
    assert rejudge(tmp_path, "--suite", "performance").exit_code == 0


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"started": 1_700_000_001.0}, "server: started"),
        ({"root": "/models/other"}, "server: root '/models/tiny', now '/models/other'"),
        ({"version": "0.20.3"}, "server: vllm_version '0.20.2', now '0.20.3'"),
    ],
)
def test_an_interrupted_run_does_not_go_on_with_another_server(tmp_path, change, what):
    arguments = (*ACCURACY, "--concurrency", "1")
    with ChatServer(fails_from=5) as server:
        assert invoke(server, tmp_path, *arguments).exit_code == 2
        server.fails_from = None
        for name, value in change.items():
            setattr(server, name, value)
        result = invoke(server, tmp_path, *arguments)
        assert result.exit_code == 2 and what in result.output, result.output
        assert len(server.questions) == 6
        assert invoke(server, tmp_path, *arguments, "--restart").exit_code == 0


def test_a_server_that_hides_its_start_is_not_taken_for_the_same(tmp_path):
    """With several API servers vLLM's /metrics does not say when it started."""
    arguments = (*ACCURACY, "--concurrency", "1")
    with ChatServer(fails_from=5, started=None) as server:
        assert invoke(server, tmp_path, *arguments).exit_code == 2
        server.fails_from = None
        result = invoke(server, tmp_path, *arguments)
        assert result.exit_code == 2 and "--same-server" in result.output, result.output
        assert len(server.questions) == 6
        assert invoke(server, tmp_path, *arguments, "--same-server").exit_code == 0
    assert len(server.questions) == 6 + NUM_QUESTIONS - 5
