# SPDX-License-Identifier: Apache-2.0
"""The diagnosis as text: it fits 80 columns but for what is copied, with colours on a terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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
_LABEL = 11  # the longest label of the short form, and a blank
_STYLES = {Severity.WRONG: "bold red", Severity.WARNING: "yellow", Severity.OK: "green"}
_SOURCES = {
    "set": "set",
    "default": "default",
    "profile": "by the profile",
    "vllm": "vLLM's own",
    "invalid": "INVALID",
}


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
    width = console.width
    if verbose:
        _section(console, "Versions", _versions(diagnosis))
        _section(console, "Overlay", _paragraph(_overlay(diagnosis), width, _INDENT))
        if diagnosis.command:
            _section(console, "Command", [Text(" " * _INDENT + diagnosis.command.text)])
        _section(console, "Patches", _patches(diagnosis.patches, width))
        _section(console, "Variables", _variables(diagnosis.variables, width))
    else:
        for text in _short(diagnosis, width):
            console.print(text, soft_wrap=True)
        console.print()
    if diagnosis.layout is not None:
        parts = [
            Padding(part, (0, 0, 0, _INDENT), expand=False) for part in _layout(diagnosis.layout)
        ]
        _section(console, "Layout", parts)
    if diagnosis.findings:
        findings = _worst_first(diagnosis.findings)
        texts = [text for finding in findings for text in _finding(finding, width)]
        _section(console, "Findings", texts)
    console.print(_verdict(diagnosis))


def _section(console: Console, title: str, parts: Iterable[RenderableType]) -> None:
    console.print(Text(title, style="bold"))
    for part in parts:
        # A text is wrapped already: what is longer than the console is one word, to be copied.
        console.print(part, soft_wrap=isinstance(part, Text))
    console.print()


def _paragraph(text: str, width: int, indent: int, first: str = "", style: str = "") -> list[Text]:
    """Return lines that are broken at blanks alone: paths, names and targets stay whole.

    Args:
        text: What is told; a line break in it stays one.
        width: Columns.
        indent: Blanks in front of each line.
        first: What stands in their place in front of the first line.
        style: Of the text, not of ``first``.
    """
    lines: list[str] = []
    for part in text.splitlines() or [""]:
        lines += textwrap.wrap(
            part, max(width - indent, 1), break_long_words=False, break_on_hyphens=False
        )
    fronts = [first.ljust(indent), *[" " * indent] * (len(lines) - 1)]
    return [Text.assemble(front, (line, style)) for front, line in zip(fronts, lines, strict=False)]


def _short(diagnosis: Diagnosis, width: int) -> Iterator[Text]:
    """Yield a line, or a few, for each of what ``verbose`` has a section for."""
    found = [version for version in diagnosis.versions if version.version]
    asked = [row for row in diagnosis.variables if row.source != "default"]
    rows = {
        "Versions": ", ".join(f"{v.name} {v.version}" for v in found),
        "Overlay": _overlay(diagnosis),
        "Command": diagnosis.command.text if diagnosis.command else "",
        "Patches": _patch_counts(diagnosis.patches),
        "Variables": "\n".join(map(_assignment, asked)) or "none is set",
    }
    for name, text in rows.items():
        if name == "Command":  # to be copied: on one line
            yield from [Text(f"{name:{_LABEL}}{text}")] if text else []
        else:
            yield from _paragraph(text, width, _LABEL, name)


def _patch_counts(rows: tuple[PatchRow, ...]) -> str:
    """Return how many patches have which status; of one that all have, with its reason."""
    counts = Counter(row.status for row in rows)
    told = ", ".join(f"{n} {s}" for s, n in sorted(counts.items())) or "none"
    reasons = {row.reason for row in rows} if len(counts) == 1 and APPLIED not in counts else ()
    return told if len(reasons) != 1 else f"{told}: {reasons.pop()}"


def _assignment(row: VariableRow) -> str:
    source = "" if row.source == "set" else f" ({_SOURCES[row.source]})"
    return f"{row.name}={row.value}{source}"


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False, show_header=any(columns))
    for name in columns:
        justify = "right" if name in right else "left"
        table.add_column(name, justify=justify, overflow="fold", header_style="dim")  # type: ignore[arg-type]
    return table


def _versions(diagnosis: Diagnosis) -> Iterator[Text]:
    rows = [(v.name, v.version or "not found", v.origin) for v in diagnosis.versions]
    for name, version, origin in rows:
        name_width, version_width = (max(len(row[i]) for row in rows) for i in (0, 1))
        yield Text(f"  {name:{name_width}} {version:{version_width}} {origin}".rstrip())


def _overlay(diagnosis: Diagnosis) -> str:
    facts = diagnosis.overlay
    where = f"\n{facts.checkout}" + (f" at {facts.head}" if facts.head else "")
    return facts.text + (where if facts.checkout else "")


def _patches(rows: tuple[PatchRow, ...], width: int) -> Iterator[Text]:
    """Yield the patches of each module; a reason where a patch is not applied."""
    if not rows:
        yield Text("  none could be read")
    for module, group in groupby(sorted(rows, key=lambda row: row.target), key=_module):
        patches = list(group)
        yield Text(f"  {module}", style="dim")
        for patch in patches:
            yield Text.assemble(
                f"    {_name(patch)} ", (f"({patch.feature}) ", "dim"), _status(patch)
            )
        reasons = dict.fromkeys(p.reason for p in patches if p.status != APPLIED)
        for reason in reasons:
            names = ", ".join(_name(p) for p in patches if p.reason == reason)
            text = reason if len(reasons) == 1 else f"{names}: {reason}"
            yield from _paragraph(text, width, 6, style="dim")


def _name(patch: PatchRow) -> str:
    return patch.target.partition(":")[2] or "(all)"


def _module(row: PatchRow) -> str:
    return row.target.partition(":")[0]


def _status(patch: PatchRow) -> tuple[str, str]:
    return patch.status, "green" if patch.status == APPLIED else "yellow"


def _variables(rows: tuple[VariableRow, ...], width: int) -> Iterator[Text]:
    for row in rows:
        yield Text.assemble(
            (f"  {row.name}", "bold" if row.source == "set" else ""),
            f" = {row.value} ",
            (
                f"({_SOURCES[row.source]})",
                _STYLES[Severity.WRONG] if row.source == "invalid" else "",
            ),
        )
        yield from _paragraph(row.effect, width, 4, style="dim")


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
    if layout.weights is not None:
        yield "weights", f"{layout.weights} (engines that share rows must have the same)"


def _worst_first(findings: tuple[Finding, ...]) -> list[Finding]:
    order = (Severity.WRONG, Severity.WARNING, Severity.OK)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def _finding(finding: Finding, width: int) -> Iterator[Text]:
    label = f"{' ' * _INDENT}{finding.severity.value}: "
    lines = _paragraph(finding.text, width, len(label), label)
    lines[0].stylize(_STYLES[finding.severity], _INDENT, len(label) - 1)
    yield from lines
    front = f"{' ' * len(label)}-> "
    if finding.remedy:
        yield from _paragraph(finding.remedy, width, len(front), front, style="dim")
    if finding.command:  # to be copied: on one line
        yield Text.assemble(front, (finding.command, "dim"))


def _verdict(diagnosis: Diagnosis) -> Text:
    num_wrong = diagnosis.count(Severity.WRONG)
    num_warnings = diagnosis.count(Severity.WARNING)
    severity = Severity.WRONG if num_wrong else Severity.OK
    verdict = f"serving would be {'wrong' if num_wrong else 'right'}"
    counts = f"{num_wrong} wrong, {num_warnings} warning{'' if num_warnings == 1 else 's'}"
    return Text(f"{verdict} ({counts})", style=_STYLES[severity])
