# SPDX-License-Identifier: Apache-2.0
"""A step in flight copies from blocks; beside a connector nobody else is given them until then."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from vllm.config import KVTransferConfig

from tests.e2e.connectors.connected import ConnectedEngine
from tests.e2e.connectors.fake_connector import FakeConnector
from tests.e2e.core.configurations import CASES, MODES, SWITCHES, Configuration
from tests.e2e.core.engine import Engine
from tests.release_marks import WHERE_BLOCKS_ARE_FREED_AT_ONCE
from vllm_ascend.core import scheduler as caching_scheduler

_CELL = Configuration(
    next(case for case in CASES if case.name == "dsv4-rows"),
    next(mode for mode in MODES if mode.name == "async"),
    next(switches for switches in SWITCHES if switches.name == "best"),
)


class QuietConnector(FakeConnector):
    """Brings nothing: hits may end inside blocks."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return 0, False


def build(switch, connected: bool) -> Engine:
    """Return an engine in which request b is about to hit a part of a's blocks."""
    switch(_CELL.environment)
    options = _CELL.options(4.0)
    if connected:
        transfer = KVTransferConfig(
            kv_connector="QuietConnector",
            kv_connector_module_path=__name__,
            kv_role="kv_both",
            kv_connector_extra_config={"seed": 0, "failures": 0.0, "unit": 16},
        )
        engine: Engine = ConnectedEngine(_CELL.layout, options, transfer, _CELL.oracle(0))
    else:
        engine = Engine(_CELL.layout, options, _CELL.oracle(0))
    rng = random.Random(0)
    prompt = [rng.randrange(50) for _ in range(150)]
    engine.add("a", prompt, 2)
    engine.run()
    engine.add("b", prompt, 6)
    return engine


def held(engine: Engine) -> int:
    return len(engine.manager.coordinator.ledger.sources())


def step_twice(engine: Engine, between: Callable[[], None] = lambda: None) -> list[int]:
    """Schedule b, and the next step behind it; return what is held, from there on."""
    engine.step()
    counts = [held(engine)]
    assert counts[0] > 0, "b hits no part of a block"

    def note(output) -> None:
        counts.append(held(engine))
        between()
        counts.append(held(engine))
        engine.check()

    engine.step(note)
    counts.append(held(engine))
    engine.check()
    return counts


def test_with_a_connector_the_source_is_held_until_the_output_is_back(switch):
    engine = build(switch, connected=True)
    first, *others = step_twice(engine)
    assert others == [first, first, 0]
    engine.run()
    engine.drain()


def test_without_one_the_next_step_releases_it(switch):
    engine = build(switch, connected=False)
    _, *others = step_twice(engine)
    assert others == [0, 0, 0]
    engine.run()
    engine.drain()


def abort(engine: Engine) -> None:
    engine.abort(["b"])


def preempt(engine: Engine) -> None:
    caching_scheduler.restart(engine.scheduler, engine.requests["b"])


@pytest.mark.parametrize("leave", [abort, preempt])
def test_the_copy_may_be_cached_so_it_is_held_whatever_becomes_of_the_request(switch, leave):
    engine = build(switch, connected=True)
    first, *others = step_twice(engine, lambda: leave(engine))
    assert others == [first, first, 0]
    engine.run()
    engine.drain()


@WHERE_BLOCKS_ARE_FREED_AT_ONCE
def test_a_forced_reset_needs_no_source(switch):
    engine = build(switch, connected=True)

    def reset() -> None:
        assert engine.reset(busy=True)
        engine.abort(["b"])  # vLLM loses tokens of requests that it preempts this way in flight

    first, *others = step_twice(engine, reset)
    assert others == [first, 0, 0]
    engine.run()
    engine.drain()
