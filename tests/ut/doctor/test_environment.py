# SPDX-License-Identifier: Apache-2.0
"""Variables: what is in force and why, values and names that nobody can use."""

from __future__ import annotations

import pytest

from vllm_ascend.doctor.environment import (
    asks_for_something,
    check_empty,
    check_hash_seed,
    check_names,
    check_values,
    variable_rows,
)
from vllm_ascend.doctor.findings import Severity
from vllm_ascend.doctor.patches import known_variables
from vllm_ascend.prefix_cache_config import VARIABLES

PARTIAL = "VLLM_ASCEND_DSV4_PARTIAL_HITS"
RETENTION = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
PROFILE = "VLLM_ASCEND_PREFIX_CACHE_PROFILE"
APPLY = "VLLM_ASCEND_APPLY_DSV4_PATCH"


def row(environ: dict[str, str], name: str) -> tuple[str, str]:
    (found,) = [row for row in variable_rows(environ) if row.name == name]
    return found.value, found.source


def test_every_variable_has_a_row_with_its_effect():
    rows = variable_rows({})
    assert [row.name for row in rows] == [variable.name for variable in VARIABLES]
    assert all(row.effect and row.source == "default" for row in rows)


@pytest.mark.parametrize(
    ("environ", "name", "value", "source"),
    [
        ({}, PARTIAL, "0", "default"),
        ({}, RETENTION, "unset", "default"),
        ({PARTIAL: "1"}, PARTIAL, "1", "set"),
        ({PARTIAL: "0"}, PARTIAL, "0", "set"),
        ({PROFILE: "best"}, PARTIAL, "1", "profile"),
        ({PROFILE: "best"}, RETENTION, "auto", "profile"),
        ({PROFILE: "best", PARTIAL: "0"}, PARTIAL, "0", "set"),
        ({PARTIAL: "yes"}, PARTIAL, "yes", "invalid"),
        ({PARTIAL: ""}, PARTIAL, "0", "default"),
    ],
)
def test_a_row_says_what_is_in_force_and_who_says_so(environ, name, value, source):
    assert row(environ, name) == (value, source)


def test_an_invalid_value_does_not_hide_the_others():
    assert row({PARTIAL: "yes", RETENTION: "0"}, RETENTION) == ("0", "set")


@pytest.mark.parametrize(
    ("value", "serves", "is_wrong"),
    [
        ("", "0.20.2rc1", True),
        ("", "0.23.0.post1", False),
        ("", None, False),
        ("0", "0.20.2rc1", False),
        (None, "0.20.2rc1", False),
    ],
)
def test_an_empty_value_ends_one_release_of_vllm_ascend(value, serves, is_wrong):
    findings = list(check_empty({} if value is None else {APPLY: value}, serves))
    assert [finding.severity for finding in findings] == [Severity.WRONG] * is_wrong


def test_every_invalid_value_is_wrong():
    findings = list(check_values({PARTIAL: "yes", RETENTION: "-1", APPLY: "1"}))
    assert [finding.severity for finding in findings] == [Severity.WRONG] * 2
    assert {RETENTION, PARTIAL} == {finding.text.partition("=")[0] for finding in findings}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("VLLM_ASCEND_DSV4_PARTIAL_HIT", PARTIAL),
        ("VLLM_ASCEND_PARTIAL_HITS", PARTIAL),
        ("vllm_ascend_apply_dsv4_patch", APPLY),
        ("VLLM_PREFIX_CACHE_RETENTION", RETENTION),
        ("VLLM_ASCEND_DSV4_NOTHING_LIKE_IT", "VLLM_ASCEND_"),
    ],
)
def test_a_misspelled_variable_is_named_with_the_nearest_one(name, nearest):
    (finding,) = check_names({name: "1"}, known=())
    assert name in finding.text
    assert nearest in finding.remedy


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        ("VLLM_ASCEND_DSV4_PARTAIL_HITS", Severity.WRONG),
        ("VLLM_PIN_SWA_TOKEN", Severity.WRONG),
        ("VLLM_ASCEND_DSV4_NOTHING_LIKE_IT", Severity.WARNING),
    ],
)
def test_a_switch_that_does_nothing_is_wrong_and_a_name_like_no_other_a_warning(name, severity):
    (finding,) = check_names({name: "1"}, known=())
    assert finding.severity is severity
    assert not list(check_names({name: ""}, known=()))  # as good as unset


def test_neighbours_are_no_misspellings():
    theirs = {
        "VLLM_ASCEND_ENABLE_FLASHCOMM1": "1",
        "VLLM_ASCEND_ENABLE_NZ": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "HCCL_BUFFSIZE": "1024",
        PARTIAL: "1",
    }
    assert not list(check_names(theirs, known=()))


def test_what_a_checkout_of_vllm_ascend_reads_is_no_misspelling(tmp_path):
    name = "VLLM_ASCEND_SPARE_TAIL"
    (tmp_path / "vllm_ascend").mkdir()
    envs = tmp_path / "vllm_ascend" / "envs.py"
    assert list(check_names({name: "1"}, known_variables({}, tmp_path)))
    envs.write_text(f'env_variables = {{"{name}": lambda: os.getenv("{name}")}}\n')
    assert not list(check_names({name: "1"}, known_variables({}, tmp_path)))
    envs.write_text("no Python at all")
    assert list(check_names({name: "1"}, known_variables({}, tmp_path)))


def test_what_somebody_else_reads_is_no_misspelling():
    name = "VLLM_PREFIX_CACHE_RETENTION"
    assert not list(check_names({name: "1"}, known={name}))


@pytest.mark.parametrize(
    ("environ", "has_connector", "is_told"),
    [
        ({}, True, True),
        ({"PYTHONHASHSEED": "random"}, True, True),
        ({"PYTHONHASHSEED": "0"}, True, False),
        ({}, False, False),
    ],
)
def test_a_random_hash_seed_matters_to_those_who_share_blocks(environ, has_connector, is_told):
    assert bool(list(check_hash_seed(environ, has_connector=has_connector))) is is_told


@pytest.mark.parametrize(
    ("environ", "asks"),
    [({}, False), ({PARTIAL: "0"}, False), ({PARTIAL: "1"}, True), ({PARTIAL: "yes"}, True)],
)
def test_what_asks_for_more_than_stock(environ, asks):
    assert asks_for_something(environ) is asks
