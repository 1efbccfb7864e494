# SPDX-License-Identifier: Apache-2.0
"""Look-ups in a store on another machine: asked beside the steps, answered when there is an answer.

A request whose look-up is under way waits, and others go on. It is asked for in every step, so an
answer serves until it is renewed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from vllm.v1.core.kv_cache_utils import BlockHash

from vllm_ascend.tier.layout import TierLayout
from vllm_ascend.tier.look_up import Contains, StoredHit, longest_hit
from vllm_ascend.tier.store_thread import StoreThread

# An answer that was used is renewed after so long, for a request that waits for memory.
_FRESH_S = 1.0
# A request that hits here asks for so many units of its hit; the next one asks for others.
_MOST_CHECKED = 1024


class LateError(RuntimeError):
    """The store has not answered in time."""


class Asked(Protocol):
    """What a store's index can do for look-ups; see ``mooncake.MooncakeIndex``."""

    now: int

    def contains(self, keys: Sequence[bytes]) -> Sequence[bool]: ...
    def note(self, keys: Sequence[bytes], found: Sequence[bool], asked_at: int) -> None: ...


class _Found(NamedTuple):
    """What the store has said.

    Attributes:
        answers: What it was asked, and its answers.
        seconds: How long it took.
    """

    hit: StoredHit
    answers: list[tuple[Sequence[bytes], Sequence[bool]]]
    seconds: float


@dataclass(eq=False)
class _LookUp:
    """A request's look-up of the units from ``first`` to ``limit``.

    Attributes:
        call: Under way; ``None``: it is not asked for now.
        since: When it was asked for, or when the answer came.
        asked_at: What ``now`` of the index was then.
        hit: The last answer; ``None``: none yet.
    """

    first: int
    limit: int
    call: Future[_Found] | None
    since: float
    asked_at: int
    hit: StoredHit | None = None


class _Check(NamedTuple):
    """Units that are here, and that the store may have lost.

    Attributes:
        first: Of them.
    """

    first: int
    keys: Sequence[bytes]
    call: Future[Sequence[bool]]
    asked_at: int


class RemoteLookUps:
    """All look-ups of an engine, and checks of what it hits itself."""

    def __init__(
        self,
        layout: TierLayout,
        index: Asked,
        thread: StoreThread,
        most_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        """Ask nothing yet.

        Args:
            most_seconds: A look-up that takes longer is late.
        """
        self._layout, self._index, self._thread = layout, index, thread
        self._most_seconds, self._clock = most_seconds, clock
        self._of: dict[str, _LookUp] = {}
        self._checks: dict[str, _Check] = {}
        self._num_checks = 0

    def find(
        self, request_id: str, hashes: Sequence[BlockHash], first: int, limit: int
    ) -> tuple[StoredHit | None, float | None]:
        """Return the longest hit behind the first units, and how long a new answer took.

        No hit: the store has not answered yet. The answer for fewer units in front serves as well.

        Raises:
            LateError: It takes too long.
            RuntimeError: The store does not answer.
        """
        known = self._of.get(request_id)
        if known is None or known.first > first or known.limit != limit:
            self.forget(request_id)
            known = self._of[request_id] = self._ask(hashes, first, limit)
        elif known.call is None and self._clock() - known.since > _FRESH_S:
            anew = self._ask(hashes, known.first, limit)
            anew.hit = known.hit
            known = self._of[request_id] = anew
        seconds = None
        if known.call is not None and self._thread.has_ended(known.call):
            seconds = self._answered(known, known.call.result())
        elif known.call is not None and self._clock() - known.since > self._most_seconds:
            raise LateError(f"a look-up took longer than {self._most_seconds:g} s")
        hit = known.hit
        return (hit if hit is None or hit.end > first else hit._replace(end=0)), seconds

    def _ask(self, hashes: Sequence[BlockHash], first: int, limit: int) -> _LookUp:
        kept, clock = tuple(hashes), self._clock
        layout, contains = self._layout, self._index.contains
        call = self._thread.call(lambda: _search(layout, contains, kept, first, limit, clock))
        return _LookUp(first, limit, call, clock(), self._index.now)

    def _answered(self, known: _LookUp, found: _Found) -> float:
        known.call, known.since, known.hit = None, self._clock(), found.hit
        for keys, are_there in found.answers:
            self._index.note(keys, are_there, known.asked_at)
        return found.seconds

    def check(self, request_id: str, hashes: Sequence[BlockHash], num_units: int) -> None:
        """Ask whether the store still has a request's first units, which it need not load.

        Others have no use for what follows them if it has lost them.
        """
        num_units = min(num_units, self._layout.num_named_units(len(hashes)))
        if not num_units:
            return
        first = self._num_checks * _MOST_CHECKED % (-(-num_units // _MOST_CHECKED) * _MOST_CHECKED)
        self._num_checks += 1
        keys = self._layout.row_keys(hashes, first, min(first + _MOST_CHECKED, num_units))
        contains = self._index.contains
        call = self._thread.call(lambda: contains(keys))
        self._checks[request_id] = _Check(first, keys, call, self._index.now)

    def take_lost(self) -> dict[str, int]:
        """Return the requests of which the store has lost units, and the first of these."""
        lost: dict[str, int] = {}
        for request_id, check in list(self._checks.items()):
            if not check.call.done():
                continue
            del self._checks[request_id]
            if check.call.exception() is not None:
                continue  # a look-up will notice
            found = check.call.result()
            self._index.note(check.keys, found, check.asked_at)
            if not all(found):
                lost[request_id] = check.first + list(found).index(False)
        return lost

    def forget(self, request_id: str) -> None:
        """A request has been admitted, or has ended."""
        check = self._checks.pop(request_id, None)
        if check is not None:
            check.call.cancel()
        known = self._of.pop(request_id, None)
        if known is not None and known.call is not None:
            known.call.cancel()

    def forget_all(self) -> None:
        """What was asked for so far says nothing any more, or nobody waits for it."""
        for request_id in (*self._of, *self._checks):
            self.forget(request_id)

    def names(self) -> list[str]:
        """Return the requests of which something is remembered. For tests."""
        return [*self._of, *self._checks]


def longest_stored(
    layout: TierLayout,
    contains: Contains,
    hashes: Sequence[BlockHash],
    first: int,
    limit: int,
) -> StoredHit:
    """Return the longest hit of a request's hashes; see :func:`longest_hit`."""
    tail_key = None
    if layout.tails:
        tail_key = lambda end: layout.tail_key(hashes, end * layout.unit)
    row_key = lambda unit: layout.row_key(hashes, unit)
    row_keys = lambda start, end: layout.row_keys(hashes, start, end)
    return longest_hit(contains, row_key, tail_key, first, limit, row_keys)


def _search(
    layout: TierLayout,
    contains: Contains,
    hashes: Sequence[BlockHash],
    first: int,
    limit: int,
    clock: Callable[[], float],
) -> _Found:
    """Look up; on the thread that calls the store."""
    answers: list[tuple[Sequence[bytes], Sequence[bool]]] = []

    def ask(keys: Sequence[bytes]) -> Sequence[bool]:
        found = contains(keys)
        answers.append((keys, found))
        return found

    started = clock()
    hit = longest_stored(layout, ask, hashes, first, limit)
    return _Found(hit, answers, clock() - started)
