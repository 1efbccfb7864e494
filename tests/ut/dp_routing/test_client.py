# SPDX-License-Identifier: Apache-2.0
"""A front end between vLLM's client and its ranks. The client is vLLM's, without its sockets."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.core_client import DPAsyncMPClient, DPLBAsyncMPClient
from vllm.v1.metrics.stats import SchedulerStats

import vllm_ascend.patch.platform  # noqa: F401 - declares the field that messages travel in
from tests.ut.dp_routing.test_index import PREFIX, SIZE, anew, news
from vllm_ascend.dp_routing import asking as asking_module
from vllm_ascend.dp_routing import client as client_module
from vllm_ascend.dp_routing.client import FrontEnd, process_stats, start_routing
from vllm_ascend.dp_routing.names import prompt_names
from vllm_ascend.dp_routing.news import CacheNews, encode_news
from vllm_ascend.releases import running_release

TOKENS = list(range(1000, 9003))
_COUNTS = [0, 0] if running_release().counts_rows else [0, 0, 0.0]


def request(name: str = "a", tokens=TOKENS, rank: int | None = None) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=name,
        prompt_token_ids=tokens,
        mm_features=None,
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=rank,
    )


@pytest.fixture
def client():
    """Three ranks, the first of which is rank 4 of the deployment, as with hybrid balancing."""
    made = SimpleNamespace(
        core_engines=[b"\4\0", b"\5\0", b"\6\0"],
        engine_ranks_managed=[4, 5, 6],
        client_index=1,
        client_count=2,
        eng_start_index=0,
        lb_engines=[list(_COUNTS) for _ in range(3)],
        reqs_in_flight={},
        engine_inflight=Counter(),
        asked=[],
        answer=True,
    )

    async def call(method: str, *args, engine: bytes):
        made.asked.append((method, args, engine))
        if isinstance(made.answer, Exception):
            raise made.answer
        return made.answer

    made._call_utility_async = call
    made.ascend_routing = FrontEnd(made)
    return made


def choose(client, sent: EngineCoreRequest) -> int:
    """As vLLM's client does it, through the patched method."""
    return client.core_engines.index(DPLBAsyncMPClient.get_core_engine_for_request(client, sent))


def hear(client, rank: int, message: CacheNews | bytes) -> EngineCoreOutputs:
    stats = SchedulerStats()
    stats.ascend_cache_news = message if isinstance(message, bytes) else encode_news(message)
    outputs = EngineCoreOutputs(engine_index=rank + 4, scheduler_stats=stats)
    asyncio.run(DPLBAsyncMPClient.process_engine_outputs(client, outputs))
    return outputs


def know(client, *with_prompt: int) -> None:
    """All ranks tell what they have: the prompt, or nothing."""
    for rank in range(3):
        hear(client, rank, anew(PREFIX))
        if rank in with_prompt:
            hear(client, rank, news(2, stored=prompt_names(request(), SIZE)))


def test_the_rank_with_the_prompt_is_chosen_and_vllms_books_are_kept(client):
    know(client, 2)
    sent = request()
    assert choose(client, sent) == 2
    assert sent.data_parallel_rank is None, "it is sent as the client made it"
    assert client.reqs_in_flight == {"a": b"\6\0"}
    assert client.lb_engines[2][0] == client.client_count
    assert process_stats() is client.ascend_routing.router.stats


def test_what_a_client_names_wins(client):
    know(client, 2)
    assert choose(client, request(rank=0)) == 0
    assert process_stats().chosen == {(0, "client"): 1}


def test_as_long_as_no_rank_tells_vllm_chooses(client):
    client.lb_engines = [[5, 5, *_COUNTS[2:]], list(_COUNTS), [5, 5, *_COUNTS[2:]]]
    assert choose(client, request()) == 1
    assert process_stats().chosen == {(1, "vllm"): 1}


def test_a_message_goes_no_further_than_here(client):
    outputs = hear(client, 0, anew(PREFIX))
    assert outputs.scheduler_stats is None, "loggers would take it for a step's statistics"


def test_an_answer_says_how_right_the_choice_was(client):
    know(client, 2)
    choose(client, request())
    answer = EngineCoreOutput(request_id="a", new_token_ids=[1])
    answer.prefill_stats = SimpleNamespace(num_local_cached_tokens=8000)
    outputs = EngineCoreOutputs(engine_index=6, outputs=[answer], finished_requests={"a"})
    asyncio.run(DPLBAsyncMPClient.process_engine_outputs(client, outputs))
    assert process_stats().num_exact == 1
    assert not client.reqs_in_flight and not client.ascend_routing.router._live


@pytest.mark.parametrize(
    "message", [news(7), b"\xc1", encode_news(CacheNews(1, 2, ((0, b"odd", b""),)))],
    ids=["gap", "no message", "no names"],
)  # fmt: skip
def test_a_rank_is_asked_for_all_once_a_message_is_amiss(client, message):
    know(client, 0, 1)
    hear(client, 1, message)
    hear(client, 1, news(9))
    (asked,) = client.asked
    assert asked == ("ascend_tell_cache", (1,), b"\5\0"), "not again within a second"
    assert choose(client, request()) == 0


def chunk(number: int, rank: int | None = None, *, is_end: bool = False) -> EngineCoreRequest:
    """A chunk of the session "s", or what tells its end, as ``AsyncLLM`` makes them."""
    tokens = [0] if is_end else list(range(10_000 * number, 10_000 * number + 2000))
    made = request("s", tokens, rank)
    made.resumable = not is_end
    return made


def answer(client, rank: int, *, is_end: bool = False) -> None:
    outputs = [EngineCoreOutput("s", [1])]
    ended = {"s"} if is_end else None
    heard = EngineCoreOutputs(engine_index=rank + 4, outputs=outputs, finished_requests=ended)
    asyncio.run(DPLBAsyncMPClient.process_engine_outputs(client, heard))


def is_forgotten(client) -> bool:
    router = client.ascend_routing.router
    sent = router.sent
    booked = [*sent.left_tokens, *sent.num_waiting, *client.engine_inflight.values()]
    rest = [client.reqs_in_flight, router._live, router._sharers, router._predicted]
    return not any(booked) and not any(rest) and not any(sent._owners)


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("named", [None, 1])
@pytest.mark.parametrize("answers", [True, False], ids=["in turn", "at once"])
def test_a_session_stays_on_its_rank_and_leaves_nothing_behind(client, named, is_known, answers):
    """Its chunks come one by one, each with the session's id, behind its answers or before them."""
    if is_known:
        know(client)
    router = client.ascend_routing.router
    rank = choose(client, chunk(0, named))
    assert named in (None, rank)
    is_booked = is_known or named is not None
    for number in range(1, 4):
        if answers:
            answer(client, rank)
            assert not any(router.sent.left_tokens), "it is computed, and answered"
        client.lb_engines[rank] = [number, 1, *_COUNTS[2:]]
        assert choose(client, chunk(number, named)) == rank
        num_chunks = 1 if answers else number + is_booked
        assert router.sent.left_tokens[rank] == 2000 * num_chunks
        assert router.sent.num_waiting[rank] == 1, "it waits once"
    assert process_stats().chosen.total() == 1, "it was chosen once"
    assert choose(client, chunk(4, named, is_end=True)) == rank
    answer(client, rank, is_end=True)
    assert is_forgotten(client)


def test_a_session_whose_rank_was_taken_away_begins_elsewhere(client):
    know(client)
    client.lb_engines = [[9, 9, *_COUNTS[2:]], [9, 9, *_COUNTS[2:]], list(_COUNTS)]
    assert choose(client, chunk(0)) == 2
    client.core_engines, client.lb_engines = client.core_engines[:2], client.lb_engines[:2]
    assert choose(client, chunk(1)) in (0, 1)


@pytest.fixture
def clock(monkeypatch):
    """The seconds that pass between questions."""
    now = [0.0]
    monkeypatch.setattr(asking_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def ask(client, clock: list[float], seconds: float, times: int) -> list[bytes]:
    """Let requests come for a while; return the engines that were asked."""
    client.asked.clear()

    async def send() -> None:
        for number in range(times):
            clock[0] += seconds
            choose(client, request(f"{clock[0]} {number}"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    asyncio.run(send())
    return [engine for _, _, engine in client.asked]


def test_a_rank_that_does_not_tell_is_asked_once(client, clock):
    client.answer = False
    assert ask(client, clock, 100.0, 3) == client.core_engines


def test_a_call_that_failed_is_made_again_less_and_less_often(client, clock):
    client.answer = RuntimeError("Call to ascend_tell_cache method failed: timed out")
    asked = Counter(ask(client, clock, 0.5, 2 * 600))
    assert set(asked) == set(client.core_engines)
    assert set(asked.values()) == {6 + 9}, "after 1, 2, 4, ... 32 seconds, then every minute"
    client.answer = True
    assert ask(client, clock, 60.0, 1) == client.core_engines
    know(client, 0)
    assert ask(client, clock, 60.0, 3) == [], "all is known"


def test_a_rank_that_refused_and_tells_all_the_same_is_followed(client, clock):
    client.answer = False
    ask(client, clock, 1.0, 1)
    client.asked.clear()

    async def lose_one() -> None:
        for number in (1, 3):
            outputs = EngineCoreOutputs(engine_index=5, scheduler_stats=SchedulerStats())
            message = anew(PREFIX) if number == 1 else news(number)
            outputs.scheduler_stats.ascend_cache_news = encode_news(message)
            clock[0] += 100.0
            await DPLBAsyncMPClient.process_engine_outputs(client, outputs)
        await asyncio.sleep(0)

    asyncio.run(lose_one())
    assert [engine for _, _, engine in client.asked] == [b"\5\0"]


@pytest.mark.parametrize("answer", [False, RuntimeError("timed out")], ids=["off", "failed"])
def test_after_scaling_every_rank_is_asked_anew(client, clock, answer):
    client.answer = answer
    ask(client, clock, 1.0, 1)
    client.answer = True
    client.core_engines = [b"\4\0", b"\5\0"]
    client.lb_engines = [list(_COUNTS) for _ in range(2)]
    assert ask(client, clock, 0.0, 1) == client.core_engines


def test_a_scaled_engine_begins_anew(client):
    know(client, 2)
    client.core_engines.append(b"\7\0")
    client.lb_engines.append(list(_COUNTS))

    async def choose_once() -> None:
        choose(client, request())
        await asyncio.sleep(0)

    asyncio.run(choose_once())
    assert client.ascend_routing.router.num_ranks == 4 and len(client.asked) == 4


@pytest.mark.parametrize("aborts", [False, True])
def test_a_long_prompt_may_be_aborted_while_it_is_hashed(client, aborts, monkeypatch):
    monkeypatch.setattr(client_module, "LONG_PROMPT_TOKENS", 1)
    know(client, 2)

    async def send() -> bool:
        hashing = asyncio.create_task(client.ascend_routing.hash_prompt(request()))
        await asyncio.sleep(0)
        client.ascend_routing.abort(["a", "b"] if aborts else ["b"])
        return await hashing

    assert asyncio.run(send()) is not aborts
    routing = client.ascend_routing
    assert not routing._hashing and not routing._aborted and bool(routing._prompts) is not aborts


def test_all_ranks_are_asked_at_the_start(client):
    """A front end may start when they have cached something already."""
    balancer = object.__new__(DPLBAsyncMPClient)
    vars(balancer).update(vars(client))

    async def start() -> None:
        assert start_routing(balancer) is not None
        await asyncio.sleep(0)

    asyncio.run(start())
    assert [engine for _, _, engine in client.asked] == client.core_engines


def test_external_balancing_has_nothing_to_choose():
    client = object.__new__(DPAsyncMPClient)
    assert start_routing(client) is None


def test_unset_is_vllms_own_choice(client, monkeypatch):
    client.ascend_routing = None
    client.lb_engines[0][0] = 1
    assert [choose(client, request(str(i))) for i in range(2)] == [1, 2]
