# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend regress``: is a server as fast and as right as it was?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vllm_ascend.regress.gate import run_gate
from vllm_ascend.regress.gpqa import QuestionFile, read_questions
from vllm_ascend.regress.judge import METRICS, parse_tolerances
from vllm_ascend.regress.options import (
    AUTO,
    Options,
    choose_tool,
    parse_suite,
)
from vllm_ascend.regress.results import ACCURACY, PERFORMANCE, AccuracySettings, PerformanceSettings
from vllm_ascend.replay.commands import bad_input_ends
from vllm_ascend.replay.http.access import ApiKey, HttpAccess, Insecure
from vllm_ascend.replay.http.client import base_url
from vllm_ascend.replay.trace import BadInputError

_TOLERANCES = ", ".join(f"{m.name} {m.tolerance:g} {m.tolerance_unit}" for m in METRICS)


def regress(
    url: Annotated[str, typer.Option(help="The server that runs, http://HOST:PORT.")],
    out: Annotated[
        Path, typer.Option(help="Folder of this run; an interrupted one is gone on with.")
    ] = Path("regress-out"),
    suite: Annotated[str, typer.Option(help="What to measure.")] = f"{PERFORMANCE},{ACCURACY}",
    baseline: Annotated[
        Path | None, typer.Option(help="Compare with this; without it, only measure.")
    ] = None,
    save_baseline: Annotated[
        Path | None, typer.Option(help="Keep what was measured here, unless it is a regression.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(help="Write the verdicts here as well, as JUnit's XML.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write them here as well, as Markdown.")
    ] = None,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=VALUE: how much worse a metric may be. Otherwise: " + _TOLERANCES + "."
        ),
    ] = None,
    tool: Annotated[
        str, typer.Option(help="auto, ais_bench or vllm; auto is ais_bench where installed.")
    ] = AUTO,
    model: Annotated[str | None, typer.Option(help="By default the server's first.")] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Its folder; by default the model that the server was started with."),
    ] = None,
    input_tokens: Annotated[int, typer.Option(help="Tokens of a prompt.", min=2)] = 8192,
    output_tokens: Annotated[int, typer.Option(help="Tokens of an answer.", min=1)] = 1024,
    shared_percent: Annotated[
        int, typer.Option(help="Share of it that all prompts begin with.", min=1, max=99)
    ] = 90,
    requests: Annotated[int, typer.Option(help="Requests of the load.", min=1)] = 320,
    concurrency: Annotated[int, typer.Option(help="Requests in flight.", min=1)] = 32,
    warmup: Annotated[int, typer.Option(help="Loads ahead that are not counted.", min=0)] = 1,
    repeats: Annotated[
        int, typer.Option(help="Loads that are counted; medians are judged.", min=1)
    ] = 3,
    gpqa_file: Annotated[
        Path | None, typer.Option(help="GPQA's CSV, as gpqa_diamond.csv; for accuracy.")
    ] = None,
    gpqa_max_tokens: Annotated[
        int, typer.Option(help="Longest answer to a question.", min=1)
    ] = 65_536,
    temperature: Annotated[float, typer.Option(help="Of these answers.", min=0)] = 0.0,
    timeout: Annotated[
        float, typer.Option(help="Longest time for the answer to a question in s.", min=1)
    ] = 7200.0,
    api_key: ApiKey = None,
    insecure: Insecure = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget what is in --out and measure anew.")
    ] = False,
    rejudge: Annotated[
        bool, typer.Option("--rejudge", help="Judge the finished run in --out; measure nothing.")
    ] = False,
    same_server: Annotated[
        bool,
        typer.Option(
            "--same-server",
            help="Go on with an interrupted run although the server does not say when it started.",
        ),
    ] = False,
) -> None:
    """Measure a running server and compare it with a baseline.

    Exit codes: 0, 1 (a regression), 2 (bad input, or the server failed), 130 (interrupted).
    """
    with bad_input_ends():
        if restart and rejudge:
            raise BadInputError("--rejudge and --restart: choose one")
        steps = parse_suite(suite)
        chosen = choose_tool(tool, needs_vllm=PERFORMANCE in steps)
        load = PerformanceSettings(
            tool=chosen,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            concurrency=concurrency,
            requests=requests,
            shared_percent=shared_percent,
            warmup=warmup,
            repeats=repeats,
        )
        gpqa = _questions(gpqa_file) if ACCURACY in steps else None
        asking = (
            None
            if gpqa is None
            else AccuracySettings(
                tool=chosen,
                questions=len(gpqa.questions),
                digest=gpqa.digest,
                max_tokens=gpqa_max_tokens,
                temperature=temperature,
                concurrency=concurrency,
            )
        )
        options = Options(
            url=base_url(url),
            access=HttpAccess.of(api_key, insecure=insecure),
            out=out,
            performance=load if PERFORMANCE in steps else None,
            accuracy=asking,
            gpqa=gpqa,
            model=model,
            tokenizer=tokenizer,
            baseline_file=baseline,
            save_baseline=save_baseline,
            junit=junit,
            markdown=markdown,
            tolerances=parse_tolerances(tolerance or []),
            timeout_s=timeout,
            restart=restart,
            rejudge=rejudge,
            same_server=same_server,
        )
    run_gate(options)


def _questions(file: Path | None) -> QuestionFile:
    if file is None:
        raise BadInputError(
            "--gpqa-file: accuracy needs GPQA's CSV (gpqa_diamond.csv); without it choose "
            f"--suite {PERFORMANCE}"
        )
    return read_questions(file)
