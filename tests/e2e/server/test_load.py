# SPDX-License-Identifier: Apache-2.0
"""A real server with every switch on under load, at its limits, and when its worker is killed.

One server for all tests, in their order; the last one kills it. Its pool is so small that it is
turned over again and again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from benchmarks.memory_over_requests import Memory, measure
from tests.e2e.scraping import own_metrics
from tests.e2e.server.clients import Ending, ask, http_client, leave
from tests.e2e.server.faults import check_all_were_told, strike_under_load, until_gone
from tests.e2e.server.processes import (
    API_SERVER,
    ENGINE_CORE,
    WORKER,
    processes_of,
    shared_memory_of,
)
from tests.e2e.server.server import (
    BEST,
    Server,
    cached,
    expected_hits,
    longest_hit,
    serve,
    tokens,
)
from vllm_ascend_evaluation.models.tiny.maker import make_tiny_model

MAX_MODEL_LEN = 4096
NUM_BLOCKS = 1500
_BLOCKS = "kv_cache_blocks."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    make_tiny_model(folder / "model")
    options = ("--max-model-len", str(MAX_MODEL_LEN), "--num-gpu-blocks-override", str(NUM_BLOCKS))
    with serve(folder / "model", folder / "log", BEST, *options) as running:
        yield running


def refused(server: Server, **body: Any) -> str:
    """Return why the server refuses a request with status 400."""
    answer = httpx.post(f"{server.url}/v1/completions", json=server.body(**body), timeout=300)
    assert answer.status_code == httpx.codes.BAD_REQUEST, answer.text
    return answer.json()["error"]["message"]


def blocks(server: Server) -> dict[str, float]:
    """Return the pool's blocks by tier."""
    metrics = own_metrics(server.get("/metrics"))
    return {name: metrics[name] for name in metrics if name.startswith(_BLOCKS)}


def wait_until_idle(server: Server) -> None:
    """Wait until nothing runs, waits or holds a block, and check that no block is lost."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    deadline = time.monotonic() + 300
    # Gauges tell of the last step: there must be one.
    while server.complete([16]) and any(map(server.metric, names)):
        assert time.monotonic() < deadline, {name: server.metric(name) for name in names}
    counts = blocks(server)
    assert counts[f"{_BLOCKS}used"] == 0
    # -1: the null block is nobody's.
    assert sum(counts.values()) == NUM_BLOCKS - 1


def said_without_a_hit(server: Server, prompt: Sequence[int]) -> list[int]:
    """Return the first eight tokens of the answer to a prompt that is alone and skips the cache."""
    told = server.post("/v1/completions", prompt=list(prompt), max_tokens=8, prompt_logprobs=0)
    assert cached(told) == 0
    return told["choices"][0]["token_ids"]


def test_200_clients_at_once(server):
    """Half stream, every fifth leaves; the others are told what each is told without a hit."""
    # Seeds of its own: the other tests of this server send prompts that nobody has sent before.
    documents = [tokens(300, seed) for seed in range(20, 28)]
    prompts = [documents[i % 8] + tokens(1 + 6 * i, seed=100 + i) for i in range(25)]

    async def clients() -> list[Ending | None]:
        async with http_client() as http:
            return await asyncio.gather(*(client(http, number) for number in range(200)))

    async def client(http: httpx.AsyncClient, number: int) -> Ending | None:
        body = {"prompt": prompts[number % 25], "max_tokens": 8, "stream": number % 2 == 0}
        if number % 5 < 4:
            return await ask(http, server, **body)
        await leave(server, **{**body, "stream": True}, num_events=number % 4)
        return None

    endings = asyncio.run(clients())
    answers = [said_without_a_hit(server, prompt) for prompt in prompts]
    num_right = 0
    for number, ending in enumerate(endings):
        if ending is not None:
            assert (ending.status, ending.error) == (httpx.codes.OK, None)
            assert ending.token_ids == answers[number % 25]
            num_right += 1
    assert num_right == 160
    wait_until_idle(server)


def test_1000_aborted_requests(server):
    """They leave at every stage; what they had in common is still hit, and no block is lost."""
    document = tokens(700, seed=1)
    before = server.complete(document)

    async def clients() -> None:
        bodies = iter(range(1000))

        async def client() -> None:
            for number in bodies:
                body = {"prompt": document[: 7 * (number % 101)] + tokens(60, seed=1000 + number)}
                stays = number % 4
                await leave(server, stays, **body, max_tokens=500, stream=stays > 0)

        await asyncio.gather(*(client() for _ in range(100)))

    asyncio.run(clients())
    wait_until_idle(server)
    after = server.complete(document)
    assert cached(after) == longest_hit(700)
    assert after["choices"][0]["token_ids"] == before["choices"][0]["token_ids"]


def test_prompts_as_long_as_the_model_allows(server):
    longest = tokens(MAX_MODEL_LEN - 1, seed=2)
    first, second = server.complete(longest, 1), server.complete(longest, 1)
    assert first["usage"]["prompt_tokens"] == MAX_MODEL_LEN - 1
    assert (cached(first), cached(second)) == (0, longest_hit(MAX_MODEL_LEN - 1))
    assert first["choices"][0]["token_ids"] == second["choices"][0]["token_ids"]


@pytest.mark.parametrize("num_tokens", [MAX_MODEL_LEN, MAX_MODEL_LEN + 1, 10 * MAX_MODEL_LEN])
def test_prompts_that_leave_no_room_for_an_answer(server, num_tokens):
    assert str(MAX_MODEL_LEN) in refused(server, prompt=tokens(num_tokens, seed=3), max_tokens=1)


def test_an_answer_that_ends_at_the_longest_length(server):
    prompt = tokens(MAX_MODEL_LEN - 20, seed=4)
    assert server.complete(prompt, 20)["usage"]["completion_tokens"] == 20
    assert str(MAX_MODEL_LEN) in refused(server, prompt=prompt, max_tokens=21)


def test_a_prompt_of_one_token(server):
    first, second = server.complete([77]), server.complete([77])
    assert first["choices"][0]["token_ids"] == second["choices"][0]["token_ids"]
    assert (cached(first), cached(second)) == (0, 0)


@pytest.mark.parametrize("prompt", [[], ""], ids=["no tokens", "no text"])
def test_an_empty_prompt(server, prompt):
    """vLLM refuses it whatever is cached."""
    assert refused(server, prompt=prompt, max_tokens=4)


def test_prompt_logprobs_are_told_for_every_token(server):
    """They need every position computed: nothing is hit, whatever is cached."""
    prompt = tokens(400, seed=5)
    alone = server.complete(prompt)
    for _ in range(2):
        told = server.post("/v1/completions", prompt=prompt, max_tokens=4, prompt_logprobs=0)
        (choice,) = told["choices"]
        assert cached(told) == 0
        assert len(choice["prompt_logprobs"]) == 400
        assert choice["token_ids"] == alone["choices"][0]["token_ids"]
    assert cached(server.complete(prompt)) == longest_hit(400)


def test_several_answers_to_one_prompt(server):
    """They share the prompt and part behind it; the next turn of each is answered right."""
    prompt = tokens(300, seed=6)
    sampled = server.post(
        "/v1/completions", prompt=prompt, max_tokens=200, n=4, temperature=1, seed=1
    )
    turns = [prompt + choice["token_ids"] for choice in sampled["choices"]]
    assert len(set(map(tuple, turns))) == 4
    for turn in turns:
        answer = server.complete(turn, 8)
        assert cached(answer) >= longest_hit(300)
        assert answer["choices"][0]["token_ids"] == said_without_a_hit(server, turn)


def test_prompts_that_differ_in_one_token(server):
    """What is hit ends before it, to the granule; what is said is right."""
    common = tokens(600, seed=7)
    prompts = [common] + [
        [*common[:place], 16 + (common[place] - 15) % 1000, *common[place + 1 :]]
        for place in (599, 512, 511, 300, 128, 127, 1, 0)
    ]
    for number, prompt in enumerate(prompts):
        answer = server.complete(prompt, 8)
        assert cached(answer) == expected_hits([prompt], before=prompts[:number])
        assert answer["choices"][0]["token_ids"] == said_without_a_hit(server, prompt)


def test_memory_is_flat(server):
    """The long form is ``python -m benchmarks.memory_over_requests``."""
    memory = asyncio.run(measure(server, 1000, num_clients=32))
    assert memory.is_flat(), memory.bytes_per_request()
    wait_until_idle(server)


@pytest.mark.parametrize("name", [API_SERVER, ENGINE_CORE, WORKER])
def test_memory_that_grows_is_not_flat(name):
    """Over 20,000 requests a request id and a list of its blocks would be seen."""
    num_requests = list(range(100, 20_001, 100))
    resident = {process: [1 << 30] * 200 for process in (API_SERVER, ENGINE_CORE, WORKER)}
    assert Memory(num_requests, resident).is_flat()
    leaked = 2000 if name == WORKER else 320
    resident[name] = [(1 << 30) + leaked * count for count in num_requests]
    assert not Memory(num_requests, resident).is_flat()


def test_a_killed_worker(server):
    """Every client is told so, and the server ends with all of its processes."""
    shared_memory = shared_memory_of(server)
    assert shared_memory
    endings = asyncio.run(strike_under_load(server, processes_of(server)[WORKER].kill))
    assert until_gone(server, shared_memory) == 0
    check_all_were_told(endings)
