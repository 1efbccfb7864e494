# SPDX-License-Identifier: Apache-2.0
"""All whole runs and planted faults over the overlaid vllm-ascend, and what the plain one does."""

from __future__ import annotations

import pytest

from tests.upstream.forks import Answer
from tests.upstream.npu_reference.processes import LONG, names_of_tests, run_checks
from tests.upstream.npu_reference.releases import differences_here, own_plain_checks_here


def failures(answers: dict[str, Answer]) -> str:
    """Return what the runs that did not pass said at the end."""
    said = {
        name: answer.output[-3000:]
        for name, answer in answers.items()
        if answer.exit_code or not answer.passed()
    }
    return "\n".join(f"{name}\n{output}" for name, output in said.items())


@pytest.mark.parametrize(
    "file",
    [
        "check_whole_runs.py",
        "check_whole_runs_of_schedulers.py",
        "check_whole_runs_of_ascend_store.py",
        "check_whole_runs_of_mooncake.py",
        "check_int8_weights.py",
        "check_planted_faults.py",
        *differences_here().own_checks,
    ],
)
def test_the_overlaid_one(file, overlaid, tmp_path):
    answers = run_checks(overlaid, names_of_tests(file), tmp_path)
    assert answers and not failures(answers)


def test_the_overlaid_one_over_long_prompts(overlaid, tmp_path):
    names = names_of_tests("check_long_prompts.py")
    answers = run_checks(overlaid, names, tmp_path, lengths=LONG)
    assert answers and not failures(answers)


@pytest.mark.parametrize("file", ["check_plain_faults.py", *own_plain_checks_here()])
def test_the_plain_one(file, plain, tmp_path):
    answers = run_checks(plain, names_of_tests(file), tmp_path)
    assert answers and not failures(answers)
