# SPDX-License-Identifier: Apache-2.0
"""Verdicts for CI: JUnit's XML, which test viewers read, and Markdown for a job's summary."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from vllm_ascend_evaluation.regress.judge import NOT_COMPARED, NOT_KNOWN, REGRESSION, Verdict
from vllm_ascend_evaluation.regress.report import COLUMNS, RegressReport, cells, facts
from vllm_ascend_evaluation.replay.report.json_file import write_whole

_SUITE = "regress"
_NOT_JUDGED = (NOT_COMPARED, NOT_KNOWN)
# XML 1.0 has no form for these, which a server may have put in its model's name.
_NO_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(report: RegressReport, path: Path) -> None:
    """Write a test case per metric: failed if it regressed, skipped if it was not judged.

    Raises:
        OSError: The file cannot be written.
    """
    skipped = sum(verdict.outcome in _NOT_JUDGED for verdict in report.verdicts)
    counts = {
        "tests": str(len(report.verdicts)),
        "failures": str(len(report.regressions)),
        "errors": "0",
        "skipped": str(skipped),
    }
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": _SUITE, **counts})
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in facts(report.measured):
        ElementTree.SubElement(properties, "property", {"name": name, "value": value})
    for verdict in report.verdicts:
        _add_case(suite, verdict)
    output = ElementTree.SubElement(suite, "system-out")
    output.text = "\n".join([*(f"note: {note}" for note in report.notes), report.summary])
    ElementTree.indent(root)
    text = _NO_XML.sub("\N{REPLACEMENT CHARACTER}", ElementTree.tostring(root, encoding="unicode"))
    write_whole(path, f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n')


def _add_case(suite: ElementTree.Element, verdict: Verdict) -> None:
    names = {"classname": _SUITE, "name": verdict.metric.name}
    case = ElementTree.SubElement(suite, "testcase", names)
    shown = zip(COLUMNS[1:-1], cells(verdict)[1:-1], strict=True)
    text = f"{cells(verdict)[0]}: " + ", ".join(f"{column} {cell}" for column, cell in shown)
    if verdict.outcome == REGRESSION:
        ElementTree.SubElement(case, "failure", {"type": REGRESSION, "message": text})
    elif verdict.outcome in _NOT_JUDGED:
        ElementTree.SubElement(case, "skipped", {"message": text})
    else:
        ElementTree.SubElement(case, "system-out").text = text


def write_markdown(report: RegressReport, path: Path) -> None:
    """Write the table, the notes and what else was measured.

    Raises:
        OSError: The file cannot be written.
    """
    rows = [
        tuple(f"**{cell}**" for cell in row) if verdict.outcome == REGRESSION else row
        for verdict, row in ((verdict, cells(verdict)) for verdict in report.verdicts)
    ]
    align = (":--", *("--:" for _ in COLUMNS[1:]))
    lines = [
        f"### Regressions: {_escape(report.summary)}",
        "",
        *("| " + " | ".join(map(_escape, row)) + " |" for row in (COLUMNS, align, *rows)),
        "",
        *(f"- note: {_escape(note)}" for note in report.notes),
        *(f"- {_escape(name)}: {_escape(value)}" for name, value in facts(report.measured)),
    ]
    write_whole(path, "\n".join(lines) + "\n")


def _escape(text: str) -> str:
    """Return a text that is nothing but text in a row of a table."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;")
