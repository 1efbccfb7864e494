# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend calibrate``: how long the steps of a running server take."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.command_line.ends import EXIT_INTERRUPTED, bad_input_ends, say
from vllm_ascend.command_line.interrupts import interrupts_call, no_interrupts
from vllm_ascend.server_access.access import ApiKey, HttpAccess, Insecure, ServerError, base_url
from vllm_ascend.server_access.server import ServedModel, Server, Target
from vllm_ascend.server_access.vocabulary import MIN_VOCABULARY
from vllm_ascend_evaluation.calibrate.checks import check_idle, check_left_alone
from vllm_ascend_evaluation.calibrate.measuring import Measured, Measuring, Plan
from vllm_ascend_evaluation.calibrate.report import calibration_png, print_calibration, stored_model
from vllm_ascend_evaluation.calibrate.watching import watched
from vllm_ascend_evaluation.replay.commands import say_written
from vllm_ascend_evaluation.replay.cost.fit import Fit, fit
from vllm_ascend_evaluation.replay.http.client import HttpClient
from vllm_ascend_evaluation.replay.options import Layout
from vllm_ascend_evaluation.replay.outputs import prepare_files, spare_finished
from vllm_ascend_evaluation.replay.report.json_file import write_whole
from vllm_ascend_evaluation.replay.variants import ASCEND_LAYOUT, check_layout

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LONGEST = 65_536
# What follows a prompt: the answers of a round.
_ROOM_FOR_ANSWER = 128

_Url = Annotated[str, typer.Option(help="The running server, http://HOST:PORT.")]
_Model = Annotated[str | None, typer.Option(help="Its model.", show_default="its first")]
_Out = Annotated[Path, typer.Option(help="The cost model, for replay and goodput --cost-model.")]
_Picture = Annotated[
    Path | None, typer.Option(help="The picture.", show_default="beside --out, as .png")
]
_Minutes = Annotated[float, typer.Option(help="Measure for so long.")]
_Chunk = Annotated[
    int | None,
    typer.Option(
        help="As the server was started with.", min=1, show_default="what the server says"
    ),
]
_MaxPromptTokens = Annotated[
    int, typer.Option(help="Longest prompt; shorter where the time or the model is.", min=1)
]
_Requests = Annotated[
    int,
    typer.Option(
        "--concurrency", help="Most requests at a time on each data-parallel rank.", min=1
    ),
]
_VocabSize = Annotated[int, typer.Option(help="Ids of prompts stay below it.", min=MIN_VOCABULARY)]
_Timeout = Annotated[float, typer.Option(help="Give up after this many seconds of silence.")]


def calibrate(
    url: _Url,
    model: _Model = None,
    out: _Out = Path("cost.json"),
    png: _Picture = None,
    minutes: _Minutes = 5.0,
    layout: Layout = ASCEND_LAYOUT,
    max_num_batched_tokens: _Chunk = None,
    max_prompt_tokens: _MaxPromptTokens = _LONGEST,
    concurrency: _Requests = 16,
    vocab_size: _VocabSize = 1000,
    timeout: _Timeout = 600.0,
    api_key: ApiKey = None,
    insecure: Insecure = False,
) -> None:
    """Measure an idle server for some minutes, and fit the time of its steps to what they do.

    All prompts are random and new, but for those that go on as one sent right before.
    """
    with bad_input_ends():
        for option, value in (("--minutes", minutes), ("--timeout", timeout)):
            if not 0 < value < math.inf:
                raise BadInputError(f"{option} {value:g}: expected a number above 0")
        address = base_url(url)
        access = HttpAccess.of(api_key, insecure=insecure, url=url)
        check_layout(layout, "--layout")
        prepare_files({"--out": out, "--png": png})
        png = png or out.with_suffix(".png")
        server = Server(address, access)
        with _one_sentence():
            served = server.model(model)
            target = server.target(served)
            check_idle(server)
            plan = Plan(
                served.name,
                60 * minutes,
                _longest(served, max_prompt_tokens),
                concurrency,
                _chunk(server, max_num_batched_tokens),
                vocab_size,
                server.num_engines(),
            )
            before = server.counters()
            measured = asyncio.run(_measure(address, plan, timeout, access))
            counts = measured.num_requests, measured.known_tokens
            check_left_alone(address, before, server.counters(), *counts)
            server.check_start(target)
    _end(plan, measured, target, layout, out, png)


@contextlib.contextmanager
def _one_sentence() -> Iterator[None]:
    """End the command with one sentence for what a server does wrong.

    Raises:
        BadInputError: In place of ``ServerError``.
    """
    try:
        yield
    except ServerError as error:
        raise BadInputError(str(error)) from error


def _longest(served: ServedModel, max_prompt_tokens: int) -> int:
    """Return the longest prompt that leaves room for an answer.

    Raises:
        BadInputError: The model takes none of use.
    """
    limit = served.max_model_len
    if limit is None:
        return max_prompt_tokens
    if limit <= 2 * _ROOM_FOR_ANSWER:
        raise BadInputError(
            f"the server's --max-model-len {limit}: expected more than {2 * _ROOM_FOR_ANSWER}"
        )
    return min(max_prompt_tokens, limit - _ROOM_FOR_ANSWER)


def _chunk(server: Server, given: int | None) -> int:
    """Return how many tokens a step of the server computes at most.

    Raises:
        BadInputError: Neither the user nor the server says, or they contradict each other.
    """
    told = server.max_num_batched_tokens()
    if given is None and told is None:
        raise BadInputError(
            "--max-num-batched-tokens: the server does not say; give what it was started with, "
            "its log has it"
        )
    if given is not None and told is not None and given != told:
        raise BadInputError(f"--max-num-batched-tokens {given}: the server has {told}")
    chunk = told if given is None else given
    assert chunk is not None, "one of them is there"
    return chunk


async def _measure(address: str, plan: Plan, timeout_s: float, access: HttpAccess) -> Measured:
    client = HttpClient(address, timeout_s=timeout_s, access=access)
    task = asyncio.current_task()
    assert task is not None
    cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
    try:
        with interrupts_call(cancel, _SIGNALS), watched(plan.seconds) as show:
            measuring = Measuring(client, plan, show)
            await measuring.run()
            return measuring.measured
    finally:
        await client.close()


def _end(plan: Plan, measured: Measured, target: Target, layout: str, out: Path, png: Path) -> None:
    """Fit, print, write, and end the command.

    Raises:
        typer.Exit: It was interrupted, or too little was measured; carries the exit code.
    """
    if measured.interrupted:
        try:
            found = _fit(measured)
        except BadInputError as error:
            say("[yellow]interrupted:[/]", f"nothing was written, for {error}")
            raise typer.Exit(EXIT_INTERRUPTED) from error
    else:
        with bad_input_ends():
            found = _fit(measured)
    with no_interrupts(), bad_input_ends():
        stored = stored_model(found, measured, plan, target, layout)
        json, picture = spare_finished((out, png), complete=stored.complete)
        assert json is not None and picture is not None
        write_whole(json, stored.to_json())
        print_calibration(stored, Console(emoji=False))
        calibration_png(stored, picture)
        say_written([json, picture])
    if measured.longest < plan.chunk:
        say(
            "[yellow]note:[/]",
            f"a step computes up to {plan.chunk:,} tokens, and none of more than "
            f"{measured.longest:,} was measured: measure for longer, or longer prompts",
        )
    if measured.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _fit(measured: Measured) -> Fit:
    return fit([point.observation for point in measured.points])
