# SPDX-License-Identifier: Apache-2.0
"""What ``make test`` leaves out: names that exist, and cases that are the same each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiers import QuickTier

REPOSITORY = Path(__file__).parents[2]
TIER = QuickTier({"a.py", "b.py::one", "b.py::two[x]"}, {"c.py": 3, "c.py::all": 1})


@pytest.mark.parametrize(
    ("test", "runs"),
    [
        ("a.py::any", False),
        ("a.py::any[case]", False),
        ("b.py::one", False),
        ("b.py::one[case]", False),
        ("b.py::one_more", True),
        ("b.py::two[x]", False),
        ("b.py::two[y]", True),
        ("c.py::without_cases", True),
    ],
)
def test_a_file_a_test_or_a_case_can_be_left_out(test, runs):
    assert TIER.runs(test) is runs


def test_of_many_cases_some_run():
    cases = [f"c.py::some[{number}]" for number in range(300)]
    chosen = [case for case in cases if TIER.runs(case)]
    assert 50 < len(chosen) < 150
    assert chosen == [case for case in cases if TIER.runs(case)]
    assert all(TIER.runs(case.replace("some", "all")) for case in cases), "the narrowest"


def test_the_table_names_tests_that_exist():
    tier = QuickTier.read()
    for name in tier.left_out | tier.one_case_in.keys():
        path, _, test = name.partition("::")
        text = (REPOSITORY / path).read_text(encoding="utf-8")
        assert f"def {test.partition('[')[0]}" in text, name
