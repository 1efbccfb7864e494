# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend regress``: is a server as fast and as right as it was?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.command_line.ends import bad_input_ends
from vllm_ascend.server_access.access import ApiKey, HttpAccess, Insecure, base_url
from vllm_ascend_evaluation.given_options import given_options
from vllm_ascend_evaluation.regress.gate import run_gate
from vllm_ascend_evaluation.regress.gpqa import QuestionFile, read_questions
from vllm_ascend_evaluation.regress.judge import METRICS, parse_tolerances
from vllm_ascend_evaluation.regress.options import (
    AUTO,
    Description,
    EarlierRun,
    Options,
    OutputFiles,
    choose_tool,
    parse_suite,
)
from vllm_ascend_evaluation.regress.recorded import recorded_run
from vllm_ascend_evaluation.regress.results import (
    ACCURACY,
    PERFORMANCE,
    AccuracySettings,
    PerformanceSettings,
)

_TOLERANCES = ", ".join(f"{m.name} {m.tolerance:g} {m.tolerance_unit}" for m in METRICS)


_Url = Annotated[
    str | None, typer.Option(help="The running server, http://HOST:PORT; --rejudge needs none.")
]
_Out = Annotated[Path, typer.Option(help="Folder of this run. An interrupted run continues.")]
_Suite = Annotated[str, typer.Option(help="What to measure.")]
_Baseline = Annotated[
    Path | None, typer.Option(help="Compare with this; without it, only measure.")
]
_SaveBaseline = Annotated[
    Path | None, typer.Option(help="Write the measurement to this file, unless it is a regression.")
]
_Junit = Annotated[
    Path | None, typer.Option(help="Write the verdicts here as well, as JUnit's XML.")
]
_Markdown = Annotated[Path | None, typer.Option(help="Write them here as well, as Markdown.")]
_Tolerance = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=VALUE: how much worse a metric may be. Otherwise: " + _TOLERANCES + "."
    ),
]
_Tool = Annotated[
    str, typer.Option(help="auto, ais_bench or vllm; auto is ais_bench where installed.")
]
_Model = Annotated[str | None, typer.Option(help="By default the server's first.")]
_Tokenizer = Annotated[
    str | None,
    typer.Option(help="Its folder; by default the model that the server was started with."),
]
_InputTokens = Annotated[int, typer.Option(help="Tokens of a prompt.", min=2)]
_OutputTokens = Annotated[int, typer.Option(help="Tokens of an answer.", min=1)]
_SharedPercent = Annotated[
    int, typer.Option(help="Percentage of a prompt that all prompts share.", min=1, max=99)
]
_Requests = Annotated[int, typer.Option(help="Requests of the load.", min=1)]
_Concurrency = Annotated[int, typer.Option(help="Requests in flight.", min=1)]
_Warmup = Annotated[int, typer.Option(help="Loads to warm up, which are not counted.", min=0)]
_Repeats = Annotated[int, typer.Option(help="Loads that are counted; medians are judged.", min=1)]
_GpqaFile = Annotated[
    Path | None, typer.Option(help="GPQA's CSV, as gpqa_diamond.csv; for accuracy.")
]
_GpqaMaxTokens = Annotated[int, typer.Option(help="Longest answer to a question.", min=1)]
_Temperature = Annotated[
    float, typer.Option(help="Temperature of the answers to questions.", min=0)
]
_Timeout = Annotated[
    float, typer.Option(help="Longest time for the answer to a question in s.", min=1)
]
_Restart = Annotated[
    bool, typer.Option("--restart", help="Forget what is in --out and measure anew.")
]
_Rejudge = Annotated[
    bool,
    typer.Option(
        "--rejudge",
        help="Judge the finished run in --out; measure nothing. The run says how it was measured.",
    ),
]
_SameServer = Annotated[
    bool,
    typer.Option(
        "--same-server",
        help="Go on with an interrupted run although the server does not say when it started.",
    ),
]


def regress(
    context: typer.Context,
    url: _Url = None,
    out: _Out = Path("regress-out"),
    suite: _Suite = f"{PERFORMANCE},{ACCURACY}",
    baseline: _Baseline = None,
    save_baseline: _SaveBaseline = None,
    junit: _Junit = None,
    markdown: _Markdown = None,
    tolerance: _Tolerance = None,
    tool: _Tool = AUTO,
    model: _Model = None,
    tokenizer: _Tokenizer = None,
    input_tokens: _InputTokens = 8192,
    output_tokens: _OutputTokens = 1024,
    shared_percent: _SharedPercent = 90,
    requests: _Requests = 320,
    concurrency: _Concurrency = 32,
    warmup: _Warmup = 1,
    repeats: _Repeats = 3,
    gpqa_file: _GpqaFile = None,
    gpqa_max_tokens: _GpqaMaxTokens = 65_536,
    temperature: _Temperature = 0.0,
    timeout: _Timeout = 7200.0,
    api_key: ApiKey = None,
    insecure: Insecure = False,
    restart: _Restart = False,
    rejudge: _Rejudge = False,
    same_server: _SameServer = False,
) -> None:
    """Measure a running server and compare it with a baseline.

    Exit codes: 0, 1 (a regression), 2 (bad input, or the server failed), 130 (interrupted).
    """
    earlier = EarlierRun(restart, rejudge, same_server)
    with bad_input_ends():
        earlier.check()
        if rejudge:
            given = {name: context.params[name] for name in given_options(context)}
            described = recorded_run(out, given)
        else:
            load = PerformanceSettings(
                *(tool, input_tokens, output_tokens, concurrency, requests, shared_percent),
                *(warmup, repeats),
            )
            asking = _Asking(gpqa_file, gpqa_max_tokens, temperature)
            described = _described(url, suite, load, asking)
        options = Options(
            **vars(described),
            access=_access(api_key, insecure, url),
            out=out,
            model=model,
            tokenizer=tokenizer,
            baseline_file=baseline,
            files=OutputFiles(save_baseline, junit, markdown),
            tolerances=parse_tolerances(tolerance or []),
            timeout_s=timeout,
            earlier=earlier,
        )
    run_gate(options)


def _access(api_key: str | None, insecure: bool, url: str | None) -> HttpAccess:
    access = HttpAccess.of(api_key, insecure=insecure, url=url)
    if access.login is not None:  # it would stand in the command lines of what sends the load
        raise BadInputError("--url: regress takes no name and password there, but --api-key")
    return access


class _Asking(NamedTuple):
    """What options say of the questions."""

    file: Path | None
    max_tokens: int
    temperature: float


def _described(
    url: str | None, suite: str, load: PerformanceSettings, asking: _Asking
) -> Description:
    """Return what options say of a run.

    Args:
        url: ``--url``.
        suite: ``--suite``.
        load: The load, with ``--tool`` as its tool.
        asking: Of the questions.

    Raises:
        BadInputError: One is missing or cannot be used.
    """
    if url is None:
        raise BadInputError("--url: name the running server, http://HOST:PORT")
    steps = parse_suite(suite)
    tool = choose_tool(load.tool, needs_vllm=PERFORMANCE in steps)
    gpqa = _questions(asking.file) if ACCURACY in steps else None
    accuracy = None
    if gpqa is not None:
        accuracy = AccuracySettings(
            tool=tool,
            questions=len(gpqa.questions),
            digest=gpqa.digest,
            max_tokens=asking.max_tokens,
            temperature=asking.temperature,
            concurrency=load.concurrency,
        )
    return Description(
        url=base_url(url),
        performance=replace(load, tool=tool) if PERFORMANCE in steps else None,
        accuracy=accuracy,
        gpqa=gpqa,
    )


def _questions(file: Path | None) -> QuestionFile:
    if file is None:
        raise BadInputError(
            "--gpqa-file: accuracy needs GPQA's CSV (gpqa_diamond.csv); without it choose "
            f"--suite {PERFORMANCE}"
        )
    return read_questions(file)
