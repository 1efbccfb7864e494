# SPDX-License-Identifier: Apache-2.0
"""Hypothesis decides what happens next; pool, queue, index and contents must hold at any time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.e2e.core.configurations import Configuration, grid
from tests.e2e.core.engine import Engine

# Every kind of layout, with and without drafts, with and without the switches.
_NAMES = (
    "gemma-plain-retention-unset",
    "gemma-mtp1-retention-0",
    "gemma-async-retention-N",
    "mamba-priority-retention-unset",
    "dsv4-stock-mtp3-retention-0",
    "dsv4-rows-plain-retention-0",
    "dsv4-rows-mtp1-retention-N",
    "dsv4-rows-async-retention-unset",
    "dsv4-rows-priority-partial-0",
    "dsv4-rows-plain-best",
    "dsv4-rows-async-mtp-best",
    "gemma-plain-spare-0",
    "gemma-plain-pin",
    "dsv4-rows-async-mtp-pin-best",
)
_CELLS = [cell for cell in grid() if str(cell) in _NAMES]


class CacheMachine(RuleBasedStateMachine):
    """Requests share prefixes of one trunk and diverge anywhere."""

    cell: Configuration
    steps: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(self.cell.layout, self.cell.options(1.3), self.cell.oracle(0))
        self.count = 0

    @rule(data=st.data(), branch=st.integers(0, 3), salt=st.sampled_from([None, None, "a"]))
    def add_request(self, data: st.DataObject, branch: int, salt: str | None) -> None:
        """A prefix of the trunk and a branch of its own."""
        longest = self.cell.traffic.max_prompt_tokens
        shared = data.draw(st.integers(0, longest - 1), label="shared tokens")
        own = data.draw(st.integers(1, longest - shared), label="own tokens")
        answer = data.draw(st.integers(1, self.cell.traffic.max_output_tokens), label="answer")
        prompt = [(i * i + 3) % 50 for i in range(shared)]
        prompt += [(i * 7 + branch) % 50 for i in range(own)]
        self.count += 1
        self.engine.add(
            f"r{self.count}",
            prompt,
            answer,
            cache_salt=salt,
            arrival_time=float(self.count),
            priority=branch,
        )

    @rule(turns=st.integers(1, 6))
    def step(self, turns: int) -> None:
        """A few turns of the engine."""
        for _ in range(turns):
            self.engine.step()

    @precondition(lambda self: self.engine.alive)
    @rule(index=st.integers(0, 1000))
    def abort(self, index: int) -> None:
        """Any request, at whatever stage it is."""
        alive = self.engine.alive
        self.engine.abort([alive[index % len(alive)]])

    @rule()
    def finish_all(self) -> None:
        """Let everything end."""
        self.engine.run()

    @rule()
    def reset_if_idle(self) -> None:
        """Succeeds only when no block is in use."""
        in_use = any(
            blocks
            for manager in self.engine.manager.coordinator.single_type_managers
            for blocks in manager.req_to_blocks.values()
        )
        assert self.engine.reset() == (not in_use)

    @precondition(lambda self: not self.cell.mode.is_async)
    @rule()
    def reset_while_busy(self) -> None:
        """Preempts everything that runs."""
        assert self.engine.reset(busy=True)

    @invariant()
    def integrity(self) -> None:
        """Pool, free queue, index and block tables agree."""
        self.engine.check()

    def teardown(self) -> None:
        self.engine.drain()
        self.steps[f"state machine, {self.cell}"] += self.engine.worker.num_steps


@pytest.mark.parametrize("cell", _CELLS, ids=str)
def test_any_order_of_events(
    cell: Configuration,
    switch: Callable[[Mapping[str, str]], None],
    verified_steps: Counter[str],
) -> None:
    switch(cell.environment)
    machine = type("Machine", (CacheMachine,), {"cell": cell, "steps": verified_steps})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=22,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_every_named_configuration_exists() -> None:
    assert len(_CELLS) == len(_NAMES)
