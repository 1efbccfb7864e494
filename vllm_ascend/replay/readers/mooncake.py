# SPDX-License-Identifier: Apache-2.0
"""Mooncake traces: prompts as ids of 512-token blocks.

Equal ids at equal positions mean an equal prefix. The last id of a request may stand for a partial
block, so a request has ``ceil(input_length / 512)`` ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from vllm_ascend.replay.readers.jsonl import check_order, integer, integers, read_records
from vllm_ascend.replay.trace import BadInputError, TraceRequest, Workload

BLOCK_TOKENS = 512


def mooncake_workload(
    path: Path,
    *,
    name: str | None = None,
    max_requests: int | None = None,
    max_output_tokens: int | None = None,
    concurrency: int = 32,
) -> Workload:
    """Check a Mooncake trace and return it as a workload.

    Args:
        path: JSONL, gzip'd if it ends in ``.gz``: ``timestamp`` (ms), ``input_length``,
            ``output_length`` (tokens), ``hash_ids``.
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
        for place, record in read_records(path, max_requests):
            timestamp = integer(record, "timestamp", place, minimum=0)
            check_order(timestamp, previous_ms, place)
            previous_ms = timestamp
            first_ms = timestamp if first_ms is None else first_ms
            outputs = integer(record, "output_length", place, minimum=1)
            yield TraceRequest(
                prompt_token_ids=_tokens(record, place),
                output_tokens=min(outputs, max_output_tokens or outputs),
                arrival_ms=timestamp - first_ms,
            )

    num_requests = sum(1 for _ in requests())
    if not num_requests:
        raise BadInputError(f"{path}: no requests")
    return Workload(
        name=name or path.name,
        description=f"{num_requests} requests of {path.name}, {concurrency} at a time"
        + (f", answers capped at {max_output_tokens} tokens" if max_output_tokens else ""),
        concurrency=concurrency,
        num_requests=num_requests,
        requests=requests,
    )


def _tokens(record: dict, place: str) -> list[int]:
    """Give every id 512 tokens of its own; cut the prompt to its length."""
    length = integer(record, "input_length", place, minimum=1)
    ids = integers(record, "hash_ids", place)
    expected = -(-length // BLOCK_TOKENS)
    if len(ids) != expected:
        raise BadInputError(
            f"{place}: {len(ids)} hash_ids for {length} tokens, expected {expected} "
            f"(one per {BLOCK_TOKENS} tokens, the last may be partial)"
        )
    blocks = (range(i * BLOCK_TOKENS, (i + 1) * BLOCK_TOKENS) for i in ids)
    return list(chain.from_iterable(blocks))[:length]
