# SPDX-License-Identifier: Apache-2.0
"""Traces that carry the prompts themselves, as token ids."""

from __future__ import annotations

from pathlib import Path

from vllm_ascend_evaluation.replay.readers.jsonl import integers, jsonl_workload
from vllm_ascend_evaluation.replay.trace import Workload


def token_id_workload(path: Path, **options) -> Workload:
    """Check a token-id trace and return it as a workload.

    Args:
        path: JSONL of ``prompt_token_ids``, ``output_length`` and perhaps ``timestamp`` (ms).
        options: See :func:`jsonl_workload`.

    Raises:
        BadInputError: Names the file, the line and what is wrong.
    """
    return jsonl_workload(
        path, lambda record, place: integers(record, "prompt_token_ids", place), **options
    )
