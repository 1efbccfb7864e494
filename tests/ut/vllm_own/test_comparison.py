# SPDX-License-Identifier: Apache-2.0
"""What is told of vLLM's own tests: everything that differs, and everything that no longer does."""

from __future__ import annotations

import pytest
import tomllib

from tests.vllm_own.comparison import Difference, unexplained
from tests.vllm_own.runs import CONFIGURATIONS, REPOSITORY, WITHOUT
from vllm_ascend.releases import find_release

WITHOUT_PATCHES = {"a.py::one": "passed", "a.py::two[1]": "passed", "a.py::two[2]": "failed"}


def difference(test: str, becomes: str) -> Difference:
    return Difference(test, becomes, "because")


def test_equal_outcomes_need_no_explanation():
    assert unexplained(WITHOUT_PATCHES, dict(WITHOUT_PATCHES), []) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"a.py::one": "failed"}, "a.py::one: passed without the patches, failed with them"),
        ({"a.py::two[2]": "passed"}, "a.py::two[2]: failed without the patches, passed with them"),
        ({"a.py::new": "passed"}, "a.py::new: missing without the patches, passed with them"),
    ],
)
def test_whatever_differs_is_told(change, told):
    assert unexplained(WITHOUT_PATCHES, WITHOUT_PATCHES | change, []) == [told]


def test_a_test_that_is_gone_is_told():
    with_ = {name: was for name, was in WITHOUT_PATCHES.items() if name != "a.py::one"}
    (told,) = unexplained(WITHOUT_PATCHES, with_, [])
    assert told == "a.py::one: passed without the patches, missing with them"


@pytest.mark.parametrize("name", ["a.py::two[1]", "a.py::two"])
def test_a_difference_is_named_by_its_case_or_for_all_cases(name):
    with_ = WITHOUT_PATCHES | {"a.py::two[1]": "failed"}
    assert unexplained(WITHOUT_PATCHES, with_, [difference(name, "failed")]) == []


def test_another_case_or_another_outcome_is_not_explained():
    with_ = WITHOUT_PATCHES | {"a.py::two[1]": "failed"}
    assert len(unexplained(WITHOUT_PATCHES, with_, [difference("a.py::two[2]", "failed")])) == 2
    assert len(unexplained(WITHOUT_PATCHES, with_, [difference("a.py::two", "skipped")])) == 2


def test_what_is_named_and_does_not_differ_is_told():
    (told,) = unexplained(WITHOUT_PATCHES, WITHOUT_PATCHES, [difference("a.py::one", "failed")])
    assert told == "a.py::one: the table says that it is failed, and nothing differs"


def test_the_table_names_releases_configurations_and_reasons():
    table = tomllib.loads((REPOSITORY / "tests/vllm_own/differences.toml").read_text())
    for release, configurations in table.items():
        assert find_release(release)
        # Unset means stock: nothing may differ there.
        assert configurations.keys() <= CONFIGURATIONS.keys() - {WITHOUT, "unset"}
        for rows in configurations.values():
            assert all(Difference(**row).why for row in rows)
            assert len({row["test"] for row in rows}) == len(rows)
