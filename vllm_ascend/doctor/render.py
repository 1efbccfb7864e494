# SPDX-License-Identifier: Apache-2.0
"""The diagnosis as text: tables that fit 80 columns, colours on a terminal only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from vllm_ascend.doctor.findings import (
    Diagnosis,
    Finding,
    GroupRow,
    LayoutFacts,
    PatchRow,
    Severity,
    VariableRow,
)
from vllm_ascend.patch.planner import APPLIED

PLAIN_WIDTH = 80
_INDENT = 2
_STYLES = {Severity.WRONG: "bold red", Severity.WARNING: "yellow", Severity.OK: "green"}
_SOURCES = {"set": "set", "default": "default", "profile": "by the profile", "invalid": "INVALID"}


def console_for_output() -> Console:
    """Return a console for standard output; 80 columns wide where that is no terminal."""
    console = Console(emoji=False, highlight=False)
    if not console.is_terminal:
        console = Console(emoji=False, highlight=False, width=PLAIN_WIDTH)
    return console


def print_diagnosis(diagnosis: Diagnosis, console: Console, *, verbose: bool = False) -> None:
    """Print what was found, the verdict last.

    Args:
        diagnosis: What was found.
        console: Where to.
        verbose: Every version, patch and variable, instead of a line for each of these.
    """
    print_without_padding(console, lambda: _print_sections(diagnosis, console, verbose=verbose))


def print_without_padding(console: Console, print_all: Callable[[], None]) -> None:
    """Print without the blanks that rich fills up lines with, and only a terminal does not show.

    Args:
        console: Where to.
        print_all: Prints there.
    """
    if console.is_terminal:
        print_all()
        return
    with console.capture() as captured:
        print_all()
    for line in captured.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def _print_sections(diagnosis: Diagnosis, console: Console, *, verbose: bool) -> None:
    if verbose:
        _section(console, "Versions", _versions(diagnosis))
        _section(console, "Overlay", _overlay(diagnosis))
        _section(console, "Patches", *_patches(diagnosis.patches))
        _section(console, "Variables", *map(_variable, diagnosis.variables))
    else:
        console.print(_short(diagnosis))
        console.print()
    if diagnosis.layout is not None:
        _section(console, "Layout", *_layout(diagnosis.layout))
    if diagnosis.findings:
        _section(console, "Findings", *map(_finding, _worst_first(diagnosis.findings)))
    console.print(_verdict(diagnosis))


def _short(diagnosis: Diagnosis) -> Table:
    """Return a row for each of what ``verbose`` has a section for."""
    found = [version for version in diagnosis.versions if version.version]
    counts = Counter(row.status for row in diagnosis.patches)
    asked = [row for row in diagnosis.variables if row.source != "default"]
    table = _table("", "")
    table.add_row("Versions", ", ".join(f"{v.name} {v.version}" for v in found))
    table.add_row("Overlay", _overlay(diagnosis))
    table.add_row("Patches", ", ".join(f"{n} {s}" for s, n in sorted(counts.items())) or "none")
    table.add_row("Variables", "\n".join(map(_assignment, asked)) or "none is set")
    return table


def _assignment(row: VariableRow) -> str:
    source = "" if row.source == "set" else f" ({_SOURCES[row.source]})"
    return f"{row.name}={row.value}{source}"


def _section(console: Console, title: str, *parts: RenderableType) -> None:
    console.print(Text(title, style="bold"))
    for part in parts:
        console.print(Padding(part, (0, 0, 0, _INDENT), expand=False))
    console.print()


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False, show_header=any(columns))
    for name in columns:
        justify = "right" if name in right else "left"
        table.add_column(name, justify=justify, overflow="fold", header_style="dim")  # type: ignore[arg-type]
    return table


def _versions(diagnosis: Diagnosis) -> Table:
    table = _table("", "", "")
    for version in diagnosis.versions:
        table.add_row(version.name, version.version or "not found", version.origin)
    return table


def _overlay(diagnosis: Diagnosis) -> Text:
    facts = diagnosis.overlay
    where = f"\n{facts.checkout}" + (f" at {facts.head}" if facts.head else "")
    return Text(facts.text + (where if facts.checkout else ""), overflow="fold")


def _patches(rows: tuple[PatchRow, ...]) -> Iterator[RenderableType]:
    """Yield a table per module that is patched; a reason where a patch is not applied."""
    if not rows:
        yield Text("none could be read")
    for module, group in groupby(sorted(rows, key=lambda row: row.target), key=_module):
        patches = list(group)
        yield Text(module, style="dim", overflow="fold")
        table = _table("", "", "")
        for patch in patches:
            table.add_row(f"  {_name(patch)}", patch.feature, _status(patch))
        yield table
        reasons = dict.fromkeys(p.reason for p in patches if p.status != APPLIED)
        for reason in reasons:
            names = ", ".join(_name(p) for p in patches if p.reason == reason)
            text = reason if len(reasons) == 1 else f"{names}: {reason}"
            yield Padding(Text(text, style="dim", overflow="fold"), (0, 0, 0, 4))


def _name(patch: PatchRow) -> str:
    return patch.target.partition(":")[2] or "(all)"


def _module(row: PatchRow) -> str:
    return row.target.partition(":")[0]


def _status(patch: PatchRow) -> Text:
    return Text(patch.status, style="green" if patch.status == APPLIED else "yellow")


def _variable(row: VariableRow) -> RenderableType:
    head = Text.assemble(
        (row.name, "bold" if row.source == "set" else ""),
        f" = {row.value} ",
        (f"({_SOURCES[row.source]})", _STYLES[Severity.WRONG] if row.source == "invalid" else ""),
    )
    table = _table("")
    table.add_row(head)
    table.add_row(Padding(Text(row.effect, style="dim"), (0, 0, 0, _INDENT)))
    return table


def _layout(layout: LayoutFacts) -> Iterator[RenderableType]:
    yield Text(f"{layout.model}, --block-size {layout.block_size:,}, {layout.coordinator}")
    table = _table(
        *("kind", "groups", "layers", "rows/block", "tokens/block", "bytes/page"),
        right=("groups", "layers", "rows/block", "tokens/block", "bytes/page"),
    )
    for group in layout.groups:
        table.add_row(*_cells(group))
    yield table
    facts = _table("", "")
    for name, value in _facts(layout):
        facts.add_row(name, value)
    yield facts


def _cells(group: GroupRow) -> tuple[str, ...]:
    numbers = (group.num_groups, group.num_layers, group.rows, group.tokens, group.page_bytes)
    return (group.kind, *(f"{number:,}" for number in numbers))


def _facts(layout: LayoutFacts) -> Iterator[tuple[str, str]]:
    yield "granule", f"{layout.granule:,} tokens"
    yield "hits are multiples of", f"{layout.alignment:,} tokens"
    smallest = "none within max_model_len"
    if layout.smallest_prefix is not None:
        ordinal = "2nd" if layout.hits_from_request == 2 else "3rd"
        smallest = f"{layout.smallest_prefix:,} tokens, by the {ordinal} request that has it"
    yield "smallest prefix that hits", smallest
    interval = layout.retention_interval
    kept = "none: every tail is kept" if interval is None else f"{interval:,} tokens"
    yield "retention interval", kept
    yield "bytes of a KV block", f"{layout.bytes_per_block:,}"
    yield "a GiB holds about", f"{layout.tokens_per_gib:,} tokens of prefixes"


def _worst_first(findings: tuple[Finding, ...]) -> list[Finding]:
    order = (Severity.WRONG, Severity.WARNING, Severity.OK)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def _finding(finding: Finding) -> RenderableType:
    table = _table("", "")
    label = Text(f"{finding.severity.value}:", style=_STYLES[finding.severity])
    table.add_row(label, Text(finding.text))
    if finding.remedy:
        table.add_row("", Text(f"-> {finding.remedy}", style="dim"))
    return table


def _verdict(diagnosis: Diagnosis) -> Text:
    num_wrong = diagnosis.count(Severity.WRONG)
    num_warnings = diagnosis.count(Severity.WARNING)
    severity = Severity.WRONG if num_wrong else Severity.OK
    verdict = f"serving would be {'wrong' if num_wrong else 'right'}"
    counts = f"{num_wrong} wrong, {num_warnings} warning{'' if num_warnings == 1 else 's'}"
    return Text(f"{verdict} ({counts})", style=_STYLES[severity])
