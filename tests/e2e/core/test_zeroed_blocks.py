# SPDX-License-Identifier: Apache-2.0
"""Workers of later releases zero new blocks, which may hold another precision's bytes: NaN."""

from __future__ import annotations

import pytest
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager

from tests.e2e.core import layouts
from tests.e2e.core.configurations import DSV4, PROFILE
from tests.e2e.core.conftest import MakeEngine
from vllm_ascend.dry_run.scheduler import SchedulerOptions

pytestmark = pytest.mark.skipif(
    not hasattr(SingleTypeKVCacheManager, "records_new_block_ids"),
    reason="this vLLM zeroes the blocks of Mamba layers alone",
)


def new_blocks(output: SchedulerOutput) -> set[int]:
    """Return the blocks that a step brings to requests without a hit, and to those that run."""
    given = [new.block_ids for new in output.scheduled_new_reqs if not new.num_computed_tokens]
    given += [ids for ids in output.scheduled_cached_reqs.new_block_ids if ids is not None]
    return {block_id for groups in given for group in groups for block_id in group} - {0}


def test_every_new_block_is_zeroed(make_engine: MakeEngine, monkeypatch):
    engine = make_engine(
        layouts.dsv4_rows_tiny,
        SchedulerOptions(num_blocks=400, max_num_batched_tokens=48, max_model_len=400),
        environment={DSV4: "1", PROFILE: "best"},
    )
    schedule, steps = engine.scheduler.schedule, []
    monkeypatch.setattr(
        engine.scheduler, "schedule", lambda *args: steps.append(schedule(*args)) or steps[-1]
    )
    prompt = list(range(100))
    for turn in range(6):
        engine.add(f"{turn}", [*prompt[: 84 + turn], *range(1000 * turn, 1000 * turn + 50)], 20)
    engine.run()
    assert engine.scheduler.needs_kv_cache_zeroing
    assert sum(len(new_blocks(output)) for output in steps) > 100
    for output in steps:
        zeroed, copied = output.new_block_ids_to_zero or [], output.kv_cache_block_copies or []
        assert new_blocks(output) <= {*zeroed, *(copy.dst_block_id for copy in copied)}
        assert 0 not in zeroed
