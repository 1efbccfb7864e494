# SPDX-License-Identifier: Apache-2.0
"""JSON lines as workloads, with errors that name file and line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.readers.text import lines_of
from vllm_ascend_evaluation.replay.trace import TraceRequest, Workload

MAX_INTEGER = 2**63 - 1


def read_records(path: Path, max_records: int | None = None) -> Iterator[tuple[str, dict]]:
    """Yield (place, record) per line of a JSONL file, gzip'd if its name ends in ``.gz``.

    ``place`` reads "FILE, line N" and is what errors begin with. Blank lines are skipped.

    Raises:
        BadInputError: The file cannot be read, or a line is not a JSON object.
    """
    num_records = 0
    for number, line in lines_of(path):
        if not line.strip():
            continue
        if num_records == max_records:
            return
        num_records += 1
        place = f"{path}, line {number}"
        yield place, _parse(line, place)


def _parse(line: str, place: str) -> dict:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # too long a number, nested too deeply
        raise BadInputError(f"{place}: not valid JSON ({error})") from error
    if not isinstance(record, dict):
        raise BadInputError(f"{place}: expected a JSON object")
    return record


def integer(record: dict, name: str, place: str, *, minimum: int) -> int:
    """Return a field that must be a whole number from ``minimum`` up.

    Raises:
        BadInputError: It is missing or something else.
    """
    value: Any = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise BadInputError(f"{place}: {name} is {value!r}, expected a whole number >= {minimum}")
    return value


def integers(record: dict, name: str, place: str, *, maximum: int = MAX_INTEGER) -> list[int]:
    """Return a field that must be a list of whole numbers from 0 to ``maximum``, not empty.

    Raises:
        BadInputError: It is missing or something else.
    """
    value: Any = record.get(name)
    if (
        not isinstance(value, list)
        or not value
        or any(isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in value)
    ):
        raise BadInputError(f"{place}: {name} must be a non-empty list of whole numbers >= 0")
    if max(value) > maximum:
        raise BadInputError(f"{place}: {name} has {max(value)}, expected at most {maximum}")
    return value


def jsonl_workload(
    path: Path,
    prompt_of: Callable[[dict, str], list[int]],
    *,
    name: str | None = None,
    max_requests: int | None = None,
    max_output_tokens: int | None = None,
    concurrency: int = 32,
    uses_times: bool = True,
) -> Workload:
    """Check a trace whole and return it as a workload.

    Args:
        path: JSONL, gzip'd if it ends in ``.gz``. Every record has ``output_length`` (tokens),
            and perhaps a ``timestamp`` (ms); it may have a ``session`` (number), and
            then a ``delay`` (ms from the answer before in that session) in place of the timestamp.
        prompt_of: Returns a record's prompt; given the record and its place for errors.
        name: What to call it; the file's name by default.
        max_requests: Take only so many from the start.
        max_output_tokens: Cap on ``output_length``.
        concurrency: Requests in flight in a closed loop.
        uses_times: Whether timestamps matter: then all records must have one, or none.

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
        clock = _Clock(may_stop=not uses_times)
        for place, record in read_records(path, max_requests):
            think_ms = _think_ms(record, place)
            has_no_time = think_ms is not None and "timestamp" not in record
            arrival_ms = None if has_no_time else clock.arrival_ms(record, place)
            outputs = integer(record, "output_length", place, minimum=1)
            yield TraceRequest(
                prompt_token_ids=prompt_of(record, place),
                output_tokens=min(outputs, max_output_tokens or outputs),
                arrival_ms=arrival_ms,
                session=_session(record, place),
                think_ms=think_ms,
            )

    num_requests = sum(1 for _ in requests())
    if not num_requests:
        raise BadInputError(f"{path}: no requests")
    capped = f", answers capped at {max_output_tokens} tokens" if max_output_tokens else ""
    return Workload(
        name=name or path.name,
        description=f"{num_requests} requests of {path.name}, {concurrency} at a time{capped}",
        concurrency=concurrency,
        num_requests=num_requests,
        requests=requests,
    )


def _session(record: dict, place: str) -> int | None:
    return integer(record, "session", place, minimum=0) if "session" in record else None


def _think_ms(record: dict, place: str) -> int | None:
    if "delay" not in record:
        return None
    if "session" not in record:
        raise BadInputError(f"{place}: delay means nothing without session")
    return integer(record, "delay", place, minimum=0)


def _check_limits(path: Path, **limits: int | None) -> None:
    for option, value in limits.items():
        if value is not None and value < 1:
            raise BadInputError(f"{path}: {option} is {value}, expected at least 1")


class _Clock:
    """Turns a file's timestamps into times since its first record."""

    def __init__(self, *, may_stop: bool) -> None:
        self._may_stop = may_stop
        self._first: int | None = None
        self._previous = 0
        self._is_timed: bool | None = None

    def arrival_ms(self, record: dict, place: str) -> int | None:
        is_timed = "timestamp" in record
        if self._is_timed not in (None, is_timed) and not self._may_stop:
            raise BadInputError(f"{place}: timestamp must be in all records or in none")
        self._is_timed = is_timed
        if not is_timed:
            return None
        timestamp = integer(record, "timestamp", place, minimum=0)
        if timestamp < self._previous:
            raise BadInputError(f"{place}: timestamp {timestamp} lies before the previous one")
        self._previous = timestamp
        if self._first is None:
            self._first = timestamp
        return timestamp - self._first
