# SPDX-License-Identifier: Apache-2.0
"""A load fails: nobody is answered from what it should have brought, nor from what rests on it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from tests.e2e.connectors.connected import ConnectedEngine
from tests.e2e.connectors.fake_connector import FakeConnector, transfer_config
from tests.e2e.core.configurations import Configuration
from tests.e2e.core.conftest import skip_if_left_to_vllm
from vllm_ascend.core.confirmed_steps import ConfirmedSteps
from vllm_ascend.core.retention.ledger import Ledger
from vllm_ascend_evaluation.oracle import ContentViolation, IntegrityError

# Layout, switches.
_CELLS = [
    ("dsv4-rows", "best"),
    ("dsv4-rows", "retention-unset"),
    ("dsv4-rows", "partial-0"),
    ("dsv4-a3-128", "best"),
    ("gemma", "spare-0"),
]
_LOSER = "loses"


class LosingConnector(FakeConnector):
    """Promises one request ``external`` tokens, loses them on the way; the others get nothing."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.promise = extra["external"], extra["is_async"]

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        if request.request_id != _LOSER or self.offered:
            return 0, False
        num_tokens, is_async = self.promise
        return max(num_tokens - num_computed_tokens, 0), is_async

    def _asked(self, request, blocks, num_external_tokens):
        return self.promise


def make(
    switch, case: str, switches: str, mode: str, policy: str, *, external: int, is_async: bool
) -> ConnectedEngine:
    cell = Configuration.named(case, mode, switches)
    switch(cell.environment)
    transfer = transfer_config(
        seed=external,
        failures=1.0,
        unit=16,
        policy=policy,
        connector=LosingConnector,
        external=external,
        is_async=is_async,
    )
    engine = ConnectedEngine(cell.layout, cell.options(4.0), transfer, cell.oracle(0))
    skip_if_left_to_vllm(engine)
    return engine


def lose_and_ask_again(engine: ConnectedEngine, prompt: list[int], num_steps: int) -> None:
    """Ask while the load is under way, and twice afterwards; the oracle judges every row."""
    engine.add(_LOSER, prompt, 4)
    for _ in range(num_steps):
        engine.step()
    engine.add("meanwhile", prompt, 4)
    engine.run()
    for name in ("retry", "again"):
        engine.add(name, prompt, 4)
        engine.run()
    assert engine.worker.connector.num_failed == 1
    engine.drain()


def prompt_of(case: str) -> tuple[list[int], tuple[int, ...]]:
    """Return a prompt and how much of it may come from elsewhere, in tokens."""
    rng, is_large = random.Random(0), case == "dsv4-a3-128"
    prompt = [rng.randrange(50) for _ in range(500 if is_large else 58 if case == "gemma" else 112)]
    return prompt, (256, 384) if is_large else (12, 32) if case == "gemma" else (64, 96)


@pytest.mark.parametrize("policy", ["recompute", "fail"])
@pytest.mark.parametrize("mode", ["plain", "async", "mtp3", "async-mtp"])
@pytest.mark.parametrize(("case", "switches"), _CELLS, ids="-".join)
def test_nobody_is_answered_from_a_lost_load(case, switches, mode, policy, switch):
    prompt, externals = prompt_of(case)
    for external in externals:
        for is_async in (False, True):
            for num_steps in (0, 1):
                engine = make(
                    switch, case, switches, mode, policy, external=external, is_async=is_async
                )
                lose_and_ask_again(engine, prompt, num_steps)
                is_ended = engine.requests[_LOSER].status == RequestStatus.FINISHED_ERROR
                assert is_ended == (policy == "fail")
                assert engine.outputs["retry"] == engine.outputs["again"]


# Each cure taken out again


def enter_before_the_load_is_known(patch: pytest.MonkeyPatch) -> None:
    """Enter what a request with external tokens computes in the step that loads them."""
    patch.setattr(Ledger, "load_starts", lambda self, request_id: None)


def answer_from_copies_of_lost_blocks(patch: pytest.MonkeyPatch) -> None:
    """Take no request to rest on lost blocks but the one that loaded them."""
    affected = ConfirmedSteps.is_affected
    patch.setattr(
        ConfirmedSteps,
        "is_affected",
        lambda self, request_id, lost: request_id == _LOSER and affected(self, request_id, lost),
    )


def lend_before_the_load_is_known(patch: pytest.MonkeyPatch) -> None:
    """Both: others hit and copy what a step in flight loads, and nobody tells them."""
    enter_before_the_load_is_known(patch)
    answer_from_copies_of_lost_blocks(patch)


@pytest.mark.parametrize(
    "plant",
    [
        enter_before_the_load_is_known,
        lend_before_the_load_is_known,
    ],
)
def test_without_a_cure_it_is_noticed(plant, switch, monkeypatch):
    plant(monkeypatch)
    with pytest.raises((ContentViolation, IntegrityError, AssertionError)):
        for case, switches in _CELLS:
            prompt, externals = prompt_of(case)
            for mode in ("plain", "async"):
                for external in externals:
                    engine = make(
                        switch, case, switches, mode, "fail", external=external, is_async=False
                    )
                    lose_and_ask_again(engine, prompt, 1)
