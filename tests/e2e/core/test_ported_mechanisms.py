# SPDX-License-Identifier: Apache-2.0
"""What is known from pull requests of vLLM and vllm-ascend runs on Ascend's layout as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps

import pytest
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager

from tests.e2e.core import layouts
from tests.e2e.core.configurations import DSV4
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.test_kept_boundaries import random_prompt
from tests.release_marks import is_native
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.dry_run.scheduler import SchedulerOptions

MECHANISMS = {
    "prepend_n",
    "free_blocks(prepend=True)",
    "reachable_block_mask",
    "demote_n",
    "cache_full_blocks",
}


# Where a release has them itself, they run with nothing of ours switched on.
VLLMS_OWN = {
    name
    for name, target in {
        "prepend_n": "vllm.v1.core.kv_cache_utils:FreeKVCacheBlockQueue.prepend_n",
        "reachable_block_mask": "vllm.v1.core.single_type_kv_cache_manager:"
        "SlidingWindowManager.reachable_block_mask",
    }.items()
    if is_native(target)
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each mechanism did something."""
    counted: Counter[str] = Counter()

    def count(owner: type, name: str, label: Callable[..., str | None]) -> None:
        original = getattr(owner, name)

        @wraps(original)
        def counting(*args, **kwargs):
            found = original(*args, **kwargs)
            if what := label(found, *args, **kwargs):
                counted[what] += 1
            return found

        monkeypatch.setattr(owner, name, counting)

    count(FreeKVCacheBlockQueue, "prepend_n", lambda _, self, blocks: blocks and "prepend_n")
    count(
        AscendBlockPool,
        "free_blocks",
        lambda _, self, blocks, prepend=False: (
            "free_blocks(prepend=True)" if prepend and blocks else None
        ),
    )
    count(AscendBlockPool, "demote_n", lambda num, *_: num and "demote_n")
    count(AscendBlockPool, "cache_full_blocks", lambda *_, **__: "cache_full_blocks")
    mask = SlidingWindowManager.reachable_block_mask.__func__

    def reachable_block_mask(cls, *args, **kwargs):
        found = mask(cls, *args, **kwargs)
        counted["reachable_block_mask"] += found is None or any(found)
        return found

    monkeypatch.setattr(
        SlidingWindowManager, "reachable_block_mask", classmethod(reachable_block_mask)
    )
    return counted


def test_all_of_them_run_on_ascends_layout(calls: Counter[str], make_engine: MakeEngine) -> None:
    engine = make_engine(
        layouts.dsv4_rows_tiny,
        SchedulerOptions(num_blocks=260, max_num_batched_tokens=64, max_model_len=400),
        environment={
            DSV4: "1",
            "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best",
            "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "64",
            "VLLM_PIN_SWA_TOKENS": "1",
            "VLLM_PIN_MIN_DROP_SIZE": "0",
        },
    )
    for number in range(12):
        engine.add(f"r{number}", random_prompt(number, 350), 2)
        engine.run()
    assert +calls and set(+calls) >= MECHANISMS, calls
    # Pins are given up last; under pressure they are.
    pool = engine.manager.block_pool
    pool.get_new_blocks(pool.get_num_free_blocks())
    assert calls["demote_n"]


def test_with_nothing_switched_on_none_of_them_does(
    calls: Counter[str], make_engine: MakeEngine
) -> None:
    engine = make_engine(
        layouts.dsv4_rows_tiny,
        SchedulerOptions(num_blocks=260, max_num_batched_tokens=64, max_model_len=400),
        environment={DSV4: "1"},
    )
    for number in range(4):
        engine.add(f"r{number}", random_prompt(number, 350), 2)
        engine.run()
    engine.drain()
    assert not {name for name in +calls if name not in VLLMS_OWN}
