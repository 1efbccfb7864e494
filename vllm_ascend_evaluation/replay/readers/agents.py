# SPDX-License-Identifier: Apache-2.0
"""Sessions of coding agents, one document each: a file of them, or a folder of such files.

The form of kv-cache-tester and of AgentX (Weka): a session has ``requests``, each with its time
``t`` (s from the session's start), ``in`` and ``out`` (tokens), ``think_time`` (s) and
``hash_ids``, one per ``block_size`` tokens. A sub-agent stands among them, with requests and times
of its own. Ids are a session's own, unless ``hash_id_scope`` is ``global``. Equal ids at equal
positions mean an equal prefix; what is behind the last whole block is nobody else's.

Documents say nothing of when sessions start. They start in the order of their names, as in a
Poisson process.
"""

from __future__ import annotations

import heapq
import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.readers.documents import first_character, read_documents
from vllm_ascend_evaluation.replay.readers.jsonl import integer, integers
from vllm_ascend_evaluation.replay.trace import TraceRequest, Workload

MEAN_GAP_S = 30.0
"""Sessions start so long after one another, on average."""
_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
_MAX_ID = 2**31 - 1
# Blocks of ids that are a session's own lie behind all global ones.
_FIRST_OWN = _MAX_ID + 1


@dataclass
class _Turn:
    """A request of a session, in little memory.

    Attributes:
        at_ms: From the first session's start.
        agent: Number of the session, or of the sub-agent, among all.
        think_ms: From the answer before; ``None`` of an agent's first one.
        blocks: Numbers of its blocks.
    """

    at_ms: float
    agent: int
    think_ms: float | None
    num_tokens: int
    output_tokens: int
    block_tokens: int
    blocks: array

    def request(self, own_block: int) -> TraceRequest:
        """Return it; tokens behind its blocks are those of ``own_block``."""
        size = self.block_tokens
        # Even blocks are shared, odd ones are the end of one prompt.
        starts = chain((2 * block * size for block in self.blocks), ((2 * own_block + 1) * size,))
        tokens = chain.from_iterable(range(start, start + size) for start in starts)
        return TraceRequest(
            prompt_token_ids=list(islice(tokens, self.num_tokens)),
            output_tokens=self.output_tokens,
            arrival_ms=self.at_ms,
            session=self.agent,
            think_ms=self.think_ms,
        )


@dataclass
class _Numbers:
    """What is counted over all sessions."""

    agents: Iterator[int] = field(default_factory=count)
    next_block: int = _FIRST_OWN


def is_agents(path: Path) -> bool:
    """Whether a folder has such sessions, or a file begins with one.

    Raises:
        BadInputError: A file cannot be read, or its first record is broken JSON.
    """
    if path.is_dir():
        return bool(_files(path))
    if first_character(path) not in ("{", "["):
        return False
    return any("requests" in record for _, record in read_documents(path, 1))


def agents_workload(
    path: Path,
    *,
    seed: int = 0,
    max_requests: int | None = None,
    max_output_tokens: int | None = None,
    concurrency: int = 32,
) -> Workload:
    """Check sessions whole and return them as a workload.

    They are read as they start, so that only those that run are held in memory.

    Args:
        path: A file or a folder.
        seed: Of the sessions' starts.
        max_requests: Take only so many from the start.
        max_output_tokens: Cap on answers.
        concurrency: Requests in flight in a closed loop.

    Raises:
        BadInputError: Names the file, the place in it and what is wrong.
    """

    def requests() -> Iterator[TraceRequest]:
        for own_block, turn in enumerate(islice(_turns(path, seed), max_requests)):
            yield turn.request(own_block)

    num_requests = sum(1 for _ in islice(_turns(path, seed), max_requests))
    if not num_requests:
        raise BadInputError(f"{path}: no requests")
    workload = Workload(
        name=path.name,
        description=f"{num_requests} requests of {path.name}",
        concurrency=concurrency,
        num_requests=num_requests,
        requests=requests,
    )
    return workload.cut(None, max_output_tokens)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(_SUFFIXES))


def _turns(path: Path, seed: int) -> Iterator[_Turn]:
    """Yield the turns of all sessions in the order of their times."""
    rng, numbers, start_ms = random.Random(seed), _Numbers(), 0.0
    live: list[tuple[float, int, _Turn]] = []
    num_turns = count()
    documents = chain.from_iterable(map(read_documents, _files(path) if path.is_dir() else [path]))
    for place, document in documents:
        while live and live[0][0] <= start_ms:
            yield heapq.heappop(live)[2]
        for turn in _of_session(document, place, start_ms, numbers):
            heapq.heappush(live, (turn.at_ms, next(num_turns), turn))
        start_ms += rng.expovariate(1 / MEAN_GAP_S) * 1000
    while live:
        yield heapq.heappop(live)[2]


def _of_session(document: dict, place: str, start_ms: float, numbers: _Numbers) -> Iterator[_Turn]:
    size = integer(document, "block_size", place, minimum=1)
    scope = document.get("hash_id_scope", "local")
    if scope not in ("local", "global"):
        raise BadInputError(f"{place}: hash_id_scope is {scope!r}, expected local or global")
    base = numbers.next_block if scope == "local" else 0
    for turn in _of_agent(document, place, start_ms, numbers, size):
        last = base + max(turn.blocks, default=0)
        numbers.next_block = max(numbers.next_block, last + 1)
        turn.blocks = array("q", (base + block for block in turn.blocks))
        yield turn


def _of_agent(
    agent: dict, place: str, start_ms: float, numbers: _Numbers, size: int
) -> Iterator[_Turn]:
    requests = agent.get("requests")
    if not isinstance(requests, list) or not all(isinstance(each, dict) for each in requests):
        raise BadInputError(f"{place}: requests must be a list of objects")
    name, is_first = next(numbers.agents), True
    for number, record in enumerate(requests, 1):
        here = f"{place}, request {number}"
        at_ms = start_ms + _seconds(record, "t", here) * 1000
        if "requests" in record:
            yield from _of_agent(record, here, at_ms, numbers, size)
            continue
        think_ms = None if is_first else _seconds(record, "think_time", here) * 1000
        yield _turn(record, here, size, name, at_ms, think_ms)
        is_first = False


def _turn(
    record: dict, place: str, size: int, agent: int, at_ms: float, think_ms: float | None
) -> _Turn:
    num_tokens = integer(record, "in", place, minimum=1)
    ids = integers(record, "hash_ids", place, maximum=_MAX_ID) if record.get("hash_ids") else []
    if len(ids) not in (num_tokens // size, -(-num_tokens // size)):
        raise BadInputError(
            f"{place}: {len(ids)} hash_ids for {num_tokens} tokens, expected {num_tokens // size} "
            f"(one per {size} tokens; one more if the last may be partial)"
        )
    return _Turn(
        at_ms=at_ms,
        agent=agent,
        think_ms=think_ms,
        num_tokens=num_tokens,
        output_tokens=max(integer(record, "out", place, minimum=0), 1),
        block_tokens=size,
        blocks=array("q", ids),
    )


def _seconds(record: dict, name: str, place: str) -> float:
    value: Any = record.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise BadInputError(f"{place}: {name} is {value!r}, expected seconds >= 0")
    return float(value)
