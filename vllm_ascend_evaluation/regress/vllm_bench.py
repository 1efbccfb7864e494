# SPDX-License-Identifier: Apache-2.0
"""Performance by ``vllm bench serve``: its command and its result file."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vllm_ascend.server_access.access import HttpAccess
from vllm_ascend.server_access.server import Target
from vllm_ascend_evaluation.regress.process import ToolError, run_tool
from vllm_ascend_evaluation.regress.results import WARM_UPS, PerformanceSettings, Times

NAME = "vllm bench serve"
_RESULT = "result.json"
_ERROR_CHARACTERS = 300


def measure(
    target: Target,
    settings: PerformanceSettings,
    *,
    access: HttpAccess,
    tokenizer: str,
    folder: Path,
    tick: Callable[[], None],
) -> Times:
    """Put the load on the server.

    Args:
        target: The server.
        settings: The load.
        access: API key and TLS.
        tokenizer: Of the model: a folder or a repository.
        folder: For the result and the log; made anew.
        tick: See :func:`run_tool`.

    Raises:
        ToolError: It failed, or a request did.
    """
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / _RESULT
    result.unlink(missing_ok=True)
    log = folder / "log.txt"
    # Each attempt has prompts of its own: an earlier one's would be in the cache already.
    seed = random.randrange(1 << 31)
    command = bench_command(target, settings, tokenizer=tokenizer, folder=folder, seed=seed)
    command += [] if access.verify_tls else ["--insecure"]
    # It looks for the key in the same variable as this command.
    run_tool(command, folder=folder, log=log, tick=tick, api_key=access.api_key)
    try:
        return parse_result(json.loads(result.read_text(encoding="utf-8")), settings)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ToolError(f"{NAME}: {result}: {error} (log: {log})") from error


def bench_command(
    target: Target, settings: PerformanceSettings, *, tokenizer: str, folder: Path, seed: int
) -> list[str]:
    """Return the command; prompts are random, but for what all of them begin with."""
    shared = settings.shared_tokens
    return [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve"),
        *("--base-url", target.url, "--model", target.model, "--tokenizer", tokenizer),
        *("--dataset-name", "prefix_repetition", "--prefix-repetition-num-prefixes", "1"),
        *("--prefix-repetition-prefix-len", str(shared)),
        *("--prefix-repetition-suffix-len", str(settings.input_tokens - shared)),
        *("--prefix-repetition-output-len", str(settings.output_tokens)),
        *("--num-prompts", str(settings.requests)),
        *("--max-concurrency", str(settings.concurrency)),
        *("--ignore-eos", "--temperature", "0", "--seed", str(seed)),
        # Nothing else is sent than what is said here: the server's counters are read around it.
        *("--num-warmups", str(WARM_UPS), "--ready-check-timeout-sec", "0"),
        *("--percentile-metrics", "ttft,tpot", "--metric-percentiles", "90"),
        # Detailed: with what became of each request that failed.
        *(
            "--save-result",
            "--save-detailed",
            "--result-dir",
            str(folder),
            "--result-filename",
            _RESULT,
        ),
        "--disable-tqdm",
    ]


def parse_result(data: Mapping[str, Any], settings: PerformanceSettings) -> Times:
    """Return what a result file of ``vllm bench serve`` says.

    Raises:
        ValueError: Not every request was answered.
        LookupError: Something is missing in it.
    """
    completed = int(data["completed"])
    if completed != settings.requests:
        raise ValueError(
            f"{completed} of {settings.requests} requests were answered{_most_often(data)}"
        )
    has_tpot = settings.output_tokens > 1
    return Times(
        requests=completed,
        prompt_tokens=int(data["total_input_tokens"]),
        output_tokens=int(data["total_output_tokens"]),
        seconds=float(data["duration"]),
        ttft_avg_ms=float(data["mean_ttft_ms"]),
        ttft_p90_ms=float(data["p90_ttft_ms"]),
        tpot_avg_ms=float(data["mean_tpot_ms"]) if has_tpot else None,
        tpot_p90_ms=float(data["p90_tpot_ms"]) if has_tpot else None,
        output_tokens_per_s=float(data["output_throughput"]),
    )


def _most_often(data: Mapping[str, Any]) -> str:
    """Return what most of the requests that failed ended with, for the end of a sentence."""
    # Of a traceback the last line is the error.
    lines = (str(error).strip().split("\n")[-1] for error in data.get("errors") or ())
    errors = Counter(line for line in lines if line)
    if not errors:
        return ""
    ((error, times),) = errors.most_common(1)
    return f"; {times} failed with {error[:_ERROR_CHARACTERS]!r}"
