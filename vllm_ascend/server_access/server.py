# SPDX-License-Identifier: Apache-2.0
"""What a running server says of itself: its model, and its counters."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.server_access.access import API_KEY_VARIABLE, HttpAccess, ServerError

ANSWERED = "vllm:request_success_total"
_LIVE = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_STARTED = "process_start_time_seconds"
_UNVERIFIED = "CERTIFICATE_VERIFY_FAILED"  # OpenSSL's words
_PATIENCE_S = 30.0
_BODY_CHARACTERS = 300


@dataclass(frozen=True)
class ServedModel:
    """A model that the server offers.

    Attributes:
        name: As requests name it.
        root: Its folder or repository, as the server was started with.
        max_model_len: Tokens that a prompt and its answer may have; ``None`` if it does not say.
    """

    name: str
    root: str
    max_model_len: int | None


@dataclass(frozen=True)
class Target:
    """The server, one start of it; what it does not say of itself is empty.

    Attributes:
        url: Its address.
        model: Name of the model.
        vllm_version: Of vLLM.
        root: The model's folder or repository.
        started: When its process started, ISO 8601.
    """

    url: str
    model: str
    vllm_version: str = ""
    root: str = ""
    started: str = ""


@contextlib.contextmanager
def server_errors(url: str) -> Iterator[None]:
    """Say what failed in a request.

    Raises:
        ServerError: In place of any error of httpx, and if the answer makes no sense.
    """
    try:
        yield
    except httpx.TimeoutException as error:
        raise ServerError(f"--url {url}: no answer in time ({type(error).__name__})") from error
    except httpx.HTTPStatusError as error:
        text = error.response.text[:_BODY_CHARACTERS].strip()
        status = error.response.status_code
        is_locked = status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
        hint = f" (the key: --api-key or {API_KEY_VARIABLE})" if is_locked else ""
        raise ServerError(f"--url {url}: status {status}: {text}{hint}") from error
    except httpx.HTTPError as error:
        what = str(error) or type(error).__name__
        hint = "; --insecure takes any certificate" if _UNVERIFIED in what else ""
        raise ServerError(f"--url {url}: cannot be reached ({what}{hint})") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        what = "is this an OpenAI-compatible server of one model or more?"
        raise ServerError(f"--url {url}: the answer makes no sense ({error!r}): {what}") from error


class Server:
    """Asks one server."""

    def __init__(self, url: str, access: HttpAccess) -> None:
        """Prepare; nothing is sent yet.

        Args:
            url: As :func:`vllm_ascend.server_access.access.base_url` returns it.
            access: API key and TLS.
        """
        self.url = url
        self.access = access
        self._http = httpx.Client(timeout=_PATIENCE_S, **access.client_arguments())

    def model(self, name: str | None) -> ServedModel:
        """Return a model of the server, by default its first.

        Raises:
            ServerError: The server cannot be reached.
            BadInputError: It has no such model.
        """
        url = f"{self.url}/v1/models"
        with server_errors(url):
            models = [
                ServedModel(entry["id"], entry.get("root") or entry["id"], _max_model_len(entry))
                for entry in self._get(url).json()["data"]
            ]
            first = models[0]
        if name is None:
            return first
        by_name = {model.name: model for model in models}
        if name not in by_name:
            raise BadInputError(f"--model {name}: {self.url} offers {', '.join(by_name)}")
        return by_name[name]

    def target(self, model: ServedModel) -> Target:
        """Return what is measured.

        Raises:
            ServerError: The server's counters cannot be read.
        """
        try:
            version = str(self._get(f"{self.url}/version").json()["version"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            version = ""  # other servers than vLLM's need not have it
        started = self._metrics().started
        return Target(self.url, model.name, version, model.root, started)

    def counters(self) -> Mapping[str, float]:
        """Return all counters; see :class:`Metrics`.

        Raises:
            ServerError: The server cannot be reached.
        """
        return self._metrics().counters

    def num_live(self) -> int | None:
        """Return how many requests run or wait, ``None`` if the server does not say.

        Raises:
            ServerError: The server cannot be reached.
        """
        return self._metrics().num_live

    def num_engines(self) -> int:
        """Return of how many engines, data-parallel ranks, the server tells; at least one.

        Raises:
            ServerError: The server cannot be reached.
        """
        return self._metrics().num_engines

    def max_num_batched_tokens(self) -> int | None:
        """Return the scheduler's limit, ``None`` if the server does not say.

        vLLM does so in development mode only (``VLLM_SERVER_DEV_MODE=1``).
        """
        try:
            told = self._get(f"{self.url}/server_info?config_format=json").json()
            return int(told["vllm_config"]["scheduler_config"]["max_num_batched_tokens"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            return None

    def refusal(self, path: str, **body: Any) -> str:
        """Send one request and return what is wrong with it; empty if the server begins to answer.

        Args:
            path: Of the request.
            body: Its JSON.
        """
        url = f"{self.url}{path}"
        try:
            with (
                server_errors(url),
                # As a stream, of which the head is enough: an answer may take minutes.
                self._http.stream("POST", url, json={**body, "stream": True}) as response,
            ):
                if response.status_code != httpx.codes.OK:
                    response.read()
                response.raise_for_status()
        except ServerError as error:
            return str(error)
        return ""

    def check_start(self, target: Target) -> None:
        """Check that the server has not been started anew since it was asked for its target.

        Raises:
            ServerError: It has.
        """
        started = self._metrics().started
        if started != target.started:
            raise ServerError(
                f"--url {self.url}: the server was started anew meanwhile ({target.started}, now "
                f"{started})"
            )

    def _metrics(self) -> Metrics:
        url = f"{self.url}/metrics"
        with server_errors(url):
            return parse_metrics(self._get(url).text)

    def _get(self, url: str) -> httpx.Response:
        return self._http.get(url).raise_for_status()


def _max_model_len(entry: Mapping[str, Any]) -> int | None:
    value = entry.get("max_model_len")
    return value if isinstance(value, int) else None


@dataclass(frozen=True)
class Metrics:
    """What ``/metrics`` says.

    Attributes:
        counters: By name, summed over their labels, sums of histograms among them. A counter that
            is told by source is there once more per source, as ``name{source="..."}``.
        started: When the process started, ISO 8601; empty if it does not say, as vLLM does not
            with several API servers.
        num_live: Requests that run or wait; ``None`` if it does not say.
        num_engines: Data-parallel ranks that it tells of, at least one.
    """

    counters: Mapping[str, float]
    started: str
    num_live: int | None = None
    num_engines: int = 1


# Labels by whose values counters are summed up as well.
_TOLD_APART = frozenset({"source", "position"})


def parse_metrics(text: str) -> Metrics:
    """Read a Prometheus page.

    Raises:
        ValueError: It is no such page.
    """
    counters: dict[str, float] = defaultdict(float)
    started, tells_live, num_live = "", False, 0.0
    engines = set()
    for family in text_string_to_metric_families(text):
        # Without a value, too: of several front ends each begins with the first request's.
        tells_live |= family.name in _LIVE
        for sample in family.samples:
            if sample.name.startswith("vllm:") and "engine" in sample.labels:
                engines.add(sample.labels["engine"])
            if sample.name.endswith(("_total", "_sum")):
                counters[sample.name] += sample.value
                for label in _TOLD_APART & sample.labels.keys():
                    value = sample.labels[label]
                    counters[f'{sample.name}{{{label}="{value}"}}'] += sample.value
            elif sample.name in _LIVE:
                num_live += sample.value
            elif sample.name == _STARTED:
                # To the millisecond: Linux tells it in hundredths of a second.
                when = datetime.fromtimestamp(sample.value, timezone.utc)
                started = when.isoformat(timespec="milliseconds")
    live = int(num_live) if tells_live else None
    return Metrics(dict(counters), started, live, max(len(engines), 1))
