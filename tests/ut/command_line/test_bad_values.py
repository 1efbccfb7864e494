# SPDX-License-Identifier: Apache-2.0
"""The error of a bad value is one line with the option, the value and what is allowed."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from vllm_ascend.__main__ import app

BAD_VALUES = [
    (("memory-curve", "--tier-gib", "-3"), "--tier-gib -3: it must be greater than or equal to"),
    (("replay", "--requests", "0"), "--max-requests/--requests 0: it must be greater than or"),
    (("doctor", "--block-size", "0"), "--block-size 0: it must be greater than or equal to 1"),
    (
        ("replay", "--data-parallel", "65"),
        "--data-parallel 65: it must be less than or equal to",
    ),
    (("replay", "--speed", "fast"), "--speed fast: it must be a valid number"),
    (("replay", "--seed", ""), "--seed '': it must be a valid integer"),
]


@pytest.mark.parametrize(("arguments", "told"), BAD_VALUES)
def test_one_line_names_option_value_and_what_is_allowed(arguments, told):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert line.startswith(f"error: {told}")


def test_of_several_values_the_bad_one_is_named():
    arguments = ("memory-curve", "--kv-gib", "4", "--kv-gib", "-1", "--kv-gib", "8")
    (line,) = CliRunner().invoke(app, arguments).output.splitlines()
    assert line.startswith("error: --kv-gib -1: ")
