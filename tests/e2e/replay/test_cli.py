# SPDX-License-Identifier: Apache-2.0
"""The command as a user runs it: processes, files, exit codes."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.e2e.replay.in_process import invoke
from vllm_ascend_evaluation.models.tiny.tokenizer import train_tokenizer
from vllm_ascend_evaluation.replay.bounds import survey
from vllm_ascend_evaluation.replay.sources import WorkloadSource

REPOSITORY = Path(__file__).parents[3]
GEMMA = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "sliding_window": 128,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "vllm_ascend", "replay", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


def read_runs(folder: Path) -> dict[str, dict]:
    report = json.loads((folder / "report.json").read_text())
    return {run["variant"]: run for workload in report["workloads"] for run in workload["runs"]}


def test_side_by_side_and_verified(tmp_path):
    """16 prompts of 5,000 tokens share 4,500: only blocks of 32 rows have a boundary in there."""
    source = "16:5000:4500:8"
    result = invoke(
        "replay",
        *("--workload", source, "--concurrency", "2", "--block-size", "32", "--kv-gib", "4"),
        *("--max-model-len", "20000", "--max-num-batched-tokens", "2048"),
        *("--variant", "upstream-like", "--variant", "upstream-like:block_size=128"),
        *("--variant", "retention-0", "--verify", "--eviction", "lru"),
        *("--out", str(tmp_path), "--png", str(tmp_path / "summary.png")),
    )
    assert result.exit_code == 0, result.output
    runs = read_runs(tmp_path)
    assert runs["upstream-like:block_size=128"]["hit_tokens"] == 0
    # The block size is the operator's on both sides.
    assert runs["upstream-like"]["block_size"] == 32
    assert 14 * 4096 <= runs["upstream-like"]["hit_tokens"] <= 15 * 4096
    ours = runs["retention-0"]
    # The first two prompts run side by side; all others find the boundary at 4096.
    assert 14 * 4096 <= ours["hit_tokens"] <= 15 * 4096
    assert ours["num_requests"] == 16 and ours["complete"] and ours["verified"]
    assert not ours["violations"]
    bounds = survey(WorkloadSource(source).load(), [4096]).bounds
    assert ours["hit_rate_percent"] <= bounds.aligned[4096] + 1e-9
    assert "retention-0" in result.stdout and "4,096" in result.stdout
    assert "best:VLLM_ASCEND_EVICTION=lru" in runs and "knows what comes again" in result.stdout
    assert (tmp_path / "report.html").stat().st_size > 20_000
    assert (tmp_path / "summary.png").is_file()


def test_conversations_wait_for_their_answers(tmp_path):
    """Four of five turns each, two at a time: every later turn hits what it shares with the one
    before, which it could not if both were under way."""
    messages = [{"role": "user" if i % 2 == 0 else "assistant"} for i in range(10)]
    lines = []
    for number in range(4):
        texts = (f"{number} and {i} are two words of many. " * 40 for i in range(10))
        talk = [{**m, "content": text} for m, text in zip(messages, texts, strict=True)]
        lines.append(json.dumps({"messages": talk}))
    (tmp_path / "talks.jsonl").write_text("\n".join(lines))
    train_tokenizer(1024).save_pretrained(tmp_path / "tokenizer")
    result = invoke(
        "replay",
        *("--workload", str(tmp_path / "talks.jsonl"), "--tokenizer", str(tmp_path / "tokenizer")),
        *("--concurrency", "2", "--variant", "best", "--verify", "--out", str(tmp_path / "out")),
    )
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())["workloads"][0]
    (run,) = report["runs"]
    assert (run["num_requests"], run["violations"]) == (20, [])
    assert run["hit_rate_percent"] == pytest.approx(report["bounds"]["granule_128"])
    assert run["num_requests_hit"] == 16


def test_hugging_face_config_and_stock_with_trace_timestamps(tmp_path):
    """Any hybrid by path; the stock side runs without our patches."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(GEMMA))
    trace = tmp_path / "trace.jsonl"
    prompt = list(range(700))
    records = [
        {"prompt_token_ids": [*prompt, 1000 + i], "output_length": 4, "timestamp": 500 * i}
        for i in range(6)
    ]
    trace.write_text("".join(json.dumps(record) + "\n" for record in records))
    result = run(
        *("--workload", str(trace), "--layout", str(config), "--block-size", "16"),
        *("--kv-gib", "0.05", "--max-model-len", "2000", "--arrivals", "timestamps"),
        *("--variant", "stock", "--variant", "retention-0", "--verify", "--out", str(tmp_path)),
    )
    assert result.returncode == 0, result.stderr
    runs = read_runs(tmp_path)
    assert runs["stock"]["settings"] == {}
    # 701 tokens, 700 of them shared: 688 is the last whole block; all but the first request hit.
    assert runs["stock"]["hit_tokens"] == runs["retention-0"]["hit_tokens"] == 5 * 688
    assert runs["retention-0"]["modelled_ttft_ms"]["p50"] > 0
    assert "modelled" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--workload", "nowhere.jsonl"), "--workload nowhere.jsonl: neither a file"),
        (("--variant", "magic"), "--variant magic: unknown"),
        (("--block-size", "48"), "--block-size 48: dsv4-flash-a3 has 32, 64 and 128"),
        (("--workload", "[/y].jsonl"), "--workload [/y].jsonl: neither a file"),
        (("--layout", "nowhere.json"), "layout nowhere.json: allowed are dsv4-flash-a3"),
        (("--variant", "retention-0@nowhere"), "layout nowhere: allowed are dsv4-flash-a3"),
        (("--png", "nowhere/x.png"), "--png nowhere/x.png: there is no folder nowhere"),
        (
            ("--max-model-len", "9000"),
            "W1: every request is too long: with their answers they have 9216",
        ),
        (("--arrivals", "timestamps"), "W1 has no timestamps: take other traffic, or"),
        (("--arrivals", "sometimes"), "--arrivals sometimes: allowed are closed, timestamps and "),
    ],
)
def test_bad_input_ends_before_anything_runs(tmp_path, arguments, complaint):
    out = tmp_path / "out"
    result = invoke("replay", "--out", str(out), *arguments)
    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.split())
    assert not out.exists()


def test_an_interval_that_does_not_fit_is_one_clear_error(tmp_path):
    variant = "mine:VLLM_PREFIX_CACHE_RETENTION_INTERVAL=5000"
    result = run("--workload", "2:100:50:1", "--variant", variant, "--out", str(tmp_path / "out"))
    assert result.returncode == 2
    message = " ".join(result.stderr.split())
    assert "VLLM_PREFIX_CACHE_RETENTION_INTERVAL=5000 is invalid" in message
    assert "multiples of 16384 tokens" in message
    assert "Traceback" not in result.stderr


def test_interrupt_leaves_a_partial_report(tmp_path):
    terminal, of_process = os.openpty()
    process = subprocess.Popen(
        command(
            *("--workload", "4000:2000:1000:400", "--variant", "retention-0"),
            *("--block-size", "32", "--out", str(tmp_path)),
        ),
        cwd=REPOSITORY,
        stdout=of_process,
        stderr=of_process,
        env={**os.environ, "COLUMNS": "120", "TERM": "xterm"},
    )
    os.close(of_process)
    shown: list[bytes] = []
    reader = threading.Thread(target=_read, args=(terminal, shown))
    reader.start()
    deadline = time.monotonic() + 300
    while not re.search(rb"[1-9]\d*/4000", b"".join(shown)):  # its bar: requests that are scheduled
        assert time.monotonic() < deadline and process.poll() is None, b"".join(shown)
        time.sleep(0.1)
    deadline = time.monotonic() + 300
    while process.poll() is None:  # impatience must cost neither the report nor the exit code
        assert time.monotonic() < deadline, b"".join(shown)
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    assert process.returncode == 130, b"".join(shown)
    reader.join()
    os.close(terminal)
    report = json.loads((tmp_path / "report.json").read_text())
    assert not report["complete"]
    (partial,) = report["workloads"][0]["runs"]
    assert not partial["complete"]
    assert 0 < partial["num_requests"] < 4000
    assert "this report is partial" in (tmp_path / "report.html").read_text()


def _read(terminal: int, shown: list[bytes]) -> None:
    with contextlib.suppress(OSError):  # the other end is closed
        while data := os.read(terminal, 4096):
            shown.append(data)
