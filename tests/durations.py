# SPDX-License-Identifier: Apache-2.0
"""Where a run of the tests spent its time, shown at its end so that growth is seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

_SLOWEST = 10
_LEAST_FOLDER_S = 1.0
# tests/e2e/core, but tests/ut/evaluation/replay: what a change is likely to be about.
_FOLDER_DEPTH = 3


def seconds_by_test(reports: Iterable[pytest.TestReport]) -> Counter[str]:
    """Return the seconds of each test, its set-up and its tear-down together."""
    seconds: Counter[str] = Counter()
    for report in reports:
        seconds[report.nodeid] += report.duration
    return seconds


def seconds_by_folder(tests: Counter[str]) -> Counter[str]:
    """Return the seconds of each folder that lies at most three names deep."""
    folders: Counter[str] = Counter()
    for test, seconds in tests.items():
        path = test.partition("::")[0].split("/")[:-1]
        folders["/".join(path[:_FOLDER_DEPTH])] += seconds
    return folders


def summary_lines(reports: Iterable[pytest.TestReport]) -> list[str]:
    """Return the folders that took a second or more, and the ten slowest tests."""
    tests = seconds_by_test(reports)
    folders = seconds_by_folder(tests)
    lines = [
        f"{seconds:8.1f} s  {name}"
        for name, seconds in folders.most_common()
        if seconds >= _LEAST_FOLDER_S
    ]
    if not lines:
        return []
    slowest = [f"{seconds:8.1f} s  {name}" for name, seconds in tests.most_common(_SLOWEST)]
    return ["seconds of all workers, by folder:", *lines, "slowest tests:", *slowest]
