# SPDX-License-Identifier: Apache-2.0
"""docs/way-of-a-request.md shows the way that a request really takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.core import layouts
from tests.e2e.core.configurations import DSV4
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.request_way import PARTS, Way, recorded
from tests.release_marks import ON_THE_FIRST_RELEASE
from vllm_ascend.replay.scheduler import SchedulerOptions

PAGE = Path(__file__).parents[3] / "docs" / "way-of-a-request.md"
PROFILE = "VLLM_ASCEND_PREFIX_CACHE_PROFILE"


@pytest.fixture
def ways(make_engine: MakeEngine) -> list[Way]:
    """The first step of a request that hits inside a block, a step of decoding, and the last."""
    engine = make_engine(
        layouts.dsv4_rows_tiny,
        SchedulerOptions(num_blocks=400, max_num_batched_tokens=48, max_model_len=400),
        environment={DSV4: "1", PROFILE: "best"},
    )
    prompt = list(range(100))
    engine.add("before", prompt, 2)
    engine.run()
    engine.add("request", [*prompt[:84], *range(1000, 1050)], 3)
    steps: list[Way] = []
    while engine.scheduler.has_unfinished_requests():
        with recorded() as way:
            engine.step()
        steps.append(way)
    assert engine.hits["request"] == 80
    first, *_, decoding, last = steps
    return [first, decoding, last]


@ON_THE_FIRST_RELEASE
def test_the_page_shows_what_happens(ways: list[Way]) -> None:
    shown = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    expected = ["\n".join(way.lines) + "\n" for way in ways]
    assert shown == expected, f"{PAGE.name} should show:\n\n" + "\n".join(expected)


def test_nobody_calls_back(ways: list[Way]) -> None:
    order = [part.__name__ for part in PARTS]
    for caller, called in {call for way in ways for call in way.calls}:
        assert order.index(caller) < order.index(called), f"{caller} calls {called}"


def test_between_the_scheduler_and_the_pool_are_a_dozen_stops_at_most(ways: list[Way]) -> None:
    for way in ways:
        assert max(line.count("    ") for line in way.lines) <= 5
        assert len({line.strip().split(".")[0] for line in way.lines}) <= 12


def test_every_part_of_the_order_is_met(ways: list[Way]) -> None:
    met = {line.strip().split(".")[0] for way in ways for line in way.lines}
    assert met == {part.__name__ for part in PARTS}
