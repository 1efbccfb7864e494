# SPDX-License-Identifier: Apache-2.0
"""Mooncake traces: prompts as ids of 512-token blocks.

Equal ids at equal positions mean an equal prefix. The last id of a request may stand for a partial
block, so a request has ``ceil(input_length / 512)`` ids.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.readers.jsonl import (
    MAX_INTEGER,
    integer,
    integers,
    jsonl_workload,
)
from vllm_ascend_evaluation.replay.trace import Workload

BLOCK_TOKENS = 512


def mooncake_workload(path: Path, *, uses_times: bool = True, **options) -> Workload:
    """Check a Mooncake trace and return it as a workload.

    Args:
        path: JSONL of ``timestamp`` (ms), ``input_length``, ``output_length`` (tokens) and
            ``hash_ids``.
        uses_times: Whether timestamps matter: then every record must have one or a ``delay``.
        options: See :func:`jsonl_workload`.

    Raises:
        BadInputError: Names the file, the line and what is wrong.
    """
    prompt_of = _timed_prompt if uses_times else _prompt
    return jsonl_workload(path, prompt_of, uses_times=uses_times, **options)


def _timed_prompt(record: dict, place: str) -> list[int]:
    if "timestamp" not in record and "delay" not in record:
        raise BadInputError(f"{place}: timestamp is missing")
    return _prompt(record, place)


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
