# SPDX-License-Identifier: Apache-2.0
"""Servers and tools that fail, interruptions, and what is gone on with."""

import os
import signal
import subprocess
import threading
import time

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
)


def test_a_server_that_dies_among_questions(tmp_path):
    """What was answered is kept; the same command asks the rest."""
    arguments = (*ACCURACY, "--concurrency", "1")
    with ChatServer(fails_from=5) as server:
        result = invoke(server, tmp_path, *arguments)
        assert result.exit_code == 2, result.output
        assert "/v1/chat/completions: status 500: the engine died" in result.output
        assert "the same command goes on with it" in result.output
        assert not (tmp_path / "out" / "regress.json").exists()
        server.fails_from = None
        already = len(server.questions)
        result = invoke(server, tmp_path, *arguments)
        assert result.exit_code == 0, result.output
    assert len(server.questions) - already == NUM_QUESTIONS - 5
    assert report_of(tmp_path)["accuracy"]["settings"]["questions"] == NUM_QUESTIONS


def test_a_server_that_dies_behind_the_load(tmp_path):
    """The finished step is kept and is not measured again."""
    with ChatServer(fails_from=7) as server:
        result = invoke(server, tmp_path, *BOTH)
        assert result.exit_code == 2, result.output
        assert "0 of 8 questions were answered" in result.output
        assert "the server says: --url" in result.output and "the engine died" in result.output
        assert not (tmp_path / "out" / "regress.json").exists()
        server.fails_from = None
        result = invoke(server, tmp_path, *BOTH)
        assert result.exit_code == 0, result.output
    assert "performance is kept from before" in result.output
    assert [path for path, _ in server.bodies].count("/v1/completions") == 7
    assert any("performance is kept from before" in note for note in report_of(tmp_path)["notes"])


@pytest.mark.parametrize(
    ("behaviour", "what"),
    [
        ("fail", "ais_bench ended with 1 and 'no such model': see"),
        ("lose", "5 of 6 requests were answered"),
    ],
)
def test_a_tool_that_fails(tmp_path, monkeypatch, behaviour, what):
    monkeypatch.setenv("FAKE_AIS_BENCH", behaviour)
    with ChatServer() as server:
        result = invoke(server, tmp_path, *PERFORMANCE)
    assert result.exit_code == 2, result.output
    assert what in result.output and "ais_bench" in result.output
    assert not (tmp_path / "out" / "finished.json").exists()


def test_the_reason_of_requests_that_failed_is_told(tmp_path):
    """The tool keeps a status at most; the server says what is wrong."""
    with ChatServer(fails_from=0) as server:
        result = invoke(server, tmp_path, *PERFORMANCE)
        url = server.url
    assert result.exit_code == 2, result.output
    assert "0 of 6 requests were answered" in result.output
    assert f"says: --url {url}/v1/completions: status 500: the engine died" in result.output
    _, asked = server.bodies[-1]
    assert (len(asked["prompt"]), asked["max_tokens"], asked["model"]) == (1000, 8, "tiny")


def test_of_a_tool_that_fails_by_itself_nothing_is_said_of_the_server(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_AIS_BENCH", "fail")
    with ChatServer() as server:
        result = invoke(server, tmp_path, *PERFORMANCE)
    assert "no such model" in result.output and "the server says" not in result.output


def test_the_progress_of_a_finished_step_ends_at_its_end(tmp_path):
    """The tool may end long before the next look at the server's counters."""
    with ChatServer() as server:
        result = invoke(server, tmp_path, *BOTH)
    assert result.exit_code == 0, result.output
    assert " 6/6 " in result.output and " 8/8 " in result.output


def test_a_failed_run_leaves_a_finished_report(tmp_path, monkeypatch):
    with ChatServer() as server:
        assert invoke(server, tmp_path, *PERFORMANCE).exit_code == 0
        before = report_of(tmp_path)
        monkeypatch.setenv("FAKE_AIS_BENCH", "fail")
        assert invoke(server, tmp_path, *PERFORMANCE, "--restart").exit_code == 2
        assert report_of(tmp_path) == before
        assert (tmp_path / "out" / "regress.html").exists()
    assert invoke(server, tmp_path, *PERFORMANCE, "--restart").exit_code == 2
    assert report_of(tmp_path) == before


def test_an_interrupted_load_leaves_no_process(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_AIS_BENCH", "hang")
    runs = tmp_path / "out/tools/performance-ais_bench/runs"

    def interrupt():
        while not runs.is_dir():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt, daemon=True)
    with ChatServer() as server:
        thread.start()
        result = invoke(server, tmp_path, *PERFORMANCE)
    assert result.exit_code == 130, result.output
    assert "the same command goes on with it" in result.output
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(runs) not in listing


def test_an_interruption_among_questions(tmp_path, interruptible):
    def answer(number):
        if number == 3:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        return "ANSWER: A"

    with ChatServer(answer=answer) as server:
        arguments = (*ACCURACY, "--concurrency", "1")
        assert invoke(server, tmp_path, *arguments).exit_code == 130
        server.answer = lambda _: "ANSWER: A"
        assert invoke(server, tmp_path, *arguments).exit_code == 0
    # The fourth was under way when it was interrupted, and was asked again.
    assert len(server.questions) == NUM_QUESTIONS + 1


def test_ais_bench_goes_on_with_its_own_run(tmp_path):
    arguments = ("--suite", "accuracy", "--gpqa-file", QUESTIONS, "--tokenizer", "tokenizer")
    with ChatServer(fails_from=2) as server:
        assert invoke(server, tmp_path, *arguments).exit_code == 2
        server.fails_from = None
        result = invoke(server, tmp_path, *arguments)
    assert result.exit_code == 0, result.output
    assert report_of(tmp_path)["accuracy"]["settings"]["tool"] == "ais_bench"


@pytest.mark.parametrize("suite", [PERFORMANCE, ACCURACY])
def test_a_server_that_is_started_anew_meanwhile_is_noticed(tmp_path, suite):
    with ChatServer() as server:
        server.on_post = lambda: setattr(server, "started", 1_700_000_002.0)
        result = invoke(server, tmp_path, *suite)
    assert result.exit_code == 2 and "was started anew meanwhile" in result.output, result.output
    assert not (tmp_path / "out" / "finished.json").exists()
