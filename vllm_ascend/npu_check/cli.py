# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend npu-check``: what only an NPU can show, as one JSON document."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import asdict
from math import isfinite
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.command_line.ends import EXIT_INTERRUPTED, bad_input_ends
from vllm_ascend.command_line.interrupts import no_interrupts
from vllm_ascend.doctor.versions import versions
from vllm_ascend.npu_check.outcome import Check, Outcome, Verdict, summed_up
from vllm_ascend.npu_check.server import AnsweringServer
from vllm_ascend.npu_check.server_checks import ServerChecks
from vllm_ascend.prefix_cache_config import process_environment
from vllm_ascend.server_access.access import ApiKey, HttpAccess, Insecure, ServerError, base_url
from vllm_ascend.server_access.server import Server
from vllm_ascend.server_access.vocabulary import MIN_VOCABULARY

_EXIT_CODES = {Verdict.PASSED: 0, Verdict.FAILED: 1, Verdict.SKIPPED: 3}
_COLORS = {Verdict.PASSED: "green", Verdict.FAILED: "red", Verdict.SKIPPED: "yellow"}
_NO_NPU = "torch_npu or vLLM finds no NPU here"

_Url = Annotated[
    str | None,
    typer.Option(help="A running server, http://HOST:PORT. Without it: the device alone."),
]
_Model = Annotated[str | None, typer.Option(help="By default the server's first.")]
_VocabSize = Annotated[
    int, typer.Option(help="Ids of the prompts stay below it.", min=MIN_VOCABULARY)
]
_Margin = Annotated[
    float,
    typer.Option(
        help="The largest difference of two tokens' scores, in nats, that still counts as "
        "rounding. 0: no difference does, as with fp32.",
        min=0,
    ),
]
_Timeout = Annotated[float, typer.Option(help="Longest silence of the server in s.", min=1)]


def npu_check(
    url: _Url = None,
    model: _Model = None,
    vocab_size: _VocabSize = 1000,
    margin: _Margin = 0.5,
    timeout: _Timeout = 600.0,
    api_key: ApiKey = None,
    insecure: Insecure = False,
) -> None:
    """Check what only a node with NPUs can show; JSON on standard output.

    Exit codes: 0 all passed, 1 one failed, 2 bad input, 3 none failed but some could not be run,
    130 interrupted.
    """
    with bad_input_ends():
        if not isfinite(margin):  # no answer would ever differ
            raise BadInputError(f"--margin {margin}: expected a number of nats")
        described, server = None, None
        if url is not None:
            access = HttpAccess.of(api_key, insecure=insecure, url=url)
            described, server = _reach(base_url(url), model, timeout, access)
        planned = [*_of_device(), *_of_server(server, vocab_size, margin)]
        if all(isinstance(check, Outcome) for check in planned):
            raise BadInputError(f"{_NO_NPU}, and --url names no server: nothing can be checked")
    console = Console(stderr=True, emoji=False)
    outcomes, is_whole = _run(planned, console)
    with no_interrupts():
        console.print(_table(outcomes))
        typer.echo(json.dumps(_document(described, server, outcomes), indent=1))
    raise typer.Exit(_EXIT_CODES[summed_up(outcomes)] if is_whole else EXIT_INTERRUPTED)


def _reach(
    url: str, model: str | None, timeout_s: float, access: HttpAccess
) -> tuple[dict[str, Any], AnsweringServer]:
    """Return what the server says of itself, and who asks it."""
    reached = Server(url, access)
    try:
        served = reached.model(model)
        target = reached.target(served)
    except ServerError as error:
        raise BadInputError(str(error)) from error
    limit = served.max_model_len
    server = AnsweringServer(
        url, served.name, max_model_len=limit, timeout_s=timeout_s, access=access
    )
    return {**asdict(target), "max_model_len": limit}, server


def _of_device() -> Iterator[Check | Outcome]:
    with redirect_stdout(sys.stderr):  # where vLLM logs to is settled at its import
        from vllm_ascend.npu_check.device_checks import device_checks, npu

        device = npu()
    if device is None:
        yield _skipped("device", "what is queued on a stream could be done out of order", _NO_NPU)
    else:
        yield from device_checks(device)


def _of_server(
    server: AnsweringServer | None, vocab_size: int, margin: float
) -> Iterator[Check | Outcome]:
    if server is None:
        yield _skipped("server", "answers behind a hit could be others", "--url names no server")
        return
    for check, longest in ServerChecks(server, vocab_size=vocab_size, margin=margin).checks():
        limit = server.max_model_len
        if limit is not None and limit < longest:
            why = f"the server's longest context is {limit:,}, not {longest:,} tokens"
            yield _skipped(check.name, check.shows, why)
        else:
            yield check


def _skipped(name: str, shows: str, why: str) -> Outcome:
    return Outcome(name, shows, Verdict.SKIPPED, why)


def _run(planned: list[Check | Outcome], console: Console) -> tuple[list[Outcome], bool]:
    """Return what became of the checks, and whether all were run: an interrupt loses nothing."""
    outcomes: list[Outcome] = []
    is_whole = True
    with console.status("") as status:
        try:
            for number, check in enumerate(planned, 1):
                status.update(f"{number} of {len(planned)}: {check.name}")
                outcomes.append(check if isinstance(check, Outcome) else check.outcome())
        except KeyboardInterrupt:
            is_whole = False
    return outcomes, is_whole


def _table(outcomes: list[Outcome]) -> Table:
    table = Table("check", "", "s", "remarks")
    for outcome in outcomes:
        numbers = ", ".join(f"{name} {value:g}" for name, value in outcome.numbers.items())
        color = _COLORS[outcome.verdict]
        verdict = f"[{color}]{outcome.verdict.value}[/]"
        table.add_row(outcome.name, verdict, f"{outcome.seconds:g}", outcome.detail or numbers)
    return table


def _document(
    described: dict[str, Any] | None, server: AnsweringServer | None, outcomes: list[Outcome]
) -> dict[str, Any]:
    environ = process_environment()
    return {
        "verdict": summed_up(outcomes).value,
        "versions": {found.name: found.version for found in versions(environ, vllm=None)},
        # Of this process: a server's may be others.
        "settings_here": {
            name: value for name, value in sorted(environ.items()) if name.startswith("VLLM_")
        },
        "server": described,
        "prompt_tokens": 0 if server is None else server.prompt_tokens,
        "checks": [asdict(outcome) for outcome in outcomes],
    }
