# SPDX-License-Identifier: Apache-2.0
"""``replay --url`` against a real server: hits, arrivals, failures, what is written."""

import itertools
import json
import os
import re
import signal
import socket
import threading

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.ut.evaluation.replay.http.completions_server import CompletionsServer
from vllm_ascend.__main__ import app


def invoke(server, folder, *arguments: str):
    url = server if isinstance(server, str) else server.url
    arguments = ("replay", "--url", url, "--out", str(folder / "out"), *arguments)
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})


def report_of(folder):
    return json.loads((folder / "out" / "report.json").read_text())


def only_run(folder):
    (workload,) = report_of(folder)["workloads"]
    (run,) = workload["runs"]
    return workload, run


def write_trace(folder, num_requests, *, every_ms=0, lengths=(1300,)):
    """Conversations in three threads: each request repeats the blocks of the one before."""
    records = []
    for i, length in zip(range(num_requests), itertools.cycle(lengths), strict=False):
        num_blocks = -(-length // 512)
        ids = [1000 * (i % 3) + block for block in range(num_blocks - 1)] + [10_000 + i]
        records.append(
            {
                "timestamp": 5000 + every_ms * i,
                "input_length": length,
                "output_length": 3,
                "hash_ids": ids,
            }
        )
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def count_hits(prompts, block):
    """Count by brute force what a cache of such blocks hits that never forgets."""
    hits = []
    for i, prompt in enumerate(prompts):
        longest = 0
        for earlier in prompts[:i]:
            common = 0
            while common < min(len(prompt), len(earlier)) and prompt[common] == earlier[common]:
                common += 1
            longest = max(longest, common)
        hits.append(min(longest, len(prompt) - 1) // block * block)
    return hits


@pytest.mark.parametrize("block", [1, 8])
@pytest.mark.parametrize("source", ["trace", "12:640:400:2"])
def test_hits_are_those_of_the_prompts(tmp_path, block, source):
    source = write_trace(tmp_path, 12) if source == "trace" else source
    with CompletionsServer(block=block) as server:
        result = invoke(
            *(server, tmp_path, "--workload", source, "--concurrency", "1", "--scale", "4"),
            *("--vocab-size", "500", "--png", str(tmp_path / "summary.png")),
        )
    assert result.exit_code == 0, result.output
    prompts = [body["prompt"] for body in server.bodies]
    hits = count_hits(prompts, block)
    workload, run = only_run(tmp_path)
    assert run["hit_tokens"] == sum(hits) > 0
    assert run["num_requests_hit"] == sum(map(bool, hits))
    assert run["prompt_tokens"] == run["sent_tokens"] == sum(map(len, prompts))
    assert (run["num_requests"], run["variant"], run["complete"]) == (12, "tiny", True)
    unlimited = 100 * sum(count_hits(prompts, 1)) / sum(map(len, prompts))
    assert workload["bounds"]["granule_1"] == pytest.approx(unlimited)
    assert workload["notes"] == []
    assert all(4 <= token < 500 for token in itertools.chain.from_iterable(prompts))
    assert f"{run['hit_rate_percent']:.2f}" in result.output
    assert 0 < run["ttft_ms"]["p50"] <= run["ttft_ms"]["p90"]
    assert run["tpot_ms"]["avg"] >= 0 and run["output_tokens_per_s"] > 0
    assert run["samples"][-1]["hit_tokens"] == run["hit_tokens"]
    assert sum(bucket["hit_tokens"] for bucket in run["buckets"]) == run["hit_tokens"]
    assert (tmp_path / "summary.png").stat().st_size > 5000
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()


def test_a_named_workload_and_two_at_once(tmp_path):
    with CompletionsServer() as server:
        result = invoke(
            *(server, tmp_path, "--workload", "chat", "--workload", "8:64:32:1", "--requests", "5"),
            *("--scale", "64", "--max-output-tokens", "2", "--model", "other"),
        )
    assert result.exit_code == 0, result.output
    workloads = report_of(tmp_path)["workloads"]
    assert [w["runs"][0]["num_requests"] for w in workloads] == [5, 5]
    assert {body["model"] for body in server.bodies} == {"other"}
    assert max(body["max_tokens"] for body in server.bodies) == 2


def test_concurrency(tmp_path):
    with CompletionsServer(delay_s=0.03) as server:
        result = invoke(server, tmp_path, "--workload", "20:64:32:1", "--concurrency", "3")
    assert result.exit_code == 0, result.output
    assert server.most_in_flight == 3
    assert len(server.bodies) == 20


def write_sessions(folder, **second):
    """Two sessions of three turns, each turn all of the one before and more."""
    lines = [
        {"prompt_token_ids": [session] * (8 * turn), "output_length": 1, "session": session}
        for session in (1, 2)
        for turn in (1, 2, 3)
    ]
    for number, line in enumerate(lines):
        line.update(second if number % 3 else {"timestamp": 0})
    path = folder / "sessions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_in_a_closed_loop_turns_wait_for_their_answers(tmp_path):
    source = write_sessions(tmp_path, delay=0)
    with CompletionsServer(delay_s=0.05) as server:
        result = invoke(server, tmp_path, "--workload", source, "--concurrency", "4")
    assert result.exit_code == 0, result.output
    assert server.most_in_flight == 2
    lengths = [len(body["prompt"]) for body in server.bodies]
    assert sorted(lengths) == lengths and len(lengths) == 6


def test_turns_wait_for_their_think_time(tmp_path):
    source = write_sessions(tmp_path, delay=400)
    with CompletionsServer(delay_s=0.1) as server:
        result = invoke(server, tmp_path, "--workload", source, "--timestamps", "--speed", "2")
    assert result.exit_code == 0, result.output
    # Twice as fast: half of 400 ms behind an answer that takes 100.
    waits = np.array(server.times[2:]) - np.array(server.times[:-2])
    # A busy machine makes some of them longer.
    assert waits.size == 4 and waits.min() == pytest.approx(0.3, abs=0.1)


@pytest.mark.parametrize("speed", [1, 2])
def test_timestamps(tmp_path, speed):
    trace = write_trace(tmp_path, 6, every_ms=200)
    # Each answer takes longer than the time between two: nothing waits for it.
    with CompletionsServer(delay_s=0.5) as server:
        result = invoke(
            *(server, tmp_path, "--workload", trace, "--scale", "16"),
            *("--timestamps", "--speed", str(speed)),
        )
    assert result.exit_code == 0, result.output
    distances = np.diff(server.times) * speed
    # A busy machine delays some of them.
    assert np.median(distances) == pytest.approx(0.2, abs=0.1)
    assert distances.sum() > 0.9 and server.most_in_flight >= 3
    assert f"{speed} times as fast" in only_run(tmp_path)[1]["arrivals"]


def test_too_long_prompts_are_dropped_and_counted(tmp_path):
    trace = write_trace(tmp_path, 9, lengths=(600, 1300, 4000))
    with CompletionsServer() as server:
        result = invoke(
            *(server, tmp_path, "--workload", trace, "--scale", "2"),
            *("--max-prompt-tokens", "700"),
        )
    assert result.exit_code == 0, result.output
    workload, run = only_run(tmp_path)
    assert (workload["num_dropped"], run["num_requests"]) == (3, 6)
    assert {len(body["prompt"]) for body in server.bodies} == {300, 650}
    assert "3 longer requests left out" in " ".join(result.output.split())


def test_what_the_server_does_not_take_is_counted_and_left_out(tmp_path):
    source = write_trace(tmp_path, 6, lengths=(600, 900))
    with CompletionsServer(max_model_len=800) as server:
        result = invoke(server, tmp_path, "--workload", source, "--concurrency", "1")
    assert result.exit_code == 0, result.output
    workload, run = only_run(tmp_path)
    assert (workload["num_dropped"], run["num_requests"], len(server.bodies)) == (3, 3, 3)
    assert "3 longer requests left out" in " ".join(result.output.split())


@pytest.mark.parametrize("wrong", ["fails_from", "breaks_from"])
@pytest.mark.parametrize("how", [("--concurrency", "1"), ("--concurrency", "4"), ("--timestamps",)])
def test_a_failure_ends_it_with_what_is_done(tmp_path, wrong, how):
    trace = write_trace(tmp_path, 30, every_ms=20)
    with CompletionsServer(**{wrong: 10}) as server:
        result = invoke(server, tmp_path, "--workload", trace, "--scale", "16", *how)
    assert result.exit_code == 2, result.output
    report = report_of(tmp_path)
    workload, run = only_run(tmp_path)
    assert not report["complete"] and not run["complete"]
    assert 6 < run["num_requests"] <= 10 and run["hit_tokens"] > 0
    if how[-1] == "1":
        assert run["num_requests"] == 10
        assert workload["bounds"]["granule_1"] >= run["hit_rate_percent"]
    (failure,) = report["failures"]
    assert failure.startswith(f"{server.url}/v1/completions: status ")
    assert result.output.count("failed:") == 1
    assert "tiny (partial)" in " ".join(result.output.split())
    assert "partial" in (tmp_path / "out" / "report.html").read_text()


def nobody() -> str:
    """Return an address at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize("more", [(), ("--model", "tiny")])
def test_nobody_there(tmp_path, more):
    url = nobody()
    result = invoke(url, tmp_path, "--workload", "4:64:32:1", *more)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.output.count("error:") == 1
    assert f"--url {url}: " in result.output and "cannot be reached" in result.output
    assert not (tmp_path / "out").exists()


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_finished_report_outlives_every_failed_run(tmp_path):
    png = ("--png", str(tmp_path / "out" / "summary.png"))
    arguments = ("--workload", "20:64:32:1", "--concurrency", "1", *png)
    with CompletionsServer() as server:
        assert invoke(server, tmp_path, *arguments).exit_code == 0
    finished = contents(tmp_path / "out")
    assert set(finished) == {"report.json", "report.html", "summary.png"}
    assert invoke(nobody(), tmp_path, *arguments).exit_code == 2
    with CompletionsServer(fails_from=0) as server:
        assert invoke(server, tmp_path, *arguments).exit_code == 2
    assert contents(tmp_path / "out") == finished
    with CompletionsServer(fails_from=10) as server:
        result = invoke(server, tmp_path, *arguments)
    assert result.exit_code == 2
    now = contents(tmp_path / "out")
    assert {name: now[name] for name in finished} == finished
    partial = {"report.partial.json", "report.partial.html", "summary.partial.png"}
    assert set(now) == {*finished, *partial}
    assert all(str(tmp_path / "out" / name) in result.output for name in partial)
    assert not json.loads(now["report.partial.json"])["complete"]


def test_an_interrupt_reports_what_is_done(tmp_path, interruptible):
    def interrupt(number):
        if number == 6:
            os.kill(os.getpid(), signal.SIGINT)

    with CompletionsServer(on_request=interrupt, delay_s=0.05) as server:
        result = invoke(server, tmp_path, "--workload", "40:64:32:1", "--concurrency", "2")
    assert result.exit_code == 130, result.output
    report = report_of(tmp_path)
    assert not report["complete"] and not report["failures"]
    assert 4 <= only_run(tmp_path)[1]["num_requests"] <= 6
    # Impatience changes nothing until the process ends.
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_an_interrupt_before_the_first_answer(tmp_path, interruptible):
    """The server takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def interrupt():
            connection, _ = silent.accept()
            with connection:
                connection.recv(1)
                os.kill(os.getpid(), signal.SIGINT)
                finished.wait(300)

        finished = threading.Event()
        thread = threading.Thread(target=interrupt)
        thread.start()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        result = invoke(url, tmp_path, "--workload", "4:64:32:1")
        finished.set()
        thread.join()
    assert result.exit_code == 130, result.output
    assert not (tmp_path / "out").exists()


def test_no_details_are_no_hits_and_a_note(tmp_path):
    with CompletionsServer(tells_details=False) as server:
        result = invoke(server, tmp_path, "--workload", "4:64:32:1", "--concurrency", "1")
    assert result.exit_code == 0, result.output
    workload, run = only_run(tmp_path)
    assert (run["hit_tokens"], run["num_reports"]) == (0, 0)
    assert "--enable-prompt-tokens-details" in workload["notes"][0]
    assert "--enable-prompt-tokens-details" in result.output
    assert "--enable-prompt-tokens-details" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("lacking", [0, 1])
@pytest.mark.parametrize("workload", ["6:64:32:1", "6:500:450:1", "2x3:320:31:1"])
def test_prompts_taken_over_from_another_instance_are_no_hits(tmp_path, workload, lacking):
    """A decode instance of vLLM calls all but the last token cached, of prompts never seen too."""
    png = ("--png", str(tmp_path / "summary.png"))
    with CompletionsServer(takes_over=lacking) as server:
        result = invoke(server, tmp_path, "--workload", workload, "--concurrency", "2", *png)
    assert result.exit_code == 0, result.output
    told, run = only_run(tmp_path)
    assert run["tells_hits"] is False
    assert (run["hit_rate_percent"], run["request_hit_rate_percent"]) == (None, None)
    (note,) = told["notes"]
    assert note.startswith("these are not prefix hits") and "prefill instance" in note
    assert "prompts from before" not in note
    said = " ".join(result.output.split())
    assert "no hits told" in said and re.search(r"\btiny - - - ", said)
    assert re.search(r"hits \d", said) is None
    page = (tmp_path / "out" / "report.html").read_text()
    for heading in ("hits % tokens", "hits % reqs", "hit tokens"):
        assert f'data-heading="{heading}">-<' in page
    assert (tmp_path / "summary.png").stat().st_size > 5000


def test_whole_prompts_that_a_cache_can_hit_are_hits(tmp_path):
    """A prompt of 65 tokens that was there before hits 64, and 64 is a multiple of a granule."""
    with CompletionsServer() as server:
        for _ in range(2):
            result = invoke(server, tmp_path, "--workload", "6:65:0:1", "--concurrency", "1")
            assert result.exit_code == 0, result.output
    told, run = only_run(tmp_path)
    assert run["hit_tokens"] == 6 * 64 and run["tells_hits"] is True
    assert ["prompts from before" in note for note in told["notes"]] == [True]


def test_a_warm_cache_is_noted_and_another_seed_is_cold(tmp_path):
    arguments = ("--workload", write_trace(tmp_path, 6), "--scale", "16")
    with CompletionsServer() as server:
        notes = []
        for seed in ("0", "0", "1"):
            result = invoke(server, tmp_path, *arguments, "--seed", seed)
            assert result.exit_code == 0, result.output
            notes.append(only_run(tmp_path)[0]["notes"])
    assert not notes[0] and not notes[2]
    assert "prompts from before" in notes[1][0]
