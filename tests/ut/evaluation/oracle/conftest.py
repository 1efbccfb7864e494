# SPDX-License-Identifier: Apache-2.0
"""A real scheduler with one full and three sliding-window groups."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec

from vllm_ascend.dry_run.layouts import KVLayout
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, make_request
from vllm_ascend_evaluation.oracle import ShadowWorker

logging.getLogger("vllm").setLevel(logging.ERROR)

_SHAPE = {"block_size": 4, "num_kv_heads": 1, "head_size": 8, "dtype": torch.bfloat16}


class Bench:
    """A scheduler and its worker, driven step by step."""

    def __init__(self, **drafts: Any) -> None:
        specs: dict[str, KVCacheSpec] = {
            f"layers.{i}": SlidingWindowSpec(**_SHAPE, sliding_window=9) for i in range(3)
        }
        specs["layers.3"] = FullAttentionSpec(**_SHAPE)
        options = SchedulerOptions(
            num_blocks=80, max_num_seqs=4, max_num_batched_tokens=32, max_model_len=128, **drafts
        )
        self.scheduler: Scheduler = build_scheduler(KVLayout("test", 4, specs), options)
        self.worker = ShadowWorker(self.scheduler)

    def add(self, request_id: str, prompt: list[int], max_tokens: int = 4) -> None:
        """Enqueue a request."""
        self.scheduler.add_request(make_request(self.scheduler, request_id, prompt, max_tokens))

    def step(self) -> None:
        """Schedule, execute, process."""
        output = self.scheduler.schedule()
        self.scheduler.update_from_output(output, self.worker.execute(output))

    def run(self) -> None:
        """Until nothing is left."""
        while self.scheduler.has_requests():
            self.step()


@pytest.fixture
def bench() -> Bench:
    return Bench()
