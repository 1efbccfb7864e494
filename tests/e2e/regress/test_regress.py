# SPDX-License-Identifier: Apache-2.0
"""``regress`` against the real ``vllm serve``: measures, is interrupted, goes on, judges.

One server for all tests, in their order; the last one ends it. ``vllm bench serve`` puts the load.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.e2e.server.server import GRANULE, Server, serve
from vllm_ascend_evaluation.models.tiny.maker import make_tiny_model

BEST = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1", "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
QUESTIONS = Path(__file__).with_name("questions.csv")
NUM_QUESTIONS = 8
ANSWERED = "vllm:request_success_total"
LOAD = (
    *("--tool", "vllm", "--input-tokens", "1000", "--output-tokens", "8", "--requests", "8"),
    *("--warmup", "0", "--repeats", "1", "--concurrency", "2"),
    *("--gpqa-file", str(QUESTIONS), "--gpqa-max-tokens", "100"),
)
_PATIENCE_S = 600


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("regress")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    make_tiny_model(folder / "model")
    with serve(folder / "model", folder / "log", BEST) as running:
        yield running


def start(server: Server, out: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the command with the test's load."""
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "vllm_ascend", "regress", "--url", server.url),
            *("--out", str(out), *LOAD, *arguments),
        ],
        env={**os.environ, "COLUMNS": "300"},  # no message is torn into lines
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(server: Server, out: Path, *arguments: str) -> tuple[int, str]:
    """Run the command to its end; return its exit code and what it said."""
    process = start(server, out, *arguments)
    output, errors = process.communicate(timeout=_PATIENCE_S)
    return process.returncode, output + errors


def wait_for_answers(out: Path, count: int) -> None:
    """Wait until so many questions are answered."""
    deadline = time.monotonic() + _PATIENCE_S
    file = out / "answers.jsonl"
    while not file.exists() or file.read_text().count("number") < count:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_an_interrupted_run_goes_on(server, folder):
    """The load is not put again, and only what was not answered is asked."""
    process = start(server, folder / "out")
    wait_for_answers(folder / "out", 2)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 130, output + errors
    assert "the same command goes on with it" in errors
    num_kept = (folder / "out" / "answers.jsonl").read_text().count("number")
    assert 2 <= num_kept < NUM_QUESTIONS
    deadline = time.monotonic() + 300
    while server.metric("vllm:num_requests_running"):
        assert time.monotonic() < deadline
        time.sleep(0.5)

    before = server.metric(ANSWERED)
    code, said = run(server, folder / "out", "--save-baseline", str(folder / "base.json"))
    assert code == 0, said
    assert server.metric(ANSWERED) - before == NUM_QUESTIONS - num_kept
    assert "there is no baseline to compare with" in said
    assert "performance is kept from before" in said


def test_it_reports_what_the_server_counted(server, folder):
    report = json.loads((folder / "out" / "regress.json").read_text())
    (load,) = report["performance"]["loads"]
    times, cache = load["times"], load["cache"]
    assert (times["requests"], times["output_tokens"]) == (8, 64)
    assert times["prompt_tokens"] == pytest.approx(8000, rel=0.05)
    # The first prompt is sent twice.
    assert cache["prompt_tokens"] == pytest.approx(times["prompt_tokens"] * 9 / 8, rel=0.01)
    # Once it hits all but its end, the others what all begin with: 900 tokens, more or less.
    assert cache["hit_tokens"] % GRANULE == 0
    assert 7 * 768 + 896 <= cache["hit_tokens"] <= 7 * 896 + 1024
    assert cache["source"] == "vllm_ascend:prefix_hit_tokens_sum"
    assert cache["hit_rate_percent"] == 100 * cache["hit_tokens"] / cache["prompt_tokens"]
    assert times["ttft_avg_ms"] > 0 and 0 < times["tpot_avg_ms"] <= 2 * times["tpot_p90_ms"]
    assert report["accuracy"]["settings"]["questions"] == NUM_QUESTIONS
    assert report["accuracy"]["cut"] <= NUM_QUESTIONS
    target = report["target"]
    assert (target["vllm_version"], target["root"]) == ("0.20.2", str(server.model))
    # As the process itself knows it, to a hundredth of a second.
    started = datetime.fromisoformat(target["started"]).timestamp()
    assert started == pytest.approx(server.metric("process_start_time_seconds"), abs=0.001)


def test_what_is_as_good_as_its_baseline_passes(server, folder):
    code, said = run(server, folder / "out", "--rejudge", "--baseline", str(folder / "base.json"))
    assert code == 0, said
    assert "no regression in 7 metrics" in said


def test_a_finished_run_is_not_passed_off_as_a_new_one(server, folder):
    before = server.metric(ANSWERED)
    code, said = run(server, folder / "out", "--baseline", str(folder / "base.json"))
    assert code == 2 and "holds a finished run" in said, said
    assert server.metric(ANSWERED) == before


def test_what_is_worse_than_its_baseline_does_not(server, folder):
    """The baseline is made better where a server gets worse that loses its prefix cache."""
    baseline = json.loads((folder / "base.json").read_text())
    (load,) = baseline["performance"]["loads"]
    load["cache"]["hit_tokens"] += load["cache"]["prompt_tokens"] // 100
    load["times"]["ttft_p90_ms"] *= 0.8
    (folder / "better.json").write_text(json.dumps(baseline))
    code, said = run(server, folder / "out", "--rejudge", "--baseline", str(folder / "better.json"))
    assert code == 1, said
    assert "2 of 7 metrics regressed: hit rate, TTFT P90" in said


def test_other_settings_are_refused(server, folder):
    code, said = run(server, folder / "out", "--shared-percent", "80")
    assert code == 2 and "shared_percent 90, now 80" in said, said


def test_a_server_that_dies_is_named(server, folder):
    process = start(server, folder / "dies", "--suite", "accuracy")
    wait_for_answers(folder / "dies", 1)
    server.process.kill()
    output, errors = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 2, output + errors
    assert f"{server.url}/v1/chat/completions: cannot be reached" in errors
    assert not (folder / "dies" / "regress.json").exists()
    code, said = run(server, folder / "dies", "--suite", "accuracy")
    assert code == 2 and "/v1/models: cannot be reached" in said, said
