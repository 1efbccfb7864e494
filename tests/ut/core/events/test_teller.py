# SPDX-License-Identifier: Apache-2.0
"""A rank tells all front ends after each step, and one of them everything when it asks."""

from __future__ import annotations

import asyncio
from queue import Queue
from types import SimpleNamespace

import pytest
from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.engine.core import EngineCoreProc, EngineShutdownState

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from vllm_ascend.core.events.teller import tell_all
from vllm_ascend.dp_routing.index import CacheIndex
from vllm_ascend.dp_routing.names import prompt_names
from vllm_ascend.dp_routing.news import CacheNews, decode_news
from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, make_request
from vllm_ascend.dry_run.worker import SamplingWorker
from vllm_ascend.patch.engine import patch_core_client

PROMPT = list(range(2000))
BEST = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1", "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
ROUTING = {"VLLM_ASCEND_DP_ROUTING": "cache"}


@pytest.fixture
def make_core(monkeypatch):
    """vLLM's engine process without its process: a scheduler, and a queue to two front ends."""

    def make(environ: dict[str, str]) -> EngineCoreProc:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        core = object.__new__(EngineCoreProc)
        options = SchedulerOptions(num_blocks=600, max_model_len=4000, is_data_parallel=True)
        core.scheduler = build_scheduler(dsv4_flash_a3(128), options)
        core.addresses = SimpleNamespace(outputs=["first", "second"])
        core.output_queue = Queue()
        core.shutdown_state = EngineShutdownState.RUNNING
        return core

    return make


def answer(core: EngineCoreProc) -> None:
    """Have one prompt answered; nothing is told meanwhile."""
    scheduler, worker = core.scheduler, SamplingWorker(core.scheduler)
    scheduler.add_request(make_request(scheduler, "a", PROMPT, 1))
    while scheduler.has_requests():
        output = scheduler.schedule()
        scheduler.update_from_output(output, worker.execute(output))


def told(core: EngineCoreProc) -> list[tuple[int, CacheNews]]:
    messages = [core.output_queue.get_nowait() for _ in range(core.output_queue.qsize())]
    return [
        (client, decode_news(outputs.scheduler_stats.ascend_cache_news))
        for client, outputs in messages
    ]


def hit(core: EngineCoreProc, *messages: CacheNews) -> int:
    """Return the hit that a front end expects after some messages."""
    index = CacheIndex(1)
    for message in messages:
        index.apply(0, message)
    probe = make_request(core.scheduler, "probe", PROMPT, 1)
    return index.look_up(prompt_names(probe, index.hash_tokens or 128), len(PROMPT))[0].hit


def test_every_front_end_hears_of_a_step(make_core):
    core = make_core({**BEST, **ROUTING})
    answer(core)
    core.step()
    (first, news), (second, same) = told(core)
    assert (first, second) == (0, 1) and news == same
    assert hit(core, news) == 1920
    core.step()
    assert told(core) == [], "nothing has changed"


def test_one_that_asks_hears_all_and_can_follow_from_there(make_core):
    core = make_core({**BEST, **ROUTING})
    core.step()
    answer(core)
    assert core.ascend_tell_cache(1)
    *_, (client, everything) = told(core)
    assert client == 1 and hit(core, everything) == 1920
    assert core.scheduler.reset_prefix_cache()
    core.step()
    (_, after), _ = told(core)
    assert hit(core, everything, after) == 0


def test_a_reset_is_told_without_a_step(make_core):
    core = make_core({**BEST, **ROUTING})
    answer(core)
    core.step()
    (_, before), _ = told(core)
    call = (0, 7, "reset_prefix_cache", ())
    core._handle_client_request(EngineCoreRequestType.UTILITY, call)
    replies = [core.output_queue.get_nowait() for _ in range(core.output_queue.qsize())]
    (news,) = [
        decode_news(outputs.scheduler_stats.ascend_cache_news)
        for client, outputs in replies
        if client == 0 and outputs.scheduler_stats is not None
    ]
    assert hit(core, before, news) == 0


def test_a_rank_that_tells_nothing_sends_nothing(make_core):
    """The variable is unset, and the rank is asked all the same."""
    core = make_core(BEST)
    answer(core)
    core.step()
    core._handle_client_request(EngineCoreRequestType.UTILITY, (0, 7, "reset_prefix_cache", ()))
    assert not tell_all(core, 0)
    replies = [core.output_queue.get_nowait() for _ in range(core.output_queue.qsize())]
    assert all(outputs.scheduler_stats is None for _, outputs in replies)


@pytest.mark.parametrize("method", ["add_request_async", "process_engine_outputs"])
@pytest.mark.parametrize("environ", [{}, ROUTING], ids=["unset", "external balancing"])
def test_a_front_end_that_does_not_choose_hands_everything_on(method, environ, monkeypatch):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    seen = []

    async def original(client, argument):
        seen.append((client, argument))

    wrapped = getattr(patch_core_client, f"wrap_{method}").around(original)
    client, argument = SimpleNamespace(ascend_routing=None), object()
    asyncio.run(wrapped(client, argument))
    assert seen == [(client, argument)]


@pytest.mark.parametrize("environ", [{}, ROUTING], ids=["unset", "one rank"])
def test_a_client_is_built_as_ever(environ, monkeypatch):
    """Of several ranks or not: nothing is looked at unless the variable is set."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    started = []
    monkeypatch.setattr(patch_core_client, "start_routing", started.append)
    client = SimpleNamespace()
    patch_core_client.wrap_init.around(lambda self, *args, **kwargs: None)(client, 1, a=2)
    assert started == ([client] if environ else [])
    assert vars(client) == {"ascend_routing": None}
