# SPDX-License-Identifier: Apache-2.0
"""The ledger: what every request has entered and copied, by the step that writes it.

Nothing else remembers that. Withdrawal, failed loads, preemption, the end of a request and a reset
read the records here. The table in ``request_record`` says who may read what when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request, RequestStatus

from vllm_ascend.core.policy.units import KVCacheBlockCopy
from vllm_ascend.core.retention.request_record import BlockCopy, RequestRecord


class DispatchedStep(NamedTuple):
    """A step whose output is not back yet.

    Attributes:
        number: Its place among all steps.
        output: What the scheduler told the workers: it identifies the step.
        records: The requests that have copies or loads in it.
    """

    number: int
    output: Any
    records: list[RequestRecord]


class Ledger:
    """The records of all requests, and which of them have something open in which step.

    Attributes:
        records: Request id -> its record.
        has_connector: See the constructor.
        preempted_and_lost: Requests whose load failed in the step confirmed last, and that hold
            nothing now: they were preempted in a step scheduled since. What that step computed for
            them is garbage.
    """

    def __init__(self, *, has_connector: bool) -> None:
        """Remember nothing yet.

        Args:
            has_connector: Whether a KV connector writes blocks beside the steps. Then the source of
                a copy is held until the output of its step is back. Else one stream executes all
                steps in order: whoever is given the source writes it behind the copy, so the next
                step's start will do.
        """
        self.records: dict[str, RequestRecord] = {}
        self.has_connector = has_connector
        self._step = self._last_confirmed = 0
        # Records with something of the step being scheduled, in the order of their first.
        self._open: dict[int, RequestRecord] = {}
        # Request ids, in the order of their loads.
        self._awaiting_start: dict[str, None] = {}
        # Who joined or left those in this step, since somebody has asked.
        self._changed: dict[str, None] = {}
        self._dispatched: deque[DispatchedStep] = deque()
        self.preempted_and_lost: list[Request] = []
        self._restarted: list[str] = []
        self._moved_on: list[Request] = []

    def record(self, request_id: str) -> RequestRecord:
        """Return a request's record; a new one if there is none."""
        record = self.records.get(request_id)
        if record is None:
            record = self.records[request_id] = RequestRecord()
        return record

    def forget(self, request_id: str) -> None:
        """A request holds nothing any more: drop its record, if it has one."""
        self._cease_to_await(request_id)
        self.records.pop(request_id, None)

    def open(self, record: RequestRecord) -> None:
        """Note that the step being scheduled computes, copies or loads something for a request."""
        self._open[id(record)] = record
        if record.first_step is None:
            record.first_step = self._step

    # Loads

    def load_starts(self, request_id: str) -> None:
        """A connector brings a request tokens: nothing is entered before the load is confirmed."""
        record = self.record(request_id)
        record.is_loading = True
        self._awaiting_start[request_id] = self._changed[request_id] = None
        self.open(record)

    def awaits_load(self, request: Request, num_tokens: int) -> bool:
        """Whether a request's first ``num_tokens`` tokens cannot be entered yet; if so, note them.

        vLLM asks to enter what an asynchronous load brought once it has arrived.
        """
        name = request.request_id
        record = self.records.get(name)
        if record is None or not (record.is_loading or name in self._awaiting_start):
            return False
        if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            record.load_ends()
            return False
        self._cease_to_await(name)
        if record.is_loading:
            record.request, record.num_noted_tokens = request, num_tokens
        return record.is_loading

    def _cease_to_await(self, request_id: str) -> None:
        if request_id in self._awaiting_start:
            del self._awaiting_start[request_id]
            self._changed[request_id] = None

    def awaits_start(self, request_id: str) -> bool:
        """Whether a request has external tokens and was not scheduled behind them yet."""
        return request_id in self._awaiting_start

    def awaiting_start(self) -> list[str]:
        """Return the requests that have external tokens and were not scheduled behind them yet."""
        return list(self._awaiting_start)

    def take_changes(self) -> list[str]:
        """Return who began or ceased to await its start in this step, since the last call."""
        taken, self._changed = list(self._changed), {}
        return taken

    # Steps

    def next_step(self) -> list[RequestRecord]:
        """A new step is started; return the records with something of the one before."""
        self._step += 1
        settled, self._open = list(self._open.values()), {}
        self._changed = {}
        return settled

    def copies_to_tell(self) -> list[KVCacheBlockCopy]:
        """Return the copies of the step being scheduled; each is returned once."""
        told: list[KVCacheBlockCopy] = []
        for record in self._open.values():
            for copy in record.copies:
                if copy.source is not None and not copy.is_told:
                    copy.is_told = True
                    told.append(KVCacheBlockCopy(copy.source.block_id, copy.private.block_id))
        return told

    def dispatch(self, output: Any) -> None:
        """The step has been scheduled as ``output``, a ``SchedulerOutput``."""
        if not self.has_connector:
            return
        scheduled = output.num_scheduled_tokens
        waiting = [
            record
            for record in self._open.values()
            if any(copy.source is not None for copy in record.copies)
            or (record.is_loading and record.request_id in scheduled)
        ]
        self._dispatched.append(DispatchedStep(self._step, output, waiting))

    def confirm(self, output: Any) -> list[RequestRecord]:
        """A step has run, and so have all before it; return the records that waited for them."""
        for index, step in enumerate(self._dispatched):
            if step.output is output:
                self._last_confirmed = step.number
                steps = [self._dispatched.popleft() for _ in range(index + 1)]
                return [record for step in steps for record in step.records]
        return []

    def is_in_flight(self, request_id: str) -> bool:
        """Whether a step behind the last confirmed one computes something for a request."""
        return any(request_id in step.output.num_scheduled_tokens for step in self._dispatched)

    def took_part(self, request_id: str) -> bool:
        """Whether a request had blocks in the last confirmed step, or before.

        What a connector could not load for that step was not this request's otherwise: a block may
        have changed hands since.
        """
        record = self.records.get(request_id)
        if not self.has_connector or record is None or record.first_step is None:
            return True
        return record.first_step <= self._last_confirmed

    def begins_anew(self, request_id: str) -> None:
        """A request begins anew while a step of it is in flight, whose output comes next."""
        self._restarted.append(request_id)

    def take_restarted(self) -> list[str]:
        """Return the requests that have begun anew since the step was scheduled that has run."""
        restarted, self._restarted = self._restarted, []
        return restarted

    def moves_on(self, session: Request) -> None:
        """A streaming session that holds no blocks has been given its next input."""
        self._moved_on.append(session)

    def take_moved_on(self) -> list[Request]:
        """Return the sessions without blocks that have been given input since the last call."""
        moved_on, self._moved_on = self._moved_on, []
        return moved_on

    # Copies

    def copies_with_sources(self) -> list[BlockCopy]:
        """Return all copies whose source is still referenced, also those of ended requests."""
        records = dict(self._open)
        for record in _flat(step.records for step in self._dispatched):
            records[id(record)] = record
        return [c for record in records.values() for c in record.copies if c.source is not None]

    def sources(self) -> list[KVCacheBlock]:
        """Return every block that is referenced for a copy, once per reference. For checks."""
        return [copy.source for copy in self.copies_with_sources() if copy.source is not None]


def _flat(lists: Iterable[list[RequestRecord]]) -> Iterable[RequestRecord]:
    return (record for records in lists for record in records)
