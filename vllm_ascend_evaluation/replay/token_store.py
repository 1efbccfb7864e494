# SPDX-License-Identifier: Apache-2.0
"""Requests that were tokenized once, on disk, for every run of a command to read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path

import numpy as np

from vllm_ascend_evaluation.replay.trace import TraceRequest

_TOKENS = np.dtype("<i4")


@dataclass(frozen=True)
class _Row:
    """One request: where its prompt stands, and all else."""

    start: int
    num_tokens: int
    output_tokens: int
    arrival_ms: float | None
    session: int | None
    think_ms: float | None
    order: float
    assumed: tuple[str, ...]


@dataclass(frozen=True)
class Store:
    """Requests on disk.

    Attributes:
        prompts: File of their tokens.
        rows: The requests, in order of arrival.
    """

    prompts: Path
    rows: Sequence[_Row]

    @property
    def num_requests(self) -> int:
        """How many requests there are."""
        return len(self.rows)

    def requests(self) -> Iterator[TraceRequest]:
        """Yield the requests; times are counted from the first one."""
        first_ms = next((row.arrival_ms for row in self.rows if row.arrival_ms is not None), 0.0)
        tokens = np.memmap(self.prompts, dtype=_TOKENS, mode="r")
        for row in self.rows:
            yield TraceRequest(
                prompt_token_ids=tokens[row.start : row.start + row.num_tokens].tolist(),
                output_tokens=row.output_tokens,
                arrival_ms=None if row.arrival_ms is None else row.arrival_ms - first_ms,
                session=row.session,
                think_ms=row.think_ms,
                assumed=tuple(row.assumed),
            )


def write_store(path: Path, requests: Iterable[TraceRequest]) -> int:
    """Write requests in order of their arrival, those without one behind the one before them.

    Args:
        path: The index; prompts stand beside it.
        requests: In the order of the log; times need not be ascending.

    Returns:
        How many there are.
    """
    rows: list[_Row] = []
    start, order = 0, 0.0
    with _prompts(path).open("wb") as file:
        for request in requests:
            tokens = np.asarray(request.prompt_token_ids, dtype=_TOKENS)
            file.write(tokens.tobytes())
            order = order if request.arrival_ms is None else request.arrival_ms
            others = (request.output_tokens, request.arrival_ms, request.session, request.think_ms)
            rows.append(_Row(start, len(tokens), *others, order, request.assumed))
            start += len(tokens)
    rows.sort(key=attrgetter("order"))
    path.write_text(json.dumps([asdict(row) for row in rows]))
    return len(rows)


def read_index(path: Path) -> Store:
    """Return what :func:`write_store` wrote."""
    return Store(_prompts(path), tuple(_Row(**row) for row in json.loads(path.read_text())))


def _prompts(path: Path) -> Path:
    return path.with_suffix(".tokens")
