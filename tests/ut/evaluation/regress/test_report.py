# SPDX-License-Identifier: Apache-2.0
"""Where there is little room: a page scrolls in boxes, a table of 80 columns cuts nothing."""

import io
import re
from html.parser import HTMLParser

from rich.console import Console

from tests.ut.evaluation.regress.samples import accuracy, measured, performance
from vllm_ascend_evaluation.regress.judge import (
    METRICS,
    REGRESSION,
    Figure,
    Tolerances,
    Verdict,
    judge,
)
from vllm_ascend_evaluation.regress.report import RegressReport, print_report, write_report


class Boxes(HTMLParser):
    """Gathers the class of the element that each table lies in."""

    def __init__(self):
        super().__init__()
        self.path, self.found = [], []

    def handle_starttag(self, tag, attrs):
        """Note where a table lies."""
        if tag == "table":
            self.found.append(self.path[-1])
        if tag != "meta":
            self.path.append(dict(attrs).get("class"))

    def handle_endtag(self, tag):
        """Leave an element."""
        self.path.pop()


def test_tables_scroll_in_boxes_of_their_own(tmp_path):
    now = measured(performance=performance(), accuracy=accuracy())
    verdicts = judge(now, now, Tolerances())
    write_report(RegressReport("command", now, "b.json", verdicts, []), tmp_path)
    page = (tmp_path / "regress.html").read_text()
    boxes = Boxes()
    boxes.feed(page)
    assert boxes.found == ["wide", "wide"]
    assert re.search(r"\.wide { overflow-x: auto;", page)


def test_on_80_columns_every_number_has_its_unit_and_no_verdict_is_cut():
    figure = Figure((12_345.0, 12_355.0))
    verdicts = [Verdict(metric, figure, figure, -12.34, -26.83, REGRESSION) for metric in METRICS]
    console = Console(file=io.StringIO(), width=80)
    now = measured(performance=performance())
    print_report(RegressReport("command", now, "b.json", verdicts, []), console)
    text = console.file.getvalue()
    rows = [line.split() for line in text.splitlines() if REGRESSION in line]
    assert len(rows) == len(METRICS)
    assert text.count("points") == 3 * 3  # change, allowed and noise of three metrics
    assert sum(row.count("%") for row in rows) >= 3 * 5
