# SPDX-License-Identifier: Apache-2.0
"""The page is as wide as the screen: what is wider scrolls in a box of its own."""

import re
from html.parser import HTMLParser

from tests.ut.evaluation.regress.samples import accuracy, measured, performance
from vllm_ascend_evaluation.regress.judge import Tolerances, judge
from vllm_ascend_evaluation.regress.report import RegressReport, write_report


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
