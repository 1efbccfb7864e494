# SPDX-License-Identifier: Apache-2.0
"""Verdicts as CI reads them."""

from xml.etree import ElementTree

import pytest

from tests.ut.evaluation.regress.samples import accuracy, measured, performance, performance_of
from vllm_ascend_evaluation.regress.ci import write_junit, write_markdown
from vllm_ascend_evaluation.regress.judge import Tolerances, judge
from vllm_ascend_evaluation.regress.report import COLUMNS, RegressReport

# What the schema of Jenkins' and pytest's JUnit files ("xunit2") allows; R: required.
ATTRIBUTES = {
    "testsuites": {"tests", "failures", "errors", "skipped"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped"},
    "property": {"name", "value"},
    "testcase": {"name", "classname"},
    "failure": {"type", "message"},
    "skipped": {"message"},
}
CHILDREN = {
    "testsuites": ["testsuite"],
    "testsuite": ["properties", "testcase", "system-out"],
    "properties": ["property"],
    "testcase": ["skipped", "failure", "system-out"],
}


@pytest.fixture
def report():
    """TTFT regressed, accuracy has no baseline."""
    now = measured(
        performance=performance_of({"ttft_avg_ms": 300.0}, {"ttft_avg_ms": 310.0}),
        accuracy=accuracy(),
    )
    verdicts = judge(now, measured(performance=performance()), Tolerances())
    return RegressReport("command", now, "base.json", verdicts, ["a|b <c>\nd", "noise & \x1b"])


def check(element):
    """Check an element, and all in it, against the schema; children in the schema's order."""
    assert set(element.attrib) == ATTRIBUTES.get(element.tag, set())
    order = [CHILDREN[element.tag].index(child.tag) for child in element]
    assert order == sorted(order)
    for child in element:
        if child.tag in CHILDREN:
            check(child)
        else:
            assert set(child.attrib) == ATTRIBUTES.get(child.tag, set())


def test_junit_has_a_case_per_metric(report, tmp_path):
    write_junit(report, tmp_path / "j.xml")
    root = ElementTree.parse(tmp_path / "j.xml").getroot()
    check(root)
    (suite,) = root
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "7", "failures": "1", "errors": "0", "skipped": "1"}
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert list(cases) == [verdict.metric.name for verdict in report.verdicts]
    message = cases["ttft-avg"].find("failure").get("message")
    assert "baseline 200.00" in message and "now 305.00" in message
    assert "change +52.50 %, allowed +5.00 %, noise 3.28 %" in message
    assert cases["accuracy"].find("skipped") is not None
    assert len(suite.findall("testcase/failure")) == len(suite.findall("testcase/skipped")) == 1
    assert "note: noise & " in suite.find("system-out").text
    assert {p.get("name") for p in suite.iter("property")} >= {"server", "load", "questions"}


def test_markdown_has_the_table(report, tmp_path):
    write_markdown(report, tmp_path / "m.md")
    lines = (tmp_path / "m.md").read_text().splitlines()
    assert lines[0] == "### Regressions: 1 of 6 metrics regressed: TTFT avg"
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(report.verdicts)
    assert {line.count("|") for line in table} == {len(COLUMNS) + 1}
    assert [line for line in table if "REGRESSION" in line] == [
        "| **TTFT avg, ms** | **200.00** | **305.00** | **+52.50 %** | **+5.00 %** | **3.28 %** "
        "| **REGRESSION** |"
    ]
    assert r"- note: a\|b &lt;c> d" in lines
