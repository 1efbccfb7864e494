# SPDX-License-Identifier: Apache-2.0
"""One request to an OpenAI-compatible server: token ids in, usage and times out."""

from __future__ import annotations

import http
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from vllm_ascend.server_access.access import IDLE_SECONDS, HttpAccess, ServerError

_BODY_CHARACTERS = 200
_CONNECT_SECONDS = 10.0
_DONE = "[DONE]"


@dataclass(frozen=True)
class OfferedModel:
    """A model that a server offers.

    Attributes:
        name: As requests name it.
        max_model_len: Tokens that a prompt and its answer may have; ``None`` if it does not say.
    """

    name: str
    max_model_len: int | None


@dataclass(frozen=True)
class Answer:
    """What the server said of one request, and when.

    Attributes:
        prompt_tokens: Prompt tokens as the server counts them.
        output_tokens: Tokens of the answer.
        cached_tokens: Prompt tokens found in the cache; ``None`` if the server did not say.
        ttft_s: Seconds from sending to the first token.
        seconds: Seconds from sending to the last token.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    ttft_s: float
    seconds: float

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token behind the first one, ``None`` if there is none."""
        num_behind = self.output_tokens - 1
        return (self.seconds - self.ttft_s) / num_behind if num_behind > 0 else None


class HttpClient:
    """Speaks to one server; any number of requests may be under way at once.

    By aiohttp, which takes less CPU than httpx for an answer that comes token by token: what the
    client takes is in the times that it measures.
    """

    def __init__(self, url: str, *, timeout_s: float, access: HttpAccess | None = None) -> None:
        """Prepare; nothing is sent yet.

        Args:
            url: The server, as :func:`base_url` returns it.
            timeout_s: Longest silence of the server in seconds.
            access: API key and TLS.
        """
        self._url = url
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=min(timeout_s, _CONNECT_SECONDS), sock_read=timeout_s
        )
        self._access = access or HttpAccess()
        self._open: aiohttp.ClientSession | None = None

    @property
    def _http(self) -> aiohttp.ClientSession:
        """Connections; they are of the loop that runs when the first one is asked for."""
        if self._open is None:
            access = self._access
            login = access.login and aiohttp.BasicAuth(*access.login, encoding="utf-8")
            # No proxy in between, which may hold a stream back: it is times that are measured.
            self._open = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=IDLE_SECONDS, ssl=access.verify_tls
                ),
                timeout=self._timeout,
                headers=access.headers,
                auth=login,
            )
        return self._open

    async def close(self) -> None:
        """Close all connections."""
        if self._open is not None:
            await self._open.close()

    async def models(self) -> list[OfferedModel]:
        """Return the models that the server offers, at least one.

        Raises:
            ServerError: It cannot be reached or names none.
        """
        url = f"{self._url}/v1/models"
        try:
            async with self._http.get(url, allow_redirects=False) as response:
                text = await response.text(errors="replace")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ServerError(f"{url}: {_reason(error)}") from error
        if response.status != http.HTTPStatus.OK:
            raise _refusal(url, response.status, text)
        try:
            offered = [
                OfferedModel(str(model["id"]), _number(model, "max_model_len"))
                for model in json.loads(text)["data"]
            ]
        except (ValueError, LookupError, TypeError) as error:
            raise _refusal(url, response.status, text) from error
        if not offered:
            raise _refusal(url, response.status, text)
        return offered

    async def complete(
        self,
        model: str,
        prompt: list[int],
        output_tokens: int,
        on_token: Callable[[float], object] = lambda when: None,
    ) -> Answer:
        """Let the server continue a prompt by exactly so many tokens.

        Args:
            model: Name of the model.
            prompt: Token ids.
            output_tokens: Length of the answer. A server that knows neither ``min_tokens`` nor
                ``ignore_eos`` may give a shorter one.
            on_token: Told when each piece of the answer came, by ``time.perf_counter``.

        Raises:
            ServerError: It cannot be reached, refuses, or its answer makes no sense.
        """
        url = f"{self._url}/v1/completions"
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "min_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        reading = _Reading(url, on_token)
        try:
            async with self._http.post(url, json=body, allow_redirects=False) as response:
                if response.status != http.HTTPStatus.OK:
                    text = await response.text(errors="replace")
                    raise _refusal(url, response.status, text)
                async for data in _events(response.content.iter_any()):
                    reading.take(data)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ServerError(f"{url}: {_reason(error)}") from error
        return reading.answer(len(prompt))


class _Reading:
    """Gathers the events of one stream."""

    def __init__(self, url: str, on_token: Callable[[float], object]) -> None:
        self._url = url
        self._on_token = on_token
        self._sent = time.perf_counter()
        self._first: float | None = None
        self._last = 0.0
        self._num_chunks = 0
        self._usage: dict[str, Any] = {}

    def take(self, data: str) -> None:
        """Read one event.

        Raises:
            ServerError: It reports an error or is no event of a completion.
        """
        now = time.perf_counter()
        if data == _DONE:
            return
        try:
            event = json.loads(data)
            has_token = bool(event.get("choices"))
            usage = event.get("usage")
        except (ValueError, AttributeError) as error:
            raise _refusal(self._url, http.HTTPStatus.OK, data) from error
        # vLLM can only report what goes wrong behind the headers inside the stream.
        if event.get("error") is not None:
            raise _refusal(self._url, http.HTTPStatus.OK, data)
        if has_token:
            self._first = now if self._first is None else self._first
            self._last = now
            self._num_chunks += 1
            self._on_token(now)
        if isinstance(usage, dict):
            self._usage = usage

    def answer(self, num_sent: int) -> Answer:
        """Return what the whole stream said; ``num_sent`` stands in for a missing usage.

        Raises:
            ServerError: There was no token.
        """
        if self._first is None:
            raise ServerError(f"{self._url}: status 200, but the stream ended without a token")
        return Answer(
            prompt_tokens=_number(self._usage, "prompt_tokens") or num_sent,
            output_tokens=_number(self._usage, "completion_tokens") or self._num_chunks,
            cached_tokens=_number(self._usage.get("prompt_tokens_details"), "cached_tokens"),
            ttft_s=self._first - self._sent,
            seconds=self._last - self._sent,
        )


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield the data of server-sent events.

    Lines end at a line feed only: ``aiter_lines`` also breaks at U+2028 and its like, which JSON
    may hold as they are, and which a model of random weights does say.
    """
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line.removeprefix(b"data:").strip().decode(errors="replace")
    if rest.startswith(b"data:"):
        yield rest.removeprefix(b"data:").strip().decode(errors="replace")


def _number(values: Any, name: str) -> int | None:
    number = values.get(name) if isinstance(values, dict) else None
    return number if isinstance(number, int) else None


def _refusal(url: str, status: int, body: str) -> ServerError:
    text = " ".join(_message(body).split())[:_BODY_CHARACTERS]
    return ServerError(f"{url}: status {int(status)}: {text}", int(status))


def _message(body: str) -> str:
    """Return what an error of the OpenAI API says; of anything else all."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in time ({type(error).__name__})"
    return f"cannot be reached ({str(error) or type(error).__name__})"
