# SPDX-License-Identifier: Apache-2.0
"""docs/contributing.md shows the way that a request really takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.core import layouts
from tests.e2e.core.configurations import DSV4, PROFILE
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.request_way import PARTS, Way, recorded
from tests.release_marks import ON_THE_FIRST_RELEASE
from vllm_ascend.dry_run.scheduler import SchedulerOptions

PAGE = Path(__file__).parents[3] / "docs" / "contributing.md"
SECTION = "## The way of one request"


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
    engine.add("request", [*prompt[:84], *range(1000, 1050)], 4)
    steps: list[Way] = []
    while engine.scheduler.has_unfinished_requests():
        with recorded() as way:
            engine.step()
        steps.append(way)
    assert engine.hits["request"] == 80
    # The decoding step and the last one both get a block; the step between them gets none.
    first, _, decoding, _, last = steps
    return [first, decoding, last]


def scheduler_calls(way: Way) -> list[str]:
    """Return what the scheduler itself calls, each with all lines that are called under it."""
    return re.findall(r"^\S.*\n(?: .*\n)*", "\n".join(way.lines) + "\n", re.MULTILINE)


def new_calls(ways: list[Way]) -> list[str]:
    """Return for each way the calls of the scheduler that no way before it has, in order."""
    known: set[str] = set()
    new = []
    for way in ways:
        calls = scheduler_calls(way)
        new.append("".join(call for call in calls if call not in known))
        known.update(calls)
    return new


@ON_THE_FIRST_RELEASE
def test_the_page_shows_what_happens(ways: list[Way]) -> None:
    section = PAGE.read_text().split(SECTION)[1].split("\n## ")[0]
    shown = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    expected = new_calls(ways)
    assert shown == expected, f"{PAGE.name} should show:\n\n" + "\n".join(expected)


def test_no_call_is_lost_between_the_blocks(ways: list[Way]) -> None:
    """A step is its own block and what the blocks before it show; nothing is left out of both."""
    shown = "".join(new_calls(ways))
    for way in ways:
        calls = scheduler_calls(way)
        assert "".join(calls).splitlines() == way.lines
        assert all(call in shown for call in calls)


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
