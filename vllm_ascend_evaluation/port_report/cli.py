# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend port-report``: what a port to another release would meet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from vllm_ascend_evaluation.port_report.census import PortReport
    from vllm_ascend_evaluation.port_report.files import PackageFiles

_EXIT_BAD_INPUT = 2
_VLLM, _VLLM_ASCEND = "vllm", "vllm_ascend"


def port_report(
    vllm: Annotated[
        list[Path] | None,
        typer.Option(
            help="A vLLM to look at: a folder that holds the package vllm (an unpacked wheel, a "
            "checkout), a wheel or a .tar.gz. Repeatable.",
            metavar="PATH",
        ),
    ] = None,
    vllm_ascend: Annotated[
        list[Path] | None,
        typer.Option(
            help="A vllm-ascend to look at, of the same forms. Repeatable.", metavar="PATH"
        ),
    ] = None,
    base_vllm: Annotated[
        Path | None,
        typer.Option(
            help="The vLLM that the patches are for; default: the installed one.", metavar="PATH"
        ),
    ] = None,
    base_vllm_ascend: Annotated[
        Path | None,
        typer.Option(
            help="The vllm-ascend that the patches are for; default: the digests that they know.",
            metavar="PATH",
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the report as JSON, too.", metavar="FILE")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write the report as a page, too.", metavar="FILE")
    ] = None,
) -> None:
    """Say what became of every patch target in other releases; import nothing of them.

    Exit codes: 0 the report is there, whatever it says; 2 bad input.
    """
    from vllm_ascend.command_line.bad_input import BadInputError

    try:
        report = _make_report(
            vllm or [],
            vllm_ascend or [],
            base_vllm,
            base_vllm_ascend,
            {"--json": json_file, "--markdown": markdown},
        )
    except BadInputError as error:
        text = f"[bold red]error:[/] {escape(str(error))}"
        _stderr().print(text, highlight=False, soft_wrap=True)
        raise typer.Exit(_EXIT_BAD_INPUT) from error
    _write(report, json_file, markdown)
    from vllm_ascend_evaluation.port_report.render import print_report

    console = Console(emoji=False, highlight=False)
    print_report(report, console)
    for file in filter(None, (json_file, markdown)):
        console.print(f"written to {file}", markup=False, soft_wrap=True)


def _make_report(
    vllm: list[Path],
    vllm_ascend: list[Path],
    base_vllm: Path | None,
    base_vllm_ascend: Path | None,
    results: dict[str, Path | None],
) -> PortReport:
    """Check all that was given, then look up every patch."""
    from vllm_ascend.overlay.patch_list import all_patches
    from vllm_ascend_evaluation.port_report.census import PortReport, make_section
    from vllm_ascend_evaluation.port_report.files import open_files

    trees = _open(vllm, vllm_ascend)
    bases: dict[str, PackageFiles | None] = {_VLLM: None, _VLLM_ASCEND: None}
    if base_vllm is not None:
        bases[_VLLM] = open_files("--base-vllm", base_vllm, _VLLM)
    elif vllm:
        bases[_VLLM] = _installed_vllm()
    if base_vllm_ascend is not None:
        bases[_VLLM_ASCEND] = open_files("--base-vllm-ascend", base_vllm_ascend, _VLLM_ASCEND)
    _prepare_results(results)
    with _stderr().status("looking up the targets ..."):
        entries = all_patches()
        return PortReport(
            tuple(
                make_section(entries, bases[package], found)
                for package, found in trees.items()
                if found
            )
        )


def _installed_vllm() -> PackageFiles:
    """Return the vLLM that serving would import; the current folder may hold another."""
    from vllm_ascend.command_line.bad_input import BadInputError
    from vllm_ascend.doctor.children import find_package
    from vllm_ascend.prefix_cache_config import child_environment
    from vllm_ascend_evaluation.port_report.files import open_files

    package = find_package(_VLLM, child_environment({}))
    if package is None:
        raise BadInputError(
            "--base-vllm: this Python has no vLLM: name the folder of the one that the patches are "
            "for"
        )
    return open_files("--base-vllm", package.parent, _VLLM)


def _open(vllm: list[Path], vllm_ascend: list[Path]) -> dict[str, list[PackageFiles]]:
    from vllm_ascend.command_line.bad_input import BadInputError
    from vllm_ascend_evaluation.port_report.files import open_files

    if not vllm and not vllm_ascend:
        raise BadInputError("nothing to look at: give --vllm PATH or --vllm-ascend PATH")
    return {
        _VLLM: [open_files("--vllm", path, _VLLM) for path in vllm],
        _VLLM_ASCEND: [open_files("--vllm-ascend", path, _VLLM_ASCEND) for path in vllm_ascend],
    }


def _prepare_results(files: dict[str, Path | None]) -> None:
    from vllm_ascend.command_line.bad_input import BadInputError
    from vllm_ascend_evaluation.replay.outputs import prepare_files

    given = {option: file for option, file in files.items() if file is not None}
    if len({file.resolve() for file in given.values()}) < len(given):
        raise BadInputError(f"--markdown {files['--markdown']}: is the file of --json as well")
    prepare_files(files)


def _write(report: PortReport, json_file: Path | None, markdown: Path | None) -> None:
    from vllm_ascend_evaluation.port_report.markdown import render_page
    from vllm_ascend_evaluation.replay.report.json_file import write_json, write_whole

    if json_file is not None:
        write_json(report, json_file)
    if markdown is not None:
        write_whole(markdown, render_page(report))


def _stderr() -> Console:
    return Console(stderr=True, emoji=False)
