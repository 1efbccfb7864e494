# SPDX-License-Identifier: Apache-2.0
"""The whole command against a scripted server: how it is called, and what it wrote."""

import json
from pathlib import Path

from typer.testing import CliRunner

from vllm_ascend.__main__ import app

REPOSITORY = Path(__file__).parents[5]
QUESTIONS = REPOSITORY / "tests/e2e/regress/questions.csv"
NUM_QUESTIONS = 8
ACCURACY = ("--suite", "accuracy", "--gpqa-file", str(QUESTIONS), "--tool", "vllm")
PERFORMANCE = (
    *("--suite", "performance", "--tool", "ais_bench", "--requests", "6"),
    *("--input-tokens", "1000", "--output-tokens", "8", "--concurrency", "2"),
    *("--tokenizer", "tokenizer", "--warmup", "0", "--repeats", "1"),
)
BOTH = (*PERFORMANCE, "--suite", "performance,accuracy", "--gpqa-file", str(QUESTIONS))


def invoke(server, folder, *arguments):
    url = server if isinstance(server, str) else server.url
    return run_command("regress", "--url", url, "--out", str(folder / "out"), *map(str, arguments))


def run_command(*arguments):
    result = CliRunner().invoke(app, arguments)
    # A console takes its width from whoever imports it first: where lines end says nothing.
    result.output_bytes = b" ".join(result.output_bytes.split())
    return result


def report_of(folder):
    return json.loads((folder / "out" / "regress.json").read_text())


def outcomes(folder):
    return {v["metric"]: v["outcome"] for v in report_of(folder)["verdicts"]}


def correct_letter(number):
    return "DCBA"[number % 4]
