# SPDX-License-Identifier: Apache-2.0
"""Mooncake traces: prompts as ids of 512-token blocks.

Equal ids at equal positions mean an equal prefix. The last id of a request may stand for a partial
block, so a request has ``ceil(input_length / 512)`` ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.readers.documents import first_character, read_documents
from vllm_ascend_evaluation.replay.readers.jsonl import MAX_INTEGER, integer, integers
from vllm_ascend_evaluation.replay.readers.logged import AS_THE_OPTION, GIVE_THE_OPTION
from vllm_ascend_evaluation.replay.trace import TraceRequest, Workload, count_assumed

BLOCK_TOKENS = 512


def is_mooncake(path: Path) -> bool:
    """Whether the first record of a file is one of such a trace.

    Raises:
        BadInputError: The file cannot be read, or its first record is broken JSON.
    """
    if first_character(path) not in ("{", "["):
        return False
    return any("hash_ids" in record for _, record in read_documents(path, 1))


def mooncake_workload(
    path: Path,
    *,
    max_requests: int | None = None,
    max_output_tokens: int | None = None,
    concurrency: int = 32,
    uses_times: bool = True,
) -> Workload:
    """Check a trace whole and return it as a workload.

    Args:
        path: Records of ``timestamp`` (ms), ``input_length``, ``output_length`` (tokens) and
            ``hash_ids``. A record may have a ``session`` (number), and then a ``delay`` (ms from
            the answer before in that session) in place of the timestamp.
        max_requests: Take only so many from the start.
        max_output_tokens: Cap on answers, and their length where ``output_length`` is missing.
        concurrency: Requests in flight in a closed loop.
        uses_times: Whether timestamps matter: then every record must have one or a ``delay``.

    Raises:
        BadInputError: Names the file, the line and what is wrong.
    """
    _check_limits(
        path,
        max_requests=max_requests,
        max_output_tokens=max_output_tokens,
        concurrency=concurrency,
    )

    def requests() -> Iterator[TraceRequest]:
        clock = _Clock()
        for place, record in read_documents(path, max_requests):
            think_ms = _think_ms(record, place)
            if uses_times and think_ms is None and "timestamp" not in record:
                raise BadInputError(f"{place}: timestamp is missing")
            is_told = record.get("output_length") is not None
            yield TraceRequest(
                prompt_token_ids=_prompt(record, place),
                output_tokens=_output_tokens(record, place, max_output_tokens),
                arrival_ms=clock.arrival_ms(record, place),
                session=_session(record, place),
                think_ms=think_ms,
                assumed=() if is_told else (AS_THE_OPTION,),
            )

    assumed = [request.assumed for request in requests()]
    if not assumed:
        raise BadInputError(f"{path}: no requests")
    workload = Workload(
        name=path.name,
        description=f"{len(assumed)} requests of {path.name}",
        concurrency=concurrency,
        num_requests=len(assumed),
        requests=requests,
        assumed=count_assumed(assumed),
    )
    return workload.cut(None, max_output_tokens)


def _check_limits(path: Path, **limits: int | None) -> None:
    for option, value in limits.items():
        if value is not None and value < 1:
            raise BadInputError(f"{path}: {option} is {value}, expected at least 1")


def _prompt(record: dict, place: str) -> list[int]:
    """Give every id 512 tokens of its own; cut the prompt to its length."""
    length = integer(record, "input_length", place, minimum=1)
    ids = integers(record, "hash_ids", place, maximum=MAX_INTEGER // BLOCK_TOKENS - 1)
    expected = -(-length // BLOCK_TOKENS)
    if len(ids) != expected:
        raise BadInputError(
            f"{place}: {len(ids)} hash_ids for {length} tokens, expected {expected} "
            f"(one per {BLOCK_TOKENS} tokens, the last may be partial)"
        )
    blocks = (range(i * BLOCK_TOKENS, (i + 1) * BLOCK_TOKENS) for i in ids)
    return list(chain.from_iterable(blocks))[:length]


def _output_tokens(record: dict, place: str, option: int | None) -> int:
    if record.get("output_length") is not None:
        return integer(record, "output_length", place, minimum=1)
    if option is None:
        raise BadInputError(f"{place}: output_length is missing: {GIVE_THE_OPTION}")
    return option


def _session(record: dict, place: str) -> int | None:
    return integer(record, "session", place, minimum=0) if "session" in record else None


def _think_ms(record: dict, place: str) -> int | None:
    if "delay" not in record:
        return None
    if "session" not in record:
        raise BadInputError(f"{place}: delay means nothing without session")
    return integer(record, "delay", place, minimum=0)


class _Clock:
    """Turns a file's timestamps into times since its first one."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._previous = 0

    def arrival_ms(self, record: dict, place: str) -> int | None:
        if "timestamp" not in record:
            return None
        timestamp = integer(record, "timestamp", place, minimum=0)
        if timestamp < self._previous:
            raise BadInputError(f"{place}: timestamp {timestamp} lies before the previous one")
        self._previous = timestamp
        if self._first is None:
            self._first = timestamp
        return timestamp - self._first
