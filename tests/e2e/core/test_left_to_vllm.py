# SPDX-License-Identifier: Apache-2.0
"""Models that a release's own coordinator must serve, whatever is switched on."""

from __future__ import annotations

import pytest
import torch
from vllm.v1 import kv_cache_interface

from tests.e2e.core import layouts
from tests.e2e.core.conftest import MakeEngine
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.dry_run.layouts import KVLayout
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend.releases import running_release

_BEST = {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
_OPTIONS = SchedulerOptions(num_blocks=64, max_model_len=512, max_num_batched_tokens=64)


def window_beside_mamba() -> KVLayout:
    """Full attention, a window, and Mamba states kept at block boundaries."""
    hybrid = layouts.mamba_hybrid(16)
    shape = layouts.gemma_like(16, 20).specs["layers.0"]
    return KVLayout("window-beside-mamba", 16, {**hybrid.specs, "layers.3": shape})


def scratch_beside_window() -> KVLayout:
    """Full attention, a window, and a ring of raw rows that no hit may read."""
    scratch = kv_cache_interface.KpoolTailSpec
    shape = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": torch.bfloat16}
    specs = {**layouts.gemma_like(16, 16).specs, "layers.4": scratch(**shape, sliding_window=16)}
    return KVLayout("scratch", 16, specs)


def test_mamba_beside_a_window_hits_exactly_and_is_left_to_vllm_where_that_knows_more(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(window_beside_mamba, _OPTIONS, environment=_BEST)
    prompt = list(range(200))
    for request_id in ("first", "again"):
        engine.add(request_id, prompt, 4)
        engine.run()
    is_ours = isinstance(engine.manager.coordinator, AscendHybridKVCacheCoordinator)
    assert is_ours == running_release().counts_rows
    assert engine.hits["again"] >= 176
    engine.check()


@pytest.mark.skipif(
    not hasattr(kv_cache_interface, "KpoolTailSpec"), reason="this release has no scratch groups"
)
def test_blocks_of_scratch_serve_no_hit(make_engine: MakeEngine) -> None:
    engine = make_engine(scratch_beside_window, _OPTIONS, environment=_BEST)
    assert not isinstance(engine.manager.coordinator, AscendHybridKVCacheCoordinator)
