# SPDX-License-Identifier: Apache-2.0
"""Traces that carry the prompts themselves, as token ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vllm_ascend.replay.readers.jsonl import check_order, integer, integers, read_records
from vllm_ascend.replay.trace import BadInputError, TraceRequest, Workload


def token_id_workload(
    path: Path,
    *,
    name: str | None = None,
    max_requests: int | None = None,
    max_output_tokens: int | None = None,
    concurrency: int = 32,
) -> Workload:
    """Check a token-id trace and return it as a workload.

    Args:
        path: JSONL, gzip'd if it ends in ``.gz``: ``prompt_token_ids``, ``output_length``, and
            in all records or in none ``timestamp`` (ms).
        name: What to call it; the file's name by default.
        max_requests: Take only so many from the start.
        max_output_tokens: Cap on ``output_length``.
        concurrency: Requests in flight in a closed loop.

    Raises:
        BadInputError: Names the file, the line and what is wrong.
    """

    def requests() -> Iterator[TraceRequest]:
        first_ms: float | None = None
        previous_ms = 0.0
        timed: bool | None = None
        for place, record in read_records(path, max_requests):
            has_time = "timestamp" in record
            if timed is not None and has_time != timed:
                raise BadInputError(f"{place}: timestamp must be in all records or in none")
            timed = has_time
            arrival_ms = None
            if has_time:
                timestamp = integer(record, "timestamp", place, minimum=0)
                check_order(timestamp, previous_ms, place)
                previous_ms = timestamp
                first_ms = timestamp if first_ms is None else first_ms
                arrival_ms = timestamp - first_ms
            outputs = integer(record, "output_length", place, minimum=1)
            yield TraceRequest(
                prompt_token_ids=integers(record, "prompt_token_ids", place),
                output_tokens=min(outputs, max_output_tokens or outputs),
                arrival_ms=arrival_ms,
            )

    num_requests = sum(1 for _ in requests())
    if not num_requests:
        raise BadInputError(f"{path}: no requests")
    return Workload(
        name=name or path.name,
        description=f"{num_requests} requests of {path.name}, {concurrency} at a time",
        concurrency=concurrency,
        num_requests=num_requests,
        requests=requests,
    )
