# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend doctor``: what a serving process would be, before there is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from vllm_ascend.doctor.findings import EXIT_BAD_INPUT, Diagnosis


def doctor(
    checkout: Annotated[
        Path | None,
        typer.Option(help="A vllm-ascend checkout; default: the one that serving imports, if any."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="A config.json, or the folder that holds it: tells the layout."),
    ] = None,
    block_size: Annotated[int | None, typer.Option(help="As of vllm serve.", min=1)] = None,
    max_model_len: Annotated[int | None, typer.Option(help="As of vllm serve.", min=1)] = None,
    num_speculative_tokens: Annotated[
        int, typer.Option(help="Of --speculative-config; 0: no drafting.", min=0)
    ] = 0,
    kv_transfer_config: Annotated[
        str | None, typer.Option(help="As of vllm serve, in JSON.")
    ] = None,
    max_num_batched_tokens: Annotated[int, typer.Option(help="As of vllm serve.", min=1)] = 8192,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on standard output.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show every patch and every variable.")
    ] = False,
) -> None:
    """Say whether serving would do what the settings ask for.

    Exit codes: 0 it would, 1 it would not, 2 bad input.
    """
    # Here, not above: python -m vllm_ascend must not import vLLM to list its commands.
    from vllm_ascend.doctor.layout_child import LayoutRequest
    from vllm_ascend.prefix_cache_config import process_environment
    from vllm_ascend.replay.trace import BadInputError

    try:
        asked = None
        connector = _json_object(kv_transfer_config)
        if checkout is not None:
            _check_checkout(checkout)
        if model is not None:
            asked = LayoutRequest(
                model=str(_checked(model)),
                block_size=block_size,
                max_model_len=max_model_len,
                num_speculative_tokens=num_speculative_tokens,
                max_num_batched_tokens=max_num_batched_tokens,
                kv_transfer_config=connector,
            )
        diagnosis = _diagnose(
            process_environment(), checkout, asked, has_connector=connector is not None
        )
    except BadInputError as error:
        text = f"[bold red]error:[/] {escape(str(error))}"
        _stderr().print(text, highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    _print(diagnosis, as_json=as_json, verbose=verbose)
    raise typer.Exit(diagnosis.exit_code)


def _check_checkout(checkout: Path) -> None:
    from vllm_ascend.deployment import is_checkout
    from vllm_ascend.replay.trace import BadInputError

    if not is_checkout(checkout / "vllm_ascend"):
        raise BadInputError(
            f"--checkout {checkout}: no checkout of vllm-ascend (no vllm_ascend/platform.py)"
        )


def _checked(model: Path) -> Path:
    """Return the model's place, once its configuration could be read."""
    from vllm_ascend.doctor.model_config import read_model

    read_model(model)
    return model.resolve()


def _json_object(text: str | None) -> dict[str, Any] | None:
    from vllm_ascend.replay.trace import BadInputError

    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadInputError(f"--kv-transfer-config {text}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise BadInputError(f"--kv-transfer-config {text}: expected a JSON object")
    return value


def _diagnose(
    environ: dict[str, str], checkout: Path | None, asked: Any, *, has_connector: bool
) -> Diagnosis:
    """Run the probes, showing on a terminal that something goes on."""
    from vllm_ascend.doctor.diagnosis import diagnose

    with _stderr().status("starting vLLM as serving does ..."):
        return diagnose(environ, checkout=checkout, asked=asked, has_connector=has_connector)


def _print(diagnosis: Diagnosis, *, as_json: bool, verbose: bool) -> None:
    if as_json:
        typer.echo(json.dumps(diagnosis.to_dict(), indent=2))
        return
    from vllm_ascend.doctor.render import console_for_output, print_diagnosis

    print_diagnosis(diagnosis, console_for_output(), verbose=verbose)


def _stderr() -> Console:
    return Console(stderr=True, emoji=False)
