# SPDX-License-Identifier: Apache-2.0
"""The seconds that a run of the tests prints at its end."""

from __future__ import annotations

import pytest

from tests.durations import summary_lines


def report(nodeid: str, when: str, seconds: float) -> pytest.TestReport:
    return pytest.TestReport(nodeid, ("", 0, ""), {}, "passed", None, when, duration=seconds)


def test_folders_and_slowest_tests():
    reports = [
        report("tests/ut/core/pool/test_a.py::one", "setup", 2.0),
        report("tests/ut/core/pool/test_a.py::one", "call", 1.5),
        report("tests/ut/core/test_b.py::two[1]", "call", 4.0),
        report("tests/e2e/test_c.py::three", "call", 0.2),
    ]
    assert [line.split() for line in summary_lines(reports)] == [
        ["seconds", "of", "all", "workers,", "by", "folder:"],
        ["7.5", "s", "tests/ut/core"],
        ["slowest", "tests:"],
        ["4.0", "s", "tests/ut/core/test_b.py::two[1]"],
        ["3.5", "s", "tests/ut/core/pool/test_a.py::one"],
        ["0.2", "s", "tests/e2e/test_c.py::three"],
    ]


def test_a_run_that_took_no_time_says_nothing():
    assert summary_lines([report("tests/ut/test_a.py::one", "call", 0.1)]) == []
