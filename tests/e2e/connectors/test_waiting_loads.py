# SPDX-License-Identifier: Apache-2.0
"""Asynchronous loads hold memory for requests that do not run yet: each of them gets in."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.e2e.connectors.connected import ConnectedEngine
from tests.e2e.connectors.fake_connector import FakeConnector, transfer_config
from tests.e2e.core.configurations import DSV4, PROFILE
from tests.e2e.core.conftest import skip_if_left_to_vllm
from tests.e2e.core.engine import Engine
from tests.soak import episode
from tests.soak.case import Recording
from vllm_ascend.core import scheduler as caching_scheduler
from vllm_ascend.core.admission.room_to_start import RoomToStart
from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend.releases import running_release
from vllm_ascend_evaluation.oracle import OracleOptions

_UNIT = 16_384
_BEST = {DSV4: "1", PROFILE: "best"}
# One layer of each kind of group.
_FEW_LAYERS = (0, 0, 4, 128, 4)
_GIVEN_BACK = (
    Path(episode.__file__).parent / "cases" / "load-that-is-given-back-reserves-nothing.json"
)
_NUM_TOKENS = (64_000, 64_000, 64_000, 64_000, 65_664)


class PoolOfWholeBlocks(FakeConnector):
    """Brings every prompt its whole blocks, beside the steps."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        if request.request_id in self.offered:
            return 0, False
        num_tokens = (request.num_tokens - 1) // _UNIT * _UNIT - num_computed_tokens
        return (num_tokens, True) if num_tokens > 0 else (0, False)

    def _asked(self, request, blocks, num_external_tokens):
        return (request.num_tokens - 1) // _UNIT * _UNIT, True


class BringsTheStart(PoolOfWholeBlocks):
    """Brings every prompt its first block, beside the steps."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        if num_computed_tokens or request.request_id in self.offered:
            return 0, False
        return _UNIT, True

    def _asked(self, request, blocks, num_external_tokens):
        return _UNIT, True


class FailsOnce(PoolOfWholeBlocks):
    """Brings the same again after the first load, which fails."""

    num_asked = 0

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        self.num_asked += 1
        self.failures = float(self.num_asked == 1)
        self.offered.pop(request.request_id, None)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


class Counted(ConnectedEngine):
    """Bounds turns in which nothing is executed, not their time, as engines without a connector."""

    _watch_progress = Engine._watch_progress


def engine_with(connector: type[FakeConnector], num_blocks: int = 2_000) -> Counted:
    transfer = transfer_config(seed=0, failures=0.0, unit=_UNIT, connector=connector)
    options = SchedulerOptions(
        num_blocks=num_blocks, max_num_seqs=32, max_model_len=70_000, max_num_batched_tokens=8_192
    )
    layout = dsv4_flash_a3(128, num_draft_layers=1, compress_ratios=_FEW_LAYERS)
    engine = Counted(layout, options, transfer, OracleOptions())
    skip_if_left_to_vllm(engine)
    return engine


def serve_five_long_prompts(switch, environment: dict[str, str]) -> Counted:
    """As vllm-project/vllm#45388 has it: what has been loaded fills the pool."""
    switch(environment)
    engine = engine_with(PoolOfWholeBlocks)
    rng = random.Random(0)
    for number, num_tokens in enumerate(_NUM_TOKENS):
        engine.add(f"r{number}", [rng.randrange(1000, 100_000) for _ in range(num_tokens)], 8)
    engine.run()
    return engine


@pytest.mark.parametrize("environment", [{DSV4: "1"}, _BEST], ids=["unset", "best"])
def test_long_prompts_that_are_loaded_all_get_in(environment, switch):
    engine = serve_five_long_prompts(switch, environment)
    assert [len(engine.outputs[f"r{number}"]) for number in range(5)] == [8] * 5
    assert engine.worker.connector.num_loaded >= 5


@pytest.mark.skipif(
    running_release().leaves_room_for_loads, reason="this vLLM leaves the room itself"
)
def test_without_room_for_those_that_have_loaded_nothing_is_scheduled(switch, monkeypatch):
    """Each of two cures; without both of them the engine waits for ever."""
    monkeypatch.setattr(RoomToStart, "blocks", lambda room: 0)
    monkeypatch.setattr(caching_scheduler, "give_back_blocks", lambda scheduler: None)
    with pytest.raises(AssertionError, match="nothing is scheduled any more"):
        serve_five_long_prompts(switch, _BEST)


def test_who_has_loaded_little_does_not_compute_what_another_computes(switch):
    """The second prompt waits for memory without the start of it, and then finds all of it."""
    switch(_BEST)
    engine = engine_with(BringsTheStart)
    prompt = [1_000 + i * 7919 % 90_001 for i in range(_NUM_TOKENS[-1])]
    for number in range(3):
        engine.add(f"r{number}", [*prompt, number], 8)
    engine.run()
    assert engine.hits["r0"] == _UNIT
    assert [engine.hits[name] for name in ("r1", "r2")] == [4 * _UNIT] * 2


def replay_a_load_that_is_given_back() -> episode.Failure | None:
    recording = Recording.load(_GIVEN_BACK)
    return episode.replay(recording.case, recording.operations)


def load_again_what_failed(switch) -> Counted:
    switch(_BEST)
    engine = engine_with(FailsOnce, num_blocks=1_000)
    engine.add("r0", [1_000 + i % 1_000 for i in range(_NUM_TOKENS[-1])], 8)
    engine.run()
    return engine


def test_a_load_that_is_given_back_reserves_nothing():
    assert replay_a_load_that_is_given_back() is None


def test_a_load_that_has_failed_reserves_nothing(switch):
    engine = load_again_what_failed(switch)
    connector = engine.worker.connector
    assert (connector.num_failed, connector.num_loaded) == (1, 1)
    assert len(engine.outputs["r0"]) == 8


@pytest.mark.skipif(
    not running_release().leaves_room_for_loads, reason="this vLLM reserves nothing for loads"
)
def test_a_load_that_goes_on_reserving_is_in_its_own_way(switch, monkeypatch):
    monkeypatch.setattr(type(running_release()), "forget_prefill", lambda *args: None)
    with pytest.raises(AssertionError, match="nothing is scheduled any more"):
        load_again_what_failed(switch)
    monkeypatch.setattr(RoomToStart, "blocks", lambda room: 0)
    failure = replay_a_load_that_is_given_back()
    assert failure is not None and "nothing is scheduled any more" in failure.text
