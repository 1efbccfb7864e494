# SPDX-License-Identifier: Apache-2.0
"""The command and the result file of ``vllm bench serve``."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ut.evaluation.regress.samples import LOAD, TARGET
from vllm_ascend.server_access.access import HttpAccess
from vllm_ascend_evaluation.regress.vllm_bench import bench_command, measure, parse_result

# Of vLLM 0.20.2, without what is not read.
RESULT = {
    "backend": "openai",
    "num_prompts": 12,
    "max_concurrency": 4,
    "duration": 1.3734766619995753,
    "completed": 12,
    "failed": 0,
    "total_input_tokens": 12041,
    "total_output_tokens": 96,
    "output_throughput": 69.89561792789289,
    "mean_ttft_ms": 242.37286641668257,
    "p90_ttft_ms": 419.1319608001322,
    "mean_tpot_ms": 30.20582529763076,
    "p90_tpot_ms": 35.06557871429062,
}


def option(command, name):
    return command[command.index(name) + 1]


def test_the_load_is_the_one_asked_for():
    command = bench_command(TARGET, LOAD, tokenizer="/model", folder=Path("/out"), seed=3)
    assert command[1:5] == ["-m", "vllm.entrypoints.cli.main", "bench", "serve"]
    prefix, suffix = (
        int(option(command, f"--prefix-repetition-{part}-len")) for part in ("prefix", "suffix")
    )
    assert (prefix, prefix + suffix) == (900, 1000)
    assert option(command, "--prefix-repetition-num-prefixes") == "1"
    assert option(command, "--prefix-repetition-output-len") == "8"
    assert option(command, "--num-prompts") == "12"
    assert option(command, "--max-concurrency") == "4"
    assert option(command, "--num-warmups") == "1"
    assert option(command, "--base-url") == TARGET.url
    assert (option(command, "--model"), option(command, "--tokenizer")) == ("tiny", "/model")
    assert "--ignore-eos" in command


@pytest.mark.parametrize("insecure", [False, True])
def test_it_gets_the_key_unseen_and_takes_any_certificate_on_request(
    tmp_path, monkeypatch, insecure
):
    """Its arguments are for everybody to list."""
    calls = []

    def run_tool(command, *, api_key, **_):
        calls.append((command, api_key))
        (tmp_path / "result.json").write_text(json.dumps(RESULT))

    monkeypatch.setattr("vllm_ascend_evaluation.regress.vllm_bench.run_tool", run_tool)
    access = HttpAccess("secret", verify_tls=not insecure)
    options = dict(access=access, tokenizer="/model", folder=tmp_path, tick=lambda: None)
    assert measure(TARGET, LOAD, **options) == parse_result(RESULT, LOAD)
    ((command, api_key),) = calls
    assert api_key == "secret" and "secret" not in " ".join(command)
    assert ("--insecure" in command) == insecure


def test_the_result_is_read():
    times = parse_result(RESULT, LOAD)
    assert (times.requests, times.prompt_tokens, times.output_tokens) == (12, 12041, 96)
    assert (round(times.ttft_avg_ms, 1), round(times.ttft_p90_ms, 1)) == (242.4, 419.1)
    assert (round(times.tpot_avg_ms, 1), round(times.tpot_p90_ms, 1)) == (30.2, 35.1)
    assert round(times.output_tokens_per_s, 1) == 69.9
    assert round(times.seconds, 2) == 1.37


def test_answers_of_one_token_have_no_time_per_token():
    times = parse_result(RESULT, replace(LOAD, output_tokens=1))
    assert (times.tpot_avg_ms, times.tpot_p90_ms) == (None, None)


def test_failed_requests_are_not_passed_over():
    """vllm bench serve ends with 0 and averages what is left."""
    with pytest.raises(ValueError, match="11 of 12 requests were answered"):
        parse_result({**RESULT, "completed": 11, "failed": 1}, LOAD)


def test_the_errors_of_failed_requests_are_told():
    """As with --save-detailed: an empty error for a request that was answered."""
    traceback = "Traceback (most recent call last):\n  File x\naiohttp.ClientError: gone\n"
    data = {**RESULT, "completed": 8, "errors": ["", "Bad Request", traceback, traceback] * 3}
    what = r"8 of 12 requests were answered; 6 failed with 'aiohttp.ClientError: gone'$"
    with pytest.raises(ValueError, match=what):
        parse_result(data, LOAD)


def test_a_missing_number_is_an_error():
    with pytest.raises(LookupError):
        parse_result({k: v for k, v in RESULT.items() if k != "p90_ttft_ms"}, LOAD)
