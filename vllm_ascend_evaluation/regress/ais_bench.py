# SPDX-License-Identifier: Apache-2.0
"""Performance and accuracy by AISBench: its configurations, its command, its result files.

Written against ais-bench-benchmark 3.1.20260630. A run writes to a folder named by its time:
``performances/MODEL/DATASET.csv`` and ``.json``, or ``predictions/MODEL/DATASET.jsonl`` and
``results/MODEL/DATASET.json``.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vllm_ascend.server_access.access import API_KEY_VARIABLE, HttpAccess
from vllm_ascend.server_access.server import Target
from vllm_ascend_evaluation.regress.gpqa import find_answer
from vllm_ascend_evaluation.regress.process import ToolError, run_tool
from vllm_ascend_evaluation.regress.results import (
    WARM_UPS,
    AccuracySettings,
    PerformanceSettings,
    Times,
)

NAME = "ais_bench"
_CONFIG = "config.py"
_RUNS = "runs"
# mmengine puts the variable's value here, or nothing, where AISBench reads its own copy again.
_API_KEY = f"{{{{${API_KEY_VARIABLE}:}}}}"
_CONFIGS = "ais_bench.benchmark.configs"


def measure(
    target: Target,
    settings: PerformanceSettings,
    *,
    access: HttpAccess,
    tokenizer: str,
    folder: Path,
    tick: Callable[[], None],
) -> Times:
    """Put the load on the server; arguments and errors as of ``vllm_bench.measure``."""
    # What an interrupted run left is of no use: its requests have to be sent together.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = performance_config(target, settings, tokenizer)
    run = _run(config, "perf", WARM_UPS, access=access, folder=folder, tick=tick)
    with _bad_results_are_errors(run):
        return parse_performance(run, settings)


def ask(
    target: Target,
    settings: AccuracySettings,
    *,
    access: HttpAccess,
    tokenizer: str,
    questions: Path,
    folder: Path,
    tick: Callable[[], None],
) -> tuple[int, int]:
    """Have the questions answered, going on where an earlier run was interrupted.

    Args:
        target: The server.
        settings: How to ask.
        access: API key; TLS is always verified.
        tokenizer: Folder of the model's tokenizer.
        questions: The CSV.
        folder: For configuration, results and log.
        tick: See :func:`run_tool`.

    Returns:
        How many were answered rightly, and how many texts had no answer in them.

    Raises:
        ToolError: It failed, or a question was not answered.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = accuracy_config(target, settings, tokenizer=tokenizer, questions=questions)
    run = _run(config, "all", 0, access=access, folder=folder, tick=tick)
    with _bad_results_are_errors(run):
        return parse_accuracy(run, settings)


@contextmanager
def _bad_results_are_errors(run: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ToolError(f"{NAME}: {run}: {error!r}") from error


def _run(
    config: str,
    mode: str,
    warm_ups: int,
    *,
    access: HttpAccess,
    folder: Path,
    tick: Callable[[], None],
) -> Path:
    """Run the tool and return the folder of its newest run."""
    (folder / _CONFIG).write_text(config, encoding="utf-8")
    runs = folder / _RUNS
    reuse = ["--reuse"] if runs.is_dir() and any(runs.iterdir()) else []
    command = [
        *(NAME, str(folder / _CONFIG), "--mode", mode, "--work-dir", str(runs)),
        *("--num-warmups", str(warm_ups), *reuse),
    ]
    log = folder / "log.txt"
    run_tool(command, folder=folder, log=log, tick=tick, api_key=access.api_key)
    return max(runs.iterdir(), default=runs)


def performance_config(target: Target, settings: PerformanceSettings, tokenizer: str) -> str:
    """Return the configuration of the load: random prompts with a common beginning."""
    dataset = {
        "Type": "tokenid",
        "RequestCount": settings.requests,
        "TrustRemoteCode": False,
        "TokenIdConfig": {
            "RequestSize": settings.input_tokens,
            "PrefixLen": settings.shared_tokens,
        },
    }
    model = _model(target, tokenizer, settings.output_tokens, settings.concurrency)
    model["generation_kwargs"] = {"temperature": 0.0, "ignore_eos": True}
    return _config(
        summarizer="summarizers.perf.default_perf",
        datasets=("datasets.synthetic.synthetic_gen_tokenid", "synthetic_datasets"),
        models="models.vllm_api.vllm_api_general_stream",
        settings={"datasets[0]": {"config": dataset}, "models[0]": model},
    )


def accuracy_config(
    target: Target, settings: AccuracySettings, *, tokenizer: str, questions: Path
) -> str:
    """Return the configuration of GPQA, 0-shot, with chain of thought."""
    path = questions.resolve()
    model = _model(target, tokenizer, settings.max_tokens, settings.concurrency)
    model["generation_kwargs"] = {"temperature": settings.temperature}
    return _config(
        summarizer="summarizers.example",
        datasets=("datasets.gpqa.gpqa_gen_0_shot_cot_chat_prompt", "gpqa_datasets"),
        models="models.vllm_api.vllm_api_general_chat",
        settings={
            "datasets[0]": {"path": str(path.parent), "name": path.name},
            "models[0]": model,
        },
    )


def _model(target: Target, tokenizer: str, max_tokens: int, concurrency: int) -> dict[str, Any]:
    return {
        "path": tokenizer,
        "model": target.model,
        "url": target.url,
        "api_key": _API_KEY,
        "max_out_len": max_tokens,
        "batch_size": concurrency,
    }


def _config(
    *, summarizer: str, datasets: tuple[str, str], models: str, settings: dict[str, dict[str, Any]]
) -> str:
    """Return a configuration that changes the given entries of AISBench's own ones."""
    module, name = datasets
    lines = [
        "from mmengine.config import read_base",
        "",
        "with read_base():",
        f"    from {_CONFIGS}.{summarizer} import summarizer",
        f"    from {_CONFIGS}.{module} import {name} as datasets",
        f"    from {_CONFIGS}.{models} import models",
        "",
        *(f"{entry}.update({values!r})" for entry, values in settings.items()),
    ]
    return "\n".join(lines) + "\n"


def parse_performance(run: Path, settings: PerformanceSettings) -> Times:
    """Return what the files of a performance run say.

    Raises:
        ValueError: Not every request was answered, or a number is none.
        LookupError: A file or something in it is missing.
    """
    (table,) = run.glob("performances/*/*.csv")
    totals = json.loads(table.with_suffix(".json").read_text(encoding="utf-8"))
    answered = int(totals["Success Requests"]["total"])
    if answered != settings.requests or int(totals["Failed Requests"]["total"]):
        raise ValueError(f"{answered} of {settings.requests} requests were answered")
    with table.open(newline="", encoding="utf-8") as file:
        rows = {row["Performance Parameters"]: row for row in csv.DictReader(file)}
    # An answer of one token has no TPOT, and then there is no such row.
    tpot = rows.get("TPOT") if settings.output_tokens == 1 else rows["TPOT"]
    return Times(
        requests=answered,
        prompt_tokens=int(totals["Total Input Tokens"]["total"]),
        output_tokens=int(totals["Total Generated Tokens"]["total"]),
        seconds=_number(totals["Benchmark Duration"]["total"], "ms") / 1e3,
        ttft_avg_ms=_number(rows["TTFT"]["Average"], "ms"),
        ttft_p90_ms=_number(rows["TTFT"]["P90"], "ms"),
        tpot_avg_ms=None if tpot is None else _number(tpot["Average"], "ms"),
        tpot_p90_ms=None if tpot is None else _number(tpot["P90"], "ms"),
        output_tokens_per_s=_number(totals["Output Token Throughput"]["total"], "token/s"),
    )


def _number(text: str, unit: str) -> float:
    """Return the number in ``12.3 ms``.

    Raises:
        ValueError: It has another unit.
    """
    number, _, found = text.partition(" ")
    if found != unit:
        raise ValueError(f"{text!r} is not in {unit}")
    return float(number)


def parse_accuracy(run: Path, settings: AccuracySettings) -> tuple[int, int]:
    """Return how many answers of an accuracy run are right, and how many texts have none.

    Raises:
        ValueError: Not every question was answered, or a file is missing.
        LookupError: Something is missing in a file.
    """
    (scores,) = run.glob("results/*/*.json")
    (texts,) = run.glob("predictions/*/*.jsonl")
    percent = float(json.loads(scores.read_text(encoding="utf-8"))["accuracy"])
    # Not splitlines: JSON may hold line separators as they are.
    lines = texts.read_text(encoding="utf-8").split("\n")
    answers = [json.loads(line) for line in lines if line]
    num_answered = sum(bool(answer["success"]) for answer in answers)
    if num_answered != settings.questions:
        raise ValueError(f"{num_answered} of {settings.questions} questions were answered")
    unanswered = sum(find_answer(str(answer["prediction"])) is None for answer in answers)
    return round(percent * settings.questions / 100), unanswered
