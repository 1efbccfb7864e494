# SPDX-License-Identifier: Apache-2.0
"""One request to a real server, and what can be wrong with its answer."""

import asyncio
import base64
import socket

import pytest

from tests.ut.evaluation.replay.http.completions_server import CompletionsServer
from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.server_access.access import HttpAccess, ServerError, base_url
from vllm_ascend_evaluation.replay.http.client import HttpClient, OfferedModel


def with_client(url, work, timeout_s=10.0, access=None):
    async def run():
        client = HttpClient(url, timeout_s=timeout_s, access=access)
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(run())


def complete(url, prompt, output_tokens=3, **options):
    return with_client(url, lambda c: c.complete("tiny", prompt, output_tokens), **options)


def test_an_answer():
    with CompletionsServer(delay_s=0.05) as server:
        first = complete(server.url, list(range(20)))
        again = complete(server.url, list(range(20)))
    assert (first.prompt_tokens, first.output_tokens, first.cached_tokens) == (20, 3, 0)
    assert again.cached_tokens == 16
    assert 0.05 <= again.ttft_s <= again.seconds
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


def test_models():
    with CompletionsServer() as server:
        offered = with_client(server.url, lambda client: client.models())
    assert offered == [OfferedModel("tiny", None), OfferedModel("other", None)]


def test_a_password_is_sent_in_utf_8():
    sent = base64.b64encode("käthe:łódź".encode()).decode()
    with CompletionsServer(api_key=f"Basic {sent}") as server:
        complete(server.url, [1, 2], access=HttpAccess(login=("käthe", "łódź")))


def test_no_redirect_is_followed():
    """Its time would be part of the answer's, and its host gets no key."""
    with (
        CompletionsServer(moved=True) as server,
        pytest.raises(ServerError, match="/v1/completions: status 307"),
    ):
        complete(server.url, [1, 2])
    assert not server.bodies


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
        for work in (lambda c: c.models(), lambda c: c.complete("m", [1], 1)):
            with pytest.raises(ServerError, match=rf"{url}/v1/\w+: cannot be reached"):
                with_client(url, work)


def test_a_connection_that_the_server_is_about_to_close_is_not_used_again():
    """vLLM closes one that was idle for 5 s; here it happens when the next request is there."""
    event = b'data: {"choices": [{"text": "a"}]}\n\n'
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(event), event)

    async def run():
        async def serve(reader, writer):
            await reader.readuntil(b"}}")
            writer.write(answer)
            await writer.drain()
            await reader.read(1)
            writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = HttpClient(url, timeout_s=5)
        try:
            for seconds in (0.0, 3.0):
                await asyncio.sleep(seconds)
                assert (await client.complete("m", [1], 1)).output_tokens == 1
        finally:
            await client.close()
            server.close()

    asyncio.run(run())


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
