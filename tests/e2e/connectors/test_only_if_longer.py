# SPDX-License-Identifier: Apache-2.0
"""A connector's tokens replace a partial hit only if they end behind it, by the least gain."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

from tests.e2e.connectors.worker_hooks import EmptyWorkerHooks
from tests.e2e.core.layouts import dsv4_rows_tiny
from vllm_ascend.dry_run import scheduler as replay_scheduler
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, make_request
from vllm_ascend.dry_run.worker import SamplingWorker

# Of the tiny layout: hits end at multiples of 16 tokens, whole blocks of all groups at those of 64.
PROMPT = list(range(120))
LOCAL_HIT = 112


class FixedConnector(EmptyWorkerHooks, KVConnectorBase_V1, SupportsHMA):
    """Has the first ``extra_config["has"]`` tokens of every prompt."""

    knows_granules = knows_rows = takes_tails_alone = True

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.has = vllm_config.kv_transfer_config.kv_connector_extra_config["has"]
        self.loads: list[tuple[str, int, int]] = []

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return max(self.has - num_computed_tokens, 0) if request.request_id == "b" else 0, False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if num_external_tokens:
            self.loads.append((request.request_id, num_external_tokens))

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()

    def request_finished_all_groups(self, request, block_ids):
        return False, None


@pytest.fixture
def hit_of_the_second(switch, monkeypatch):
    def run(has: int, least_gain: int) -> tuple[int, list]:
        switch(
            {
                "VLLM_ASCEND_APPLY_DSV4_PATCH": "1",
                "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best",
            }
        )
        make = replay_scheduler._vllm_config

        def with_connector(*args: Any) -> Any:
            config = make(*args)
            config.kv_transfer_config = KVTransferConfig(
                kv_connector="FixedConnector",
                kv_connector_module_path=__name__,
                kv_role="kv_both",
                kv_connector_extra_config={"has": has, "least_gain_tokens": least_gain},
            )
            return config

        monkeypatch.setattr(replay_scheduler, "_vllm_config", with_connector)
        options = SchedulerOptions(num_blocks=400, max_num_batched_tokens=256, max_model_len=512)
        scheduler = build_scheduler(dsv4_rows_tiny(), options)
        worker, hits = SamplingWorker(scheduler), {}
        for name in ("a", "b"):
            scheduler.add_request(make_request(scheduler, name, PROMPT, 4))
            while scheduler.requests:
                output = scheduler.schedule()
                for request in output.scheduled_new_reqs:
                    hits[request.req_id] = request.num_computed_tokens
                scheduler.update_from_output(output, worker.execute(output))
        return hits["b"], scheduler.connector.loads

    return run


def test_without_a_connector_s_tokens_the_hit_ends_inside_a_block(hit_of_the_second):
    assert hit_of_the_second(0, 0) == (LOCAL_HIT, [])


@pytest.mark.parametrize("has", [80, LOCAL_HIT])
def test_a_load_that_ends_no_further_leaves_the_hit_that_is_here(has, hit_of_the_second):
    assert hit_of_the_second(has, 0) == (LOCAL_HIT, [])


def test_a_load_that_ends_further_is_taken(hit_of_the_second):
    assert hit_of_the_second(119, 0) == (119, [("b", 119 - 64)])


def test_a_load_that_gains_too_little_is_not(hit_of_the_second):
    assert hit_of_the_second(119, 7) == (119, [("b", 119 - 64)])
    assert hit_of_the_second(119, 8) == (LOCAL_HIT, [])
