# SPDX-License-Identifier: Apache-2.0
"""One request to a real server, and what prompts are made of."""

import asyncio
import itertools
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ut.replay.completions_server import CompletionsServer
from vllm_ascend.replay.http_client import HttpClient, ServerError, base_url
from vllm_ascend.replay.http_prompts import FIRST_ID, PromptShape, TokenMap, fit, only
from vllm_ascend.replay.readers.mooncake import BLOCK_TOKENS
from vllm_ascend.replay.trace import BadInputError, TraceRequest, Workload
from vllm_ascend.replay.workloads import shared_prefix

IDS = st.integers(0, 2**63 - 1)
BLOCK_IDS = st.integers(0, 2**63 // BLOCK_TOKENS - 2)


def with_client(url, work, timeout_s=10.0):
    async def run():
        client = HttpClient(url, timeout_s=timeout_s)
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(run())


def complete(url, prompt, output_tokens=3, **options):
    return with_client(url, lambda c: c.complete("tiny", prompt, output_tokens), **options)


def workload_of(*prompts, output_tokens=2):
    def requests():
        return (TraceRequest(list(prompt), output_tokens) for prompt in prompts)

    return Workload("test", "prompts of a test", 4, len(prompts), requests)


def test_an_answer():
    with CompletionsServer(delay_s=0.05) as server:
        first = complete(server.url, list(range(20)))
        again = complete(server.url, list(range(20)))
    assert (first.prompt_tokens, first.output_tokens, first.cached_tokens) == (20, 3, 0)
    assert again.cached_tokens == 16
    assert 0.05 <= again.ttft_s <= again.seconds < 5
    assert again.tpot_s == pytest.approx((again.seconds - again.ttft_s) / 2)
    assert server.bodies[0] == {
        "model": "tiny",
        "prompt": list(range(20)),
        "max_tokens": 3,
        "min_tokens": 3,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_one_token_has_no_time_per_token():
    with CompletionsServer() as server:
        assert complete(server.url, [1, 2], output_tokens=1).tpot_s is None


def test_no_details():
    with CompletionsServer(tells_details=False) as server:
        assert complete(server.url, [1, 2]).cached_tokens is None


def test_first_model():
    with CompletionsServer() as server:
        assert with_client(server.url, lambda client: client.first_model()) == "tiny"


def test_status_500_names_url_status_and_the_first_200_characters():
    with CompletionsServer(fails_from=0) as server, pytest.raises(ServerError) as caught:
        complete(server.url, [1, 2])
    start = f"{server.url}/v1/completions: status 500: "
    assert str(caught.value) == start + ("out of blocks " + "x" * 300)[:200]


def test_an_error_inside_the_stream():
    with (
        CompletionsServer(breaks_from=0) as server,
        pytest.raises(ServerError, match=r"/v1/completions: .*the engine died"),
    ):
        complete(server.url, [1, 2])


def test_silence():
    with (
        CompletionsServer(delay_s=5) as server,
        pytest.raises(ServerError, match="no answer in time"),
    ):
        complete(server.url, [1, 2], timeout_s=0.2)


def test_nobody_there():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        for work in (lambda c: c.first_model(), lambda c: c.complete("m", [1], 1)):
            with pytest.raises(ServerError, match=rf"{url}/v1/\w+: cannot be reached"):
                with_client(url, work)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\ndata: [DONE]\n\n",
        b"HTTP/1.1 200 OK\r\n\r\ndata: {broken\n\n",
        b"HTTP/1.1 200 OK\r\n\r\ndata: [1]\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ndata: [DONE]\n\n",
        b"not HTTP\r\n\r\n",
    ],
)
def test_answers_that_make_no_sense(answer):
    async def run():
        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = HttpClient(url, timeout_s=5)
        try:
            with pytest.raises(ServerError, match="/v1/completions: "):
                await client.complete("m", [1], 1)
        finally:
            await client.close()
            server.close()

    asyncio.run(run())


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_base_url(end):
    assert base_url(f"http://host:8000{end}") == "http://host:8000"
    assert base_url(f"https://host/llm{end}") == "https://host/llm"


@pytest.mark.parametrize(
    "url",
    [
        "http://host:x",
        "http://[::1",
        "http://host:99999",
        "host:8000",
        "127.0.0.1:8000",
        "ftp://host",
        "http://",
        "",
    ],
)
def test_no_url(url):
    with pytest.raises(BadInputError, match="--url"):
        base_url(url)


@given(
    prefix=st.lists(IDS, max_size=30),
    one=st.lists(IDS, max_size=30),
    other=st.lists(IDS, max_size=30),
    vocab_size=st.integers(100, 200_000),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None)
def test_the_map_keeps_prefixes_and_the_vocabulary(prefix, one, other, vocab_size, seed):
    map_tokens = TokenMap(vocab_size, seed)
    first = map_tokens(prefix + one).tolist()
    second = TokenMap(vocab_size, seed)(prefix + other).tolist()
    assert first[: len(prefix)] == second[: len(prefix)] == map_tokens(prefix).tolist()
    assert len(first) == len(prefix) + len(one)
    assert all(FIRST_ID <= token < vocab_size for token in first + second)


@given(blocks=st.lists(BLOCK_IDS, min_size=2, max_size=20, unique=True))
@settings(deadline=None)
def test_the_map_separates_blocks(blocks):
    map_tokens = TokenMap(1000, 0)
    runs = [map_tokens(range(b * BLOCK_TOKENS, (b + 1) * BLOCK_TOKENS)) for b in blocks]
    for one, other in itertools.combinations(runs, 2):
        # Of 512 random tokens of 996 half a one is equal by chance.
        assert (one == other).sum() < 20
        # What is left of a block at the largest scale.
        assert tuple(one[::128]) != tuple(other[::128])


@given(
    prefix=st.lists(IDS, max_size=64),
    one=st.lists(IDS, min_size=1, max_size=64),
    other=st.lists(IDS, min_size=1, max_size=64),
    scale=st.sampled_from([1, 2, 4, 16, 128]),
)
@settings(deadline=None)
def test_a_scaled_prefix_is_shared_in_proportion(prefix, one, other, scale):
    fitted = fit(workload_of(prefix + one, prefix + other), PromptShape(scale=scale))
    first, second = (request.prompt_token_ids for request in fitted.workload.requests())
    assert len(first) == -(-len(prefix + one) // scale)
    shared = -(-len(prefix) // scale)
    assert first[:shared] == second[:shared]


def test_a_block_of_a_trace_becomes_whole_tokens():
    blocks = list(range(7 * BLOCK_TOKENS, 9 * BLOCK_TOKENS))
    fitted = fit(workload_of(blocks), PromptShape(scale=16))
    (request,) = fitted.workload.requests()
    assert len(request.prompt_token_ids) == 2 * 512 // 16
    expected = TokenMap(1000, 0)(blocks)[::16]
    assert request.prompt_token_ids == expected.tolist()


def test_seeds_differ():
    ids = list(range(100))
    assert TokenMap(1000, 0)(ids).tolist() != TokenMap(1000, 1)(ids).tolist()


def test_dropped_limited_and_capped():
    prompts = [range(n) for n in (10, 50, 30, 10, 10)]
    shape = PromptShape(scale=2, max_prompt_tokens=15, max_requests=4, max_output_tokens=1)
    fitted = fit(workload_of(*prompts), shape)
    requests = list(fitted.workload.requests())
    assert [len(request.prompt_token_ids) for request in requests] == [5, 15, 5]
    assert {request.output_tokens for request in requests} == {1}
    assert (fitted.workload.num_requests, fitted.num_dropped) == (3, 1)
    rest = only(fitted.workload, {0, 2}.__contains__)
    assert rest.num_requests == len(list(rest.requests())) == 2


def test_nothing_left():
    with pytest.raises(BadInputError, match="more than 9 tokens"):
        fit(workload_of(range(10)), PromptShape(max_prompt_tokens=9))


@pytest.mark.parametrize("wrong", [{"scale": 3}, {"scale": 256}, {"vocab_size": 5}])
def test_shapes_that_make_no_sense(wrong):
    with pytest.raises(BadInputError, match="--"):
        PromptShape(**wrong).check()


def test_generated_prompts_stay_apart():
    workload = shared_prefix(
        "s",
        num_requests=4,
        input_tokens=300,
        shared_tokens=100,
        output_tokens=1,
        concurrency=1,
        seed=0,
    )
    requests = list(fit(workload, PromptShape()).workload.requests())
    heads = {tuple(request.prompt_token_ids[:100]) for request in requests}
    tails = {tuple(request.prompt_token_ids[100:110]) for request in requests}
    assert (len(heads), len(tails)) == (1, 4)
