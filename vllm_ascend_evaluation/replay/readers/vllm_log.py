# SPDX-License-Identifier: Apache-2.0
"""The log of ``vllm serve --enable-log-requests``, at the level at which it holds prompts.

Of vLLM 0.20.2, 0.23.0 and 0.30.0, for every request::

    DEBUG 11-25 02:13:56 [FILE:LINE] Request ID details: prompt: '...', prompt_token_ids: [...], ...
    INFO 11-25 02:13:56 [FILE:LINE] Received request ID: params: SamplingParams(... max_tokens=N ...

and with ``--enable-log-outputs`` also ``Generated response ID...: ... output_token_ids: [...]``.
Only the first has the prompt, and only ``VLLM_LOGGING_LEVEL=DEBUG`` lets it be logged.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.readers.logged import Cap, LoggedRequest
from vllm_ascend_evaluation.replay.readers.text import lines_of

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINE = re.compile(r"\b(?:DEBUG|INFO) (\d\d-\d\d \d\d:\d\d:\d\d) \[[^\]]*\] (.*)", re.DOTALL)
_PROMPT = re.compile(
    r"Request (\S+) details: prompt: (.*), prompt_token_ids: (.*), prompt_embeds shape: .*",
    re.DOTALL,
)
_RECEIVED = re.compile(r"Received request (\S+): params: .*?\bmax_tokens=(\d+)", re.DOTALL)
_GENERATED = re.compile(
    r"Generated response (\S+)(?: \(streaming \w+\))?(?: details)?: .*"
    r"\boutput_token_ids: (\[[\d, ]*\])",
    re.DOTALL,
)
# The log says no year: this one has a 29th of February.
_YEAR = 2024
_DAY_MS = 86_400_000.0


def is_request_log(line: str) -> bool:
    """Whether a line is of such a log, and about a request."""
    match = _LINE.search(_COLOUR.sub("", line))
    return match is not None and match[2].startswith(("Request ", "Received request "))


@dataclass
class _Answers:
    """What the log says of answers, by the name of the request.

    Attributes:
        tokens: Tokens of the answer, where they are logged.
        caps: ``max_tokens``.
    """

    tokens: Counter[str] = field(default_factory=Counter)
    caps: dict[str, int] = field(default_factory=dict)

    def of(self, name: str) -> int | Cap | None:
        """Return what is known of one."""
        # The prompts of a completion are numbered, its answer is not.
        for key in (name, name.rpartition("-")[0]):
            if self.tokens[key]:
                return self.tokens[key]
        return Cap(self.caps[name]) if name in self.caps else None


def read_vllm_log(path: Path) -> Iterator[LoggedRequest]:
    """Yield the requests of a log.

    Raises:
        BadInputError: It holds no prompts, or one cannot be read.
    """
    answers, num_received = _answers(path), 0
    clock = _Clock()
    num_prompts = 0
    for place, when, said in _entries(path):
        num_received += said.startswith("Received request ")
        match = _PROMPT.fullmatch(said) if said.startswith("Request ") else None
        if match is not None:
            num_prompts += 1
            name, text, ids = match.groups()
            prompt = _prompt(text, ids, place)
            yield LoggedRequest(place, prompt, answers.of(name), clock.time_ms(when))
    if num_received and not num_prompts:
        raise BadInputError(
            f"{path}: {num_received} requests, but no prompts: vLLM logs them with "
            "VLLM_LOGGING_LEVEL=DEBUG beside --enable-log-requests"
        )


def _entries(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (place, time, message) of all lines that may be about requests."""
    for number, line in lines_of(path):
        match = _LINE.search(_COLOUR.sub("", line.rstrip("\r\n")))
        if match is not None:
            yield f"{path}, line {number}", match[1], match[2]


def _answers(path: Path) -> _Answers:
    """Read what comes behind the prompts."""
    answers = _Answers()
    for _, _, said in _entries(path):
        if received := _RECEIVED.match(said):
            answers.caps[received[1]] = int(received[2])
        elif generated := _GENERATED.match(said):
            answers.tokens[generated[1]] += len(json.loads(generated[2]))
    return answers


def _prompt(text: str, ids: str, place: str) -> list[int] | str:
    """Return ids, or the text where there are none."""
    try:
        if ids != "None":
            return [int(token) for token in json.loads(ids)]
        prompt = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError) as error:
        raise BadInputError(f"{place}: the prompt cannot be read") from error
    if not isinstance(prompt, str):
        raise BadInputError(f"{place}: holds neither a prompt nor its token ids")
    return prompt


class _Clock:
    """Turns times without a year into milliseconds that never go back."""

    def __init__(self) -> None:
        self._years = 0
        self._last_ms = 0.0

    def time_ms(self, text: str) -> float:
        when = datetime.strptime(f"{_YEAR}-{text}", "%Y-%m-%d %H:%M:%S")
        time_ms = when.replace(tzinfo=timezone.utc).timestamp() * 1000.0
        if time_ms + self._years * 366 * _DAY_MS < self._last_ms - _DAY_MS:
            self._years += 1
        # Lines of several API servers may be a little out of order.
        self._last_ms = max(self._last_ms, time_ms + self._years * 366 * _DAY_MS)
        return self._last_ms
