# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout (see forks.py): AscendStore's pool beside the prefix cache, row by row.

A key names rows that exactly these tokens wrote, and rows that are loaded are those.
"""

# ruff: noqa: F811 - fixtures are imported
from __future__ import annotations

import random
from contextlib import nullcontext, suppress
from dataclasses import replace

import pytest

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.e2e.core.configurations import (
    PARTIAL,
    RETENTION,
    Configuration,
)
from tests.e2e.core.conftest import switch  # noqa: F401
from tests.e2e.core.workload import Workload
from tests.upstream import store_instances
from tests.upstream.fixtures import without_npu  # noqa: F401
from tests.upstream.store_instances import Instance, Pool
from vllm_ascend.core.layout.specs import window_span
from vllm_ascend.kv_transfer import store_pages
from vllm_ascend.patch.upstream import patch_ascend_store
from vllm_ascend_evaluation.oracle import ContentViolation

WHOLE_BLOCKS = 64  # tokens that the pool is asked for; hits in the cache end at every 16


@pytest.fixture(autouse=True)
def hosts(monkeypatch, without_npu):
    store_instances.stand_in_for_hosts(monkeypatch)


def cell(case: str = "dsv4-rows", mode: str = "plain", switches: str = "best") -> Configuration:
    return Configuration.named(case, mode, switches)


def tokens(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(50) for _ in range(count)]


def answer(engine: Instance, name: str, prompt: list[int], num_tokens: int = 3) -> int:
    """Let an engine answer a request alone, and return the tokens that it did not compute."""
    engine.add(name, prompt, num_tokens)
    engine.run()
    assert engine.wrong_pages() == []
    return engine.hits[name]


@pytest.mark.parametrize("switches", ["partial-0", "partial-sparse-0"])
@pytest.mark.parametrize("load_async", [False, True])
@pytest.mark.parametrize("mode", ["plain", "mtp1"])
@pytest.mark.parametrize(("case", "alignment"), [("dsv4-rows", WHOLE_BLOCKS), ("dsv4-a3-32", 4096)])
def test_one_engine_loads_what_another_stored(switch, case, alignment, mode, load_async, switches):
    """With 32 rows a granule names a block of the 4:1 groups, with more part of one."""
    configuration = cell(case, mode, switches)
    switch(configuration.environment)
    first, second = (Instance(configuration, load_async=load_async) for _ in range(2))
    prompt = tokens(2 * alignment + 10)
    assert answer(first, "stores", prompt) == 0
    left_out = int(mode != "plain")
    assert answer(second, "loads", prompt) == second.num_loaded == 2 * alignment - left_out
    if mode == "plain":
        second.reset()
        assert answer(second, "all but the last", prompt[: 2 * alignment]) == 2 * alignment - 1
    for engine in (first, second):
        engine.drain()


def test_engines_with_and_without_drafts_do_not_find_each_others_pages(switch):
    """A page holds a group's layers, draft layers as well."""
    prompt, pages = tokens(300), 0
    for mode in ("plain", "mtp1"):
        configuration = cell(mode=mode, switches="partial-0")
        switch(configuration.environment)
        assert answer(Instance(configuration), mode, prompt) == 0
        assert len(Pool.pages) > pages
        pages = len(Pool.pages)


def test_a_hit_inside_a_block_is_taken_where_the_pool_brings_nothing(switch):
    configuration = cell()
    switch(configuration.environment)
    engine, prompt = Instance(configuration), tokens(300)
    answer(engine, "first", prompt)
    Pool.pages.clear()
    assert answer(engine, "again", prompt) == 288  # WHOLE_BLOCKS does not divide it
    assert engine.num_loaded == 0


# The cures, and what is stored without each


def store_behind_a_hit(engine: Instance) -> list[str]:
    """Return wrong pages after a hit whose own pages are gone from the pool."""
    prompt = tokens(300)
    engine.add("first", prompt, 3)
    engine.run()
    Pool.pages.clear()
    engine.add("hits", prompt + tokens(60, seed=1), 3)
    engine.run()
    assert engine.hits["hits"] > 256
    return engine.wrong_pages()


def store_behind_a_window(engine: Instance) -> list[str]:
    """Return wrong pages after a prompt whose first pages are gone from the pool half-way."""
    engine.add("long", tokens(300), 3)
    engine.step()
    Pool.pages.clear()
    engine.add("other", tokens(300, seed=1), 3)  # is given what the windows of the first have left
    engine.run()
    return engine.wrong_pages()


@pytest.fixture
def engine(switch) -> Instance:
    configuration = cell(switches="retention-unset")
    environment = {**configuration.environment, PARTIAL: "1"}
    switch(environment)
    return Instance(configuration, room=2.0)


def test_null_blocks_are_not_stored(engine):
    assert store_behind_a_hit(engine) == []


def test_stored_null_blocks_are_noticed(engine):
    engine.pool_worker.token_database.has_null_blocks = False
    assert store_behind_a_hit(engine)


def test_blocks_that_windows_have_left_are_not_stored(engine):
    assert store_behind_a_window(engine) == []


def test_stored_blocks_that_windows_have_left_are_noticed(engine, monkeypatch):
    monkeypatch.setattr(patch_ascend_store, "blocks_of_tails", lambda _, tables, __: tables)
    assert store_behind_a_window(engine)


def store_behind_open_windows(engine: Instance) -> list[str]:
    """Return wrong pages where a step ends two tokens behind a boundary of the pool.

    The state of tokens [58, 60) is still in its window then, by vLLM's rule, and read by nobody.
    """
    engine.add("short", tokens(14, seed=2), 1)
    engine.add("long", tokens(300), 3)  # 66 tokens of it are in the first step
    engine.step()
    Pool.pages.clear()
    engine.add("other", tokens(300, seed=1), 3)
    engine.run()
    return engine.wrong_pages()


@pytest.fixture
def sparse_engine(switch) -> Instance:
    configuration = cell()
    # With a number AscendStore stores fewer tails in later releases.
    switch({**configuration.environment, RETENTION: "auto"})
    return Instance(configuration)


def test_sparse_state_is_not_stored_once_it_is_others(sparse_engine):
    assert store_behind_open_windows(sparse_engine) == []


def test_stored_sparse_state_of_others_is_noticed(sparse_engine, monkeypatch):
    monkeypatch.setattr(store_pages, "read_span", lambda spec, _: window_span(spec))
    assert store_behind_open_windows(sparse_engine)


def store_in_a_failed_step(engine: Instance) -> dict:
    """Return what is stored when the first step fails, as vLLM's runner lets it go on then."""
    connector = engine.worker.connector._connector
    save, failure = connector.wait_for_save, RuntimeError("planted")

    def fail() -> None:
        with suppress(RuntimeError):
            try:
                raise failure
            finally:
                save()

    connector.wait_for_save = fail
    engine.add("fails", tokens(300), 3)
    engine.step()
    engine.wrong_pages()  # waits for what is being stored
    return Pool.pages


def test_of_a_failed_step_nothing_is_stored(engine):
    assert not store_in_a_failed_step(engine)


def test_a_stored_failed_step_is_noticed(engine, monkeypatch):
    monkeypatch.setattr(patch_ascend_store, "_step_has_failed", lambda: False)
    assert store_in_a_failed_step(engine)


def test_blocks_filled_in_part_would_be_stored_as_whole_ones(switch):
    """Why the setting is refused, with DeepSeek-V4 before anything is loaded."""
    configuration = cell()
    switch(configuration.environment)
    engine = Instance(configuration, discard_partial_chunks=False)
    engine.add("long", tokens(300), 3)  # 80 at a time
    engine.run()
    assert engine.wrong_pages()


@pytest.mark.parametrize("knows", [True, False])
def test_the_row_that_needs_the_next_token_is_computed(switch, monkeypatch, knows):
    if not knows:
        monkeypatch.setattr(patch_ascend_store, "_reads_draft_rows", lambda _: False)
    configuration = cell(mode="mtp1", switches="partial-0")
    switch(configuration.environment)
    first, second = Instance(configuration), Instance(configuration)
    prompt = tokens(WHOLE_BLOCKS)
    answer(first, "stores", [*prompt, 1, 2, 3])
    with nullcontext() if knows else pytest.raises(ContentViolation, match="draft model"):
        answer(second, "loads", [*prompt, 3, 2, 1])


# Everything at once


@pytest.mark.parametrize(
    ("mode", "switches", "load_async"),
    [
        ("plain", "best", False),
        ("plain", "partial-0", True),
        ("plain", "retention-unset", False),
        ("priority", "retention-N", True),
        ("async", "best", True),
        ("mtp3", "best", False),
        ("async-mtp", "pin-best", True),
        ("async-mtp", "partial-0", False),
    ],
)
def test_random_traffic_of_two_engines_with_one_pool(switch, mode, switches, load_async):
    """Pages vanish from the pool all the time, but not between a look-up and its load."""
    configuration = cell(mode=mode, switches=switches)
    environment = configuration.environment
    if "best" in switches:  # AscendStore looks no prompt up that is shorter than two intervals
        environment[RETENTION] = "auto"
    switch(environment)
    engines = [
        Instance(configuration, room=room, load_async=load_async, save_decode_cache=True)
        for room in (1.3, 2.0)
    ]
    # A reset under running requests is refused while others wait for a connector.
    traffic = replace(configuration.traffic, busy_reset=0.0, idle_reset=0.1)
    workloads = [Workload(engine, traffic, seed) for seed, engine in enumerate(engines)]
    workloads[1]._families = workloads[0]._families  # what the one computes the other is asked for
    rng = random.Random(0)
    for turn in range(200):
        for workload in workloads:
            workload.turn()
        if turn % 10 == 0:
            assert [page for engine in engines for page in engine.wrong_pages()] == []
            if not any(engine.waits_for_pages() for engine in engines):
                for key in rng.sample(sorted(Pool.pages), len(Pool.pages) // 4):
                    del Pool.pages[key]
    for engine in engines:
        engine.drain()
        assert engine.wrong_pages() == []
    assert sum(engine.num_loaded for engine in engines) >= WHOLE_BLOCKS
