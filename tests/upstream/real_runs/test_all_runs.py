# SPDX-License-Identifier: Apache-2.0
"""All whole runs and planted faults over the overlaid vllm-ascend, and what the plain one does."""

from __future__ import annotations

import pytest

from tests.upstream.forks import Answer
from tests.upstream.npu_reference.processes import LONG, names_of_tests, run_checks
from tests.upstream.npu_reference.releases import differences_here, own_plain_checks_here


def all_pass(answers: dict[str, Answer]) -> None:
    """Fail with what the runs said at the end that did not pass."""
    assert any(answer.passed() for answer in answers.values())
    said = [
        f"{name}\n{answer.output[-6000:]}"
        for name, answer in answers.items()
        if answer.exit_code or not (answer.passed() or answer.is_skipped())
    ]
    if said:  # an assertion's explanation would be cut to a few lines
        pytest.fail("\n".join(said), pytrace=False)


@pytest.mark.parametrize(
    "file",
    [
        "check_whole_runs.py",
        "check_whole_runs_of_mooncake.py",
        "check_whole_runs_of_schedulers.py",
        "check_whole_runs_of_tier.py",
        "check_int8_weights.py",
        "check_planted_faults.py",
        *differences_here().own_checks,
    ],
)
def test_the_overlaid_one(file, overlaid, tmp_path):
    all_pass(run_checks(overlaid, names_of_tests(file), tmp_path))


def test_the_overlaid_one_over_long_prompts(overlaid, tmp_path):
    names = names_of_tests("check_long_prompts.py")
    all_pass(run_checks(overlaid, names, tmp_path, lengths=LONG))


# What needs a worker process cannot be looked into from here.
_PLAIN = () if differences_here().needs_worker_process else ("check_plain_faults.py",)


@pytest.mark.parametrize("file", [*_PLAIN, *own_plain_checks_here()])
def test_the_plain_one(file, plain, tmp_path):
    all_pass(run_checks(plain, names_of_tests(file), tmp_path))
