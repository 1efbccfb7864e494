# SPDX-License-Identifier: Apache-2.0
"""Patches installed once, switched per test through the environment."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping

import pytest

import vllm_ascend.patch.platform  # noqa: F401  (installs the patches)
from tests.conftest import HITS, PREEMPTIONS
from tests.e2e.core.engine import Engine
from vllm_ascend.oracle import OracleOptions
from vllm_ascend.prefix_cache_config import VARIABLES
from vllm_ascend.replay.layouts import KVLayout
from vllm_ascend.replay.scheduler import SchedulerOptions

# A line per reset and per built scheduler would be most of the run time.
logging.getLogger("vllm").setLevel(logging.ERROR)

MakeEngine = Callable[..., Engine]


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], None]:
    """Set exactly these of the project's variables; schedulers built afterwards obey them."""

    def set_switches(environment: Mapping[str, str]) -> None:
        for variable in VARIABLES:
            monkeypatch.delenv(variable.name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    set_switches({})
    return set_switches


@pytest.fixture
def make_engine(
    switch: Callable[[Mapping[str, str]], None],
    request: pytest.FixtureRequest,
    verified_steps: Counter[str],
) -> MakeEngine:
    """Build engines under given switches; their steps are counted when the test ends."""
    engines: list[tuple[str, Engine]] = []

    def make(
        layout: Callable[[], KVLayout],
        options: Callable[[], SchedulerOptions] | SchedulerOptions,
        oracle: OracleOptions | None = None,
        environment: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> Engine:
        switch(environment or {})
        resolved = options if isinstance(options, SchedulerOptions) else options()
        engine = Engine(layout(), resolved, oracle)
        engines.append((name or request.node.originalname, engine))
        return engine

    def count() -> None:
        for name, engine in engines:
            verified_steps[name] += engine.worker.num_steps
            verified_steps[HITS] += sum(hit > 0 for hit in engine.hits.values())
            verified_steps[PREEMPTIONS] += engine.num_preemptions

    request.addfinalizer(count)
    return make
