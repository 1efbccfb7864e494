# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend overlay {plan, apply, revert, status} CHECKOUT``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vllm_ascend.command_line.ends import EXIT_INTERRUPTED, say
from vllm_ascend.overlay import inspection, state, transaction
from vllm_ascend.overlay.checkout import Checkout
from vllm_ascend.overlay.errors import OverlayError
from vllm_ascend.overlay.inspection import OverlayStatus
from vllm_ascend.overlay.ownership import command_to_get_back, describe_left_behind
from vllm_ascend.overlay.plan import (
    OverlayPlan,
    describe_out_of_force,
    describe_refusal,
    describe_unknown,
    make_plan,
)

app = typer.Typer(
    name="overlay",
    help="Put this package over an editable checkout of vllm-ascend, or take it away again.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_console = Console()
# Fields of a patch in JSON.
_TOLD_OF_PATCHES = ("target", "feature", "why", "digests")

_AFTER_INTERRUPT = {
    state.ABSENT: "no file is changed",
    state.INTERRUPTED: f"no file is changed; `overlay revert` removes {state.STATE_DIRECTORY}",
    state.HALF_APPLIED: "half of the overlay is there; run `overlay revert`",
    state.APPLIED: "the overlay is there, whole",
}
_WHAT_NOW = {
    state.INTERRUPTED: (
        "an apply was interrupted before it replaced anything: run `overlay apply` again, or "
        f"`overlay revert`, which removes {state.STATE_DIRECTORY}"
    ),
    state.HALF_APPLIED: "an apply or a revert was interrupted: run `overlay revert`",
}

CheckoutArgument = Annotated[
    Path, typer.Argument(help="The checkout, e.g. /vllm-workspace/vllm-ascend.", metavar="CHECKOUT")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def _one_error() -> Iterator[None]:
    try:
        yield
    except OverlayError as error:
        Console(stderr=True, soft_wrap=True).print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(2) from error


@contextmanager
def _interrupt_told(command: str, checkout: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        now = _AFTER_INTERRUPT[state.standing(checkout)]
        say("[yellow]interrupted:[/]", f"overlay {command} {checkout}: {now}")
        raise typer.Exit(EXIT_INTERRUPTED) from error


@app.command()
def plan(checkout: CheckoutArgument, as_json: JsonOption = False) -> None:
    """Print every file and every patch with its reason; change nothing."""
    with _one_error():
        planned = make_plan(checkout)
    if as_json:
        typer.echo(json.dumps(_as_json(planned), indent=1))
        return
    _print_plan(planned)


@app.command()
def apply(
    checkout: CheckoutArgument,
    allow_unknown: Annotated[
        bool,
        typer.Option(
            help="Accept a checkout that is not a known commit, if all that is needed is there."
        ),
    ] = False,
) -> None:
    """Put all files in their places, or none."""
    with _one_error(), _interrupt_told("apply", checkout):
        planned = make_plan(checkout)
        planned.refuse_misfit(allow_unknown=allow_unknown)
        done = transaction.apply(planned)
    files = f"{len(planned.files)} files"
    print_line(f"applied: {files}" if done else f"applied already: {files}, nothing to do")
    _print_unknown(planned.checkout)
    _print_out_of_force(planned.checkout.out_of_force)


@app.command()
def revert(
    checkout: CheckoutArgument,
    discard_changes: Annotated[
        bool, typer.Option(help="Lose what was changed in our files since.")
    ] = False,
) -> None:
    """Put every file of vllm-ascend back, byte for byte."""
    with _one_error(), _interrupt_told("revert", checkout):
        done = transaction.revert(checkout, discard_changes=discard_changes)
    print_line("reverted" if done else "no overlay there, nothing to do")


@app.command()
def status(checkout: CheckoutArgument, as_json: JsonOption = False) -> None:
    """Say what is there. Exit code 0 if this version's overlay is complete, else 1."""
    with _one_error():
        found = inspection.status(checkout)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1))
    else:
        _print_status(found, checkout)
    raise typer.Exit(0 if found.state == state.APPLIED else 1)


def _print_status(found: OverlayStatus, checkout: Path) -> None:
    on = f" on commit {found.head[:8]}" if found.head else ""
    print_line(f"{found.state}{on}: {found.files} files of ours")
    if found.state in _WHAT_NOW:
        print_line(f"  {_WHAT_NOW[found.state]}")
    if found.unsupported:
        print_line(f"  {found.unsupported}")
    if found.left_behind:
        print_line(f"  {describe_left_behind(found.left_behind)}")
        command = command_to_get_back(checkout.resolve(), found.left_behind)
        print_line(f"  To get vllm-ascend's own files back: {command}")
    for path in found.modified:
        print_line(f"  changed since: {path}")
    if found.outdated:
        print_line("  the overlay is of another version of this project; these files differ:")
    for path in found.outdated:
        print_line(f"  {path}")
    _print_out_of_force(found.out_of_force)


def _print_unknown(checkout: Checkout) -> None:
    if unknown := describe_unknown(checkout):
        print_line(f"  {unknown}")


def _print_out_of_force(paths: tuple[str, ...]) -> None:
    covered = describe_out_of_force(paths)
    if covered:
        print_line(f"  {covered}")


def print_line(text: str) -> None:
    """Print a line as it is, without wrapping."""
    _console.print(text, markup=False, highlight=False, soft_wrap=True)


def _as_json(planned: OverlayPlan) -> dict:
    checkout = planned.checkout
    return {
        "checkout": {
            **asdict(checkout),
            "root": str(checkout.root),
            "release": checkout.release.vllm_ascend,
        },
        "refuses": bool(describe_refusal(checkout)),
        "allow_unknown_helps": checkout.needs_allow_unknown and not checkout.problems,
        "files": [asdict(file) for file in planned.files],
        "patches": [
            {name: getattr(patch, name) for name in _TOLD_OF_PATCHES} for patch in planned.patches
        ],
    }


def _print_plan(planned: OverlayPlan) -> None:
    checkout = planned.checkout
    known = f"commit {checkout.head[:8]}" if checkout.head else "no known commit"
    print_line(f"{checkout.root}: {known}")
    for problem in checkout.problems:
        print_line(f"  does not fit: {problem}")
    for what in checkout.inside:
        print_line(f"  the overlay rests on what has changed: {what}")
    for path in checkout.changed:
        print_line(f"  differs from {checkout.nearest[:8]}: {path}")
    if refusal := describe_refusal(checkout):
        print_line(f"  {refusal}")
    _print_unknown(checkout)
    _print_out_of_force(checkout.out_of_force)
    print_line(f"\n{len(planned.files)} files")
    for file in sorted(planned.files, key=lambda file: (not file.replaces, file.path)):
        does = "extends" if file.appended else "replaces" if file.replaces else "joins"
        print_line(f"  {does:8} {file.path}")
        print_line(f"           {file.why}")
    print_line(f"\n{len(planned.patches)} patches")
    for patch in planned.patches:
        print_line(f"  {patch.target}")
        print_line(f"           {patch.why}")
