# SPDX-License-Identifier: Apache-2.0
"""The overlaid, real vllm-ascend runs whole steps on the CPU: some runs (see real_runs for all)."""

from __future__ import annotations

import pytest

from tests.upstream.npu_reference.processes import CHECKS, run_checks
from tests.upstream.npu_reference.releases import differences_here

QUICK = (
    "check_whole_runs.py::test_hits_change_no_token[32]",
    "check_whole_runs.py::test_drafts_change_no_token[3-32]",
    *(
        f"check_whole_runs_of_schedulers.py"
        f"::test_drafts_of_a_first_step_reach_behind_its_blocks[{name}-32]"
        for name in differences_here().gives_drafts_no_blocks
        if name == "BalanceScheduler"
    ),
    "check_planted_faults.py::test_a_copy_that_is_not_made",
    "check_whole_runs_of_tier.py::test_what_left_the_cache_is_loaded[64-drafts]",
    "check_missing.py",
    *(
        f"{file}::test_drafts_change_no_token[32]"
        for file in differences_here().own_checks
        if file == "check_dspark.py"
    ),
)


@pytest.fixture(scope="module")
def answers(overlaid, tmp_path_factory, request):
    """What became of the runs that were asked for."""
    here = [item for item in request.session.items if item.module is request.module]
    # Not by their names: pytest numbers the cases whose names are long.
    chosen = [item.callspec.params["check"] for item in here]
    return run_checks(overlaid, chosen, tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("check", QUICK)
def test_it_passes(answers, check):
    assert (CHECKS / check.partition("::")[0]).is_file()
    answer = answers[check]
    assert answer.exit_code == 0, answer.output[-6000:]
    assert answer.passed()
