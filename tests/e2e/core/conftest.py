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
from tests.release_marks import with_our_interval
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.dry_run.layouts import KVLayout
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend.prefix_cache_config import VARIABLES, load_config
from vllm_ascend.releases import running_release
from vllm_ascend_evaluation.oracle import OracleOptions

# A line per reset and per built scheduler would be most of the run time.
logging.getLogger("vllm").setLevel(logging.ERROR)

MakeEngine = Callable[..., Engine]


def skip_if_left_to_vllm(engine: Engine) -> None:
    """Skip a test where nothing is set and the release has DeepSeek-V4's layout itself.

    Everywhere else the project's coordinator must be in force.
    """
    if isinstance(engine.manager.coordinator, AscendHybridKVCacheCoordinator):
        return
    has_layout = not running_release().counts_rows
    assert has_layout and not load_config().changes_caching, "vLLM's own coordinator is in force"
    pytest.skip("with nothing set, this release is left to vLLM")


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], None]:
    """Set exactly these of the project's variables; schedulers built afterwards obey them."""

    def set_switches(environment: Mapping[str, str]) -> None:
        for variable in VARIABLES:
            monkeypatch.delenv(variable.name, raising=False)
        for name, value in with_our_interval(environment).items():
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
