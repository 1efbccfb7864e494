# SPDX-License-Identifier: Apache-2.0
"""vLLM's second model runner is refused where it would leave copies undone or misread tables."""

from __future__ import annotations

import pytest
from vllm import envs

from tests.release_marks import WHERE_THE_SECOND_RUNNER_RUNS, with_our_interval
from vllm_ascend.core.checks.early_check import check_model_runner
from vllm_ascend.dry_run.layouts import KVLayout, dsv4_flash_a3, dsv4_flash_gpu
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler

pytestmark = WHERE_THE_SECOND_RUNNER_RUNS

DSV4 = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"}
BEST = {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
RETENTION = {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "0"}


def start(
    monkeypatch: pytest.MonkeyPatch, layout: KVLayout, environment: dict[str, str], v2: str
) -> None:
    """Build the scheduler as the engine does."""
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", v2)
    assert envs.VLLM_USE_V2_MODEL_RUNNER is (v2 == "1")
    for name, value in with_our_interval(environment).items():
        monkeypatch.setenv(name, value)
    build_scheduler(layout, SchedulerOptions(num_blocks=20_000))


@pytest.mark.parametrize("environment", [DSV4, DSV4 | BEST])
def test_a_layout_in_rows_is_refused(monkeypatch, environment):
    with pytest.raises(ValueError, match=r"VLLM_USE_V2_MODEL_RUNNER=1 .* block tables"):
        start(monkeypatch, dsv4_flash_a3(), environment, "1")


def test_copies_are_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"VLLM_USE_V2_MODEL_RUNNER=1 .* does not copy blocks"):
        start(monkeypatch, dsv4_flash_gpu(), BEST, "1")


@pytest.mark.parametrize(
    ("layout", "environment", "v2"),
    [(dsv4_flash_gpu, RETENTION, "1"), (dsv4_flash_gpu, BEST, "0"), (dsv4_flash_a3, DSV4, "0")],
    ids=["no copies", "first runner", "rows, first runner"],
)
def test_everything_else_is_served(monkeypatch, layout, environment, v2):
    start(monkeypatch, layout(), environment, v2)


def test_nothing_is_asked_of_the_first_runner():
    check_model_runner(is_v2=False, counts_rows=True, copies_blocks=True)
