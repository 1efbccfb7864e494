# SPDX-License-Identifier: Apache-2.0
"""What the start-up check, ``--max-model-len auto`` and the logged concurrency count."""

from __future__ import annotations

import copy

import pytest
from vllm.v1.core import kv_cache_utils

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.release_marks import WHERE_BLOCKS_COUNT_ROWS
from vllm_ascend.core.admission.request_footprint import (
    blocks_of_longest_request,
    blocks_spanned,
)
from vllm_ascend.core.layout.specs import is_windowed, tokens_per_block
from vllm_ascend.dry_run import scheduler as factory
from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend.prefix_cache_config import VARIABLES, load_config
from vllm_ascend.releases import running_release

DSV4 = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"}
BEST = {**DSV4, "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
DENSE = {**BEST, "VLLM_ASCEND_DSV4_SPARSE_STATE": "0"}
GIB = 1 << 30


class StartUp:
    """A start of DeepSeek-V4-Flash with blocks of 128 rows and steps of 8,192 tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
        for variable in VARIABLES:
            monkeypatch.delenv(variable.name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        self.layout = dsv4_flash_a3()
        self.config = factory._vllm_config(self.layout, SchedulerOptions(num_blocks=1))
        self.config.model_config = copy.copy(self.config.model_config)
        specs = copy.deepcopy(self.layout.specs)
        self.release = running_release()
        self.groups = self.release.groups_of_model(self.config, specs)

    @property
    def asked(self) -> tuple:
        """Who plans, where a release is told, the configuration, and the groups."""
        builder = getattr(self.release.planning, "DefaultKVCacheConfigBuilder", None)
        return (*([builder()] if builder else []), self.config, self.groups)

    def blocks(self) -> int:
        memory = self.release.planning._max_memory_usage_bytes_from_groups(*self.asked)
        return memory // self.release.pool_bytes_per_block(self.config, self.groups)

    def concurrency(self) -> float:
        plan = self.release.planning.get_kv_cache_config_from_groups
        config = plan(self.config, self.groups, 16 * GIB)
        return kv_cache_utils.get_max_concurrency_for_kv_cache_config(self.config, config)

    def longest(self, memory: int) -> int:
        """Return what ``--max-model-len auto`` comes to."""
        return self.release.planning._estimate_max_model_len_from_groups(*self.asked, memory)


def test_with_nothing_switched_on_no_configuration_is_read(monkeypatch) -> None:
    """Later releases of vLLM ask with less than a whole one."""
    groups = StartUp(monkeypatch, DSV4).groups
    assert blocks_of_longest_request(None, groups, load_config(), running_release()) is None


@WHERE_BLOCKS_COUNT_ROWS
@pytest.mark.parametrize(
    ("environment", "blocks", "concurrency"),
    [(DSV4, 1692, 3.1115), (DENSE, 1695, 3.0136), (BEST, 426, 12.0118)],
)
def test_a_request_of_135_000_tokens(monkeypatch, environment, blocks, concurrency) -> None:
    """5.3 GiB and vLLM's own numbers with nothing switched on; 1.3 GiB where state is sparse."""
    start = StartUp(monkeypatch, environment)
    assert start.blocks() == blocks
    assert start.concurrency() == pytest.approx(concurrency, rel=1e-4)


def test_steps_in_flight_hold_their_windows(monkeypatch) -> None:
    """As vllm-ascend 0.23 has it: a step's tokens more in every window."""
    before = StartUp(monkeypatch, DENSE).blocks()
    step = 8192
    monkeypatch.setattr(type(running_release()), "max_in_flight_tokens", lambda *_: step)
    start = StartUp(monkeypatch, DENSE)
    windows = [group.kv_cache_spec for group in start.groups if is_windowed(group.kv_cache_spec)]
    assert start.blocks() == before + sum(step // tokens_per_block(spec) for spec in windows)


@WHERE_BLOCKS_COUNT_ROWS
def test_the_longest_request_that_fits(monkeypatch) -> None:
    assert StartUp(monkeypatch, DSV4).longest(1 * GIB) == 1_792
    assert StartUp(monkeypatch, DSV4).longest(4 * GIB) == 7_296
    assert StartUp(monkeypatch, BEST).longest(1 * GIB) == 82_047
    assert StartUp(monkeypatch, BEST).longest(4 * GIB) == 135_000


@pytest.mark.parametrize("block_tokens", [1, 2, 3, 4, 7])
def test_blocks_spanned_is_the_worst_start(block_tokens: int) -> None:
    for num_tokens in range(20):
        worst = max(
            len({token // block_tokens for token in range(start, start + num_tokens)})
            for start in range(block_tokens)
        )
        assert blocks_spanned(num_tokens, block_tokens) == worst
