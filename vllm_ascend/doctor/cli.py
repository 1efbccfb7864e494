# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend doctor``: what a serving process would be, before there is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from vllm_ascend.doctor.findings import EXIT_BAD_INPUT, Diagnosis

if TYPE_CHECKING:
    from vllm_ascend.doctor.diagnosis import Question

_DEFAULT_BATCHED_TOKENS = 8192

_Command = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- COMMAND",
        help="The serving command, judged as it stands: -- vllm serve MODEL ...",
    ),
]
_Manifest = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="A Kubernetes manifest or a compose file whose serving command and environment are "
        "judged; -: standard input.",
    ),
]
_Container = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Which container of --manifest, if several serve."),
]
_Checkout = Annotated[
    Path | None,
    typer.Option(help="A vllm-ascend checkout; default: the one that serving imports, if any."),
]
_Model = Annotated[
    Path | None,
    typer.Option(help="A config.json, or the folder that holds it: tells the layout."),
]
_BlockSize = Annotated[int | None, typer.Option(help="As for vllm serve.", min=1)]
_MaxModelLen = Annotated[int | None, typer.Option(help="As for vllm serve.", min=1)]
_Drafts = Annotated[
    int | None, typer.Option(help="Of --speculative-config; default: no drafting.", min=0)
]
_Transfer = Annotated[str | None, typer.Option(help="As for vllm serve, in JSON.")]
_BatchedTokens = Annotated[
    int | None,
    typer.Option(help=f"As for vllm serve; default: {_DEFAULT_BATCHED_TOKENS}.", min=1),
]
_AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
_Verbose = Annotated[bool, typer.Option("--verbose", help="Show every patch and every variable.")]


def doctor(
    command: _Command = None,
    manifest: _Manifest = None,
    container: _Container = None,
    checkout: _Checkout = None,
    model: _Model = None,
    block_size: _BlockSize = None,
    max_model_len: _MaxModelLen = None,
    num_speculative_tokens: _Drafts = None,
    kv_transfer_config: _Transfer = None,
    max_num_batched_tokens: _BatchedTokens = None,
    as_json: _AsJson = False,
    verbose: _Verbose = False,
) -> None:
    """Say whether serving would do what the settings ask for.

    Exit codes: 0 it would, 1 it would not, 2 bad input, 130 interrupted.
    """
    # Here, not above: python -m vllm_ascend must not import vLLM to list its commands.
    from vllm_ascend.command_line.bad_input import BadInputError
    from vllm_ascend.command_line.ends import EXIT_INTERRUPTED, say
    from vllm_ascend.command_line.interrupts import termination_interrupts

    flags = {
        "--block-size": block_size,
        "--max-model-len": max_model_len,
        "--num-speculative-tokens": num_speculative_tokens,
        "--kv-transfer-config": kv_transfer_config,
        "--max-num-batched-tokens": max_num_batched_tokens,
    }
    try:
        _check_places(checkout, model)
        if command or manifest is not None or container is not None:
            question = _of_command(command or [], manifest, container, model, flags)
        else:
            question = _of_options(model, flags)
        with termination_interrupts():
            diagnosis = _diagnose(question, checkout)
    except KeyboardInterrupt as error:
        say("[yellow]interrupted:[/]", "doctor was not finished; it changes nothing")
        raise typer.Exit(EXIT_INTERRUPTED) from error
    except BadInputError as error:
        text = f"[bold red]error:[/] {escape(str(error))}"
        _stderr().print(text, highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    _print(diagnosis, as_json=as_json, verbose=verbose)
    raise typer.Exit(diagnosis.exit_code)


def _check_places(checkout: Path | None, model: Path | None) -> None:
    from vllm_ascend.command_line.bad_input import BadInputError
    from vllm_ascend.deployment import is_checkout
    from vllm_ascend.doctor.model_config import read_model

    if checkout is not None and not is_checkout(checkout / "vllm_ascend"):
        raise BadInputError(
            f"--checkout {checkout}: is not a checkout of vllm-ascend "
            "(it has no vllm_ascend/platform.py)"
        )
    if model is not None:
        read_model(model)


def _of_command(
    words: list[str],
    manifest: str | None,
    container: str | None,
    model: Path | None,
    flags: dict[str, Any],
) -> Question:
    """Return the question whether a serving command would do.

    Raises:
        BadInputError: There is none, or more than one, or it and options say the same.
    """
    from vllm_ascend.command_line.bad_input import BadInputError
    from vllm_ascend.doctor.diagnosis import Question
    from vllm_ascend.doctor.manifests import serving_command_of
    from vllm_ascend.doctor.serving_command import Container, find_serving_command
    from vllm_ascend.prefix_cache_config import process_environment

    environ = process_environment()
    given = [option for option, value in flags.items() if value is not None]
    if given:
        raise BadInputError(f"{given[0]}: the serving command says that; leave the option out")
    if words and manifest is not None:
        raise BadInputError(f"--manifest {manifest}: leave it out, or the command behind --")
    if manifest is not None:
        command = serving_command_of(manifest, container, environ)
    elif container is not None:
        raise BadInputError(f"--container {container}: needs --manifest")
    else:
        try:
            found = find_serving_command(Container("", words, environ))
        except ValueError as error:
            raise BadInputError(f"the command behind --: {error}") from error
        if found is None:
            raise BadInputError(f"the command behind --: {words[0]!r} is not `vllm serve ...`")
        command = found
    return Question(command.environ, command=command, model=model)


def _of_options(model: Path | None, flags: dict[str, Any]) -> Question:
    """Return the question about the model that options describe, if they name one."""
    from vllm_ascend.doctor.diagnosis import Question
    from vllm_ascend.doctor.layout_child import LayoutRequest
    from vllm_ascend.prefix_cache_config import process_environment

    connector = _json_object(flags["--kv-transfer-config"])
    asked = None
    if model is not None:
        asked = LayoutRequest(
            model=str(model.resolve()),
            block_size=flags["--block-size"],
            max_model_len=flags["--max-model-len"],
            num_speculative_tokens=flags["--num-speculative-tokens"] or 0,
            max_num_batched_tokens=flags["--max-num-batched-tokens"] or _DEFAULT_BATCHED_TOKENS,
            kv_transfer_config=connector,
        )
    return Question(process_environment(), layout=asked, has_connector=connector is not None)


def _json_object(text: str | None) -> dict[str, Any] | None:
    from vllm_ascend.command_line.bad_input import BadInputError

    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadInputError(f"--kv-transfer-config {text}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise BadInputError(f"--kv-transfer-config {text}: expected a JSON object")
    return value


def _diagnose(question: Question, checkout: Path | None) -> Diagnosis:
    """Run the probes, showing on a terminal that something goes on."""
    from vllm_ascend.doctor.diagnosis import diagnose

    with _stderr().status("starting vLLM as serving does ..."):
        return diagnose(question, checkout=checkout)


def _print(diagnosis: Diagnosis, *, as_json: bool, verbose: bool) -> None:
    if as_json:
        typer.echo(json.dumps(diagnosis.to_dict(), indent=2))
        return
    from vllm_ascend.doctor.render import console_for_output, print_diagnosis

    print_diagnosis(diagnosis, console_for_output(), verbose=verbose)


def _stderr() -> Console:
    return Console(stderr=True, emoji=False)
