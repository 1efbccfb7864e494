# SPDX-License-Identifier: Apache-2.0
"""An operator's own traffic: logs and data sets become requests, once for all runs of a command."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.status import Status

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.command_line.ends import say
from vllm_ascend_evaluation.replay.readers.documents import first_character
from vllm_ascend_evaluation.replay.readers.logged import (
    AS_THE_OPTION,
    GIVE_THE_OPTION,
    Cap,
    Chat,
    LoggedRequest,
)
from vllm_ascend_evaluation.replay.readers.requests import read_requests
from vllm_ascend_evaluation.replay.readers.text import lines_of
from vllm_ascend_evaluation.replay.readers.vllm_log import is_request_log, read_vllm_log
from vllm_ascend_evaluation.replay.token_store import write_store
from vllm_ascend_evaluation.replay.tokenizing import Tokenizer
from vllm_ascend_evaluation.replay.trace import TraceRequest

_SHOW_EVERY = 50


def _logged(path: Path, left_out: Counter[str]) -> Iterator[LoggedRequest]:
    """Return the requests of a file that is no Mooncake trace.

    Args:
        path: The file.
        left_out: Counts what of it becomes no request, as that is read.

    Raises:
        BadInputError: It has no format that can be read.
    """
    first = first_character(path)
    if not first:
        raise BadInputError(f"--workload {path}: is empty")
    if first in ("{", "["):
        return read_requests(path, left_out)
    if any(is_request_log(line) for _, line in lines_of(path)):
        return read_vllm_log(path)
    raise BadInputError(f"--workload {path}: no JSON, and no log of --enable-log-requests")


@cache
def store_of(
    path: Path,
    tokenizer: str | None,
    max_requests: int | None,
    max_output_tokens: int | None,
    uses_times: bool,
) -> Path:
    """Read a file whole, and return the index of a store that is there until this process ends.

    Args:
        path: The file.
        tokenizer: Folder of the model's tokenizer; ``None`` will do for token ids.
        max_requests: Take only so many from the start.
        max_output_tokens: Length of answers where nothing says it.
        uses_times: Whether times matter: then all requests must have one, or none.

    Raises:
        BadInputError: Names file, line and what is wrong.
    """
    left_out: Counter[str] = Counter()
    logged = islice(_logged(path, left_out), max_requests)
    reading = _Reading(path, tokenizer, max_output_tokens, uses_times=uses_times)
    target = Path(_folder().name) / f"{len(list(Path(_folder().name).iterdir()))}.json"
    num_requests = write_store(target, reading.requests(logged))
    for what, count in left_out.items():
        say("[yellow]note:[/]", f"{path.name}: {count:,} {what} are left out")
    if not num_requests:
        raise BadInputError(f"{path}: no requests")
    return target


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    # Goes with the process.
    return tempfile.TemporaryDirectory(prefix="vllm-ascend-replay-")


class _Reading:
    """Turns logged requests into those that are replayed, with what it had to assume of each."""

    def __init__(
        self,
        path: Path,
        tokenizer: str | None,
        max_output_tokens: int | None,
        *,
        uses_times: bool,
    ) -> None:
        self._path = path
        self._folder = tokenizer
        self._tokenizer: Tokenizer | None = None
        self._max_output_tokens = max_output_tokens
        self._sessions: dict[str, int] = {}
        self._uses_times = uses_times
        self._has_times: bool | None = None

    def requests(self, logged: Iterator[LoggedRequest]) -> Iterator[TraceRequest]:
        """Yield the requests, and show how far it is: texts take their time."""
        console = Console(stderr=True, emoji=False)
        with console.status(f"reading {self._path.name}") as status:
            for number, request in enumerate(logged, 1):
                yield self._request(request)
                self._show(status, number)

    def _show(self, status: Status, number: int) -> None:
        if number % _SHOW_EVERY == 0:
            status.update(f"reading {self._path.name}: {number:,} requests")

    def _request(self, logged: LoggedRequest) -> TraceRequest:
        if self._uses_times:
            self._check_time(logged)
        session = logged.session
        if session is not None:
            self._sessions.setdefault(session, len(self._sessions))
        outputs = self._output_tokens(logged)
        return TraceRequest(
            prompt_token_ids=self._prompt(logged),
            output_tokens=max(outputs, 1),
            arrival_ms=logged.time_ms,
            session=None if session is None else self._sessions[session],
            think_ms=logged.think_ms,
            assumed=tuple(self._assumed(logged)),
        )

    def _assumed(self, logged: LoggedRequest) -> Iterator[str]:
        is_chat = isinstance(logged.prompt, Chat)
        if is_chat and not self._loaded(logged.place).has_chat_template:
            yield "prompts without a chat template, which the tokenizer lacks"
        if isinstance(logged.answer, Cap):
            yield "answers as long as their max_tokens"
        elif logged.answer is None:
            yield AS_THE_OPTION

    def _check_time(self, logged: LoggedRequest) -> None:
        has_time = logged.time_ms is not None
        if logged.think_ms is not None and not has_time:
            return  # it waits for an answer
        if self._has_times not in (None, has_time):
            raise BadInputError(f"{logged.place}: times must be in all records or in none")
        self._has_times = has_time

    def _prompt(self, logged: LoggedRequest) -> list[int]:
        prompt = logged.prompt
        if isinstance(prompt, list):
            return prompt
        tokenizer = self._loaded(logged.place)
        if isinstance(prompt, str):
            ids = tokenizer.of_text(prompt)
        else:
            ids = tokenizer.of_chat(prompt, logged.place)
        if not ids:
            raise BadInputError(f"{logged.place}: the prompt is empty")
        return ids

    def _output_tokens(self, logged: LoggedRequest) -> int:
        answer = logged.answer
        if isinstance(answer, int):
            return answer
        if isinstance(answer, str):
            return self._loaded(logged.place).count(answer)
        if isinstance(answer, Cap):
            return answer.tokens
        if self._max_output_tokens is None:
            raise BadInputError(
                f"{logged.place}: nothing says how long the answer is (usage.completion_tokens, "
                f"output_length or max_tokens): {GIVE_THE_OPTION}"
            )
        return self._max_output_tokens

    def _loaded(self, place: str) -> Tokenizer:
        """Return the tokenizer; read only when there is a text."""
        if self._folder is None:
            raise BadInputError(
                f"{place}: holds text: give the folder of the model's tokenizer with --tokenizer"
            )
        if self._tokenizer is None:
            self._tokenizer = Tokenizer(Path(self._folder))
        return self._tokenizer
