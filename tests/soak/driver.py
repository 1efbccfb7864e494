# SPDX-License-Identifier: Apache-2.0
"""One real engine that operations are applied to, every step verified."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

import vllm_ascend.patch.platform  # noqa: F401  (installs the patches)
from tests.e2e.connectors.connected import ConnectedEngine
from tests.e2e.connectors.fake_connector import transfer_config
from tests.e2e.core.engine import Engine
from tests.soak import requests
from tests.soak.case import Case
from tests.soak.features import features_of, features_of_request
from tests.soak.operations import (
    Abort,
    Add,
    Continue,
    Operation,
    Reset,
    Sleep,
    Step,
    WakeUp,
    num_tokens,
)
from tests.soak.promises import is_ours, without_vllm_defects
from vllm_ascend.prefix_cache_config import VARIABLES, load_config
from vllm_ascend_evaluation.oracle import OracleOptions

# Loads and hand-overs end within this many turns; who waits for longer waits for ever.
_MAX_IDLE_TURNS = 60
# More than are ever alive; if none of them was in the way, nobody is.
_MAX_GIVEN_UP = 40
# The last requests take some hundreds; those that preempt each other go on for ever.
_MAX_LAST_TURNS = 8000


class PatientEngine(ConnectedEngine):
    """Counts turns instead of seconds: a replay must not depend on the machine.

    Attributes:
        num_starved: requests of stock vLLM that had to be given up, because some that wait hold
            loaded blocks and others wait for those (test_vllm_defects.py). One alone must always
            get on.
    """

    num_starved = 0
    _given_up_in_a_row = 0

    def _watch_progress(self, executed: bool) -> None:
        # A turn that only tells workers of ended requests is not one in which somebody waits.
        self.idle_turns = 0 if executed or not self.alive else self.idle_turns + 1
        if executed:
            self._given_up_in_a_row = 0
        if self.idle_turns < _MAX_IDLE_TURNS or self._leave_a_session():
            return
        assert not is_ours(self.scheduler), f"nothing is scheduled any more of {self.alive}"
        tables = self.manager.get_block_ids
        holders = [name for name in self.alive if any(map(any, tables(name)))]
        others = [name for name in self.alive if name not in holders]
        self._given_up_in_a_row += 1
        helps = self._given_up_in_a_row <= _MAX_GIVEN_UP
        assert holders and helps and len(self.alive) > 1, (
            f"nothing is scheduled any more of {self.alive}"
        )
        # Those that hold blocks stand in each other's way; the last of them must get on.
        self.abort(holders[:1] if len(holders) > 1 else others[:1])
        self.num_starved += 1
        self.idle_turns = 0


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set exactly these of the project's variables inside."""
    before = {name: os.environ.get(name) for name in (v.name for v in VARIABLES)}
    for name in before:
        os.environ.pop(name, None)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class Driver:
    """Applies operations to the engine of a case.

    Attributes:
        counts: what happened, by name: `steps`, `hits`, `preemptions`, `failed loads`, ...
        feature_steps: feature -> steps with it on.
    """

    def __init__(self, case: Case, *, check_every: int) -> None:
        """Build the engine.

        Args:
            check_every: operations from one check of all invariants to the next; it is slow.

        Raises:
            ValueError: the product or vLLM refuses the combination.
        """
        self.case = case
        self.counts: Counter[str] = Counter()
        self.feature_steps: Counter[str] = Counter()
        with environment(case.environment):
            self.engine = self._make_engine()
            self._admits_as_vllm = not load_config().changes_caching
        self._num_given_up = 0
        scheduler = self.engine.scheduler
        if without_vllm_defects(case, scheduler) != case:
            raise ValueError("stock vLLM is not exact with this")
        # The stand-in model has no encoder.
        scheduler.max_num_encoder_input_tokens = case.encoder_tokens
        scheduler.encoder_cache_manager = EncoderCacheManager(case.encoder_tokens)
        self._features = features_of(case)
        self._request_features: dict[str, frozenset[str]] = {}
        self._num_added = 0
        self._ended: set[str] = set()
        self._session_tokens: dict[str, int] = {}
        self._check_every = check_every
        self._turn = 0

    def _make_engine(self) -> Engine:
        case, layout = self.case, self.case.layout.build()
        engine_class: Any = PatientEngine if case.connection else Engine
        transfer = (transfer_config(**asdict(case.connection)),) if case.connection else ()
        return engine_class(layout, case.options, *transfer, oracle=self._oracle)

    def _oracle(self, scheduler: Scheduler) -> OracleOptions:
        """How strict the proof is: stock vLLM is exact for the model, not for all kernels."""
        strict = is_ours(scheduler)
        return OracleOptions(
            acceptance=self.case.acceptance,
            seed=self.case.seed,
            strict_state=strict and load_config().changes_caching,
            strict_draft=strict,
        )

    @property
    def is_asleep(self) -> bool:
        """Whether the engine was put to sleep and not woken up."""
        return self.engine.scheduler.pause_state != PauseState.UNPAUSED

    def open_sessions(self) -> list[Request]:
        """Streaming sessions that their clients have not ended."""
        known = self.engine.scheduler.requests.values()
        return [r for r in known if r.resumable and r.request_id not in self._ended]

    def apply(self, operation: Operation) -> None:
        """Let something happen; what is about requests that are gone does nothing."""
        engine = self.engine
        match operation:
            case Step():
                self._step(operation.abort)
            case Add():
                request = requests.make(engine.scheduler, operation, self._num_added)
                self._num_added += 1
                self._request_features[operation.request_id] = features_of_request(operation)
                engine.submit(request)
            case Continue():
                self._continue(operation)
            case Abort():
                self._abort(operation.request_id)
            case Reset():
                self.counts["resets"] += engine.reset(busy=operation.busy)
            case Sleep():
                engine.sleep(operation.level, operation.mode)
                self.counts["sleeps"] += 1
            case WakeUp():
                engine.wake_up()
        self._turn += 1
        if self._turn % self._check_every == 0:
            engine.check()

    def finish(self) -> None:
        """Let everything end and check the leftovers."""
        self.engine.wake_up()
        for session in self.open_sessions():
            self._continue(Continue(session.request_id, (), last=True))
        turns = 0
        while self.engine.step():
            turns += 1
            if turns == _MAX_LAST_TURNS:
                self._give_up_youngest()
                turns = 0
        self.engine.drain()

    def _give_up_youngest(self) -> None:
        """Abort one of the requests that stand in each other's way, if that is vLLM's doing.

        Its admission asks windowed groups for no blocks behind a hit or a load, so a request may be
        let in and preempt itself for ever; ours, with any switch on, counts them.
        """
        alive = self.engine.alive
        assert self._admits_as_vllm and len(alive) > 1, f"they do not end: {alive}"
        self.engine.abort(alive[-1:])
        self._num_given_up += 1

    def tally(self) -> None:
        """Count what the engine counts itself."""
        engine = self.engine
        self.counts["steps"] = engine.worker.num_steps
        self.counts["requests"] = self._num_added
        self.counts["hits"] = sum(hit > 0 for hit in engine.hits.values())
        self.counts["hit tokens"] = sum(engine.hits.values())
        self.counts["preemptions"] = engine.num_preemptions
        self.counts["starved"] = self._num_given_up
        if isinstance(engine, PatientEngine):
            connector = engine.worker.connector
            self.counts["loads"] = connector.num_loaded
            self.counts["starved"] += engine.num_starved
            self.counts["failed loads"] = connector.num_failed

    def _step(self, abort: str | None) -> None:
        steps = self.engine.worker.num_steps

        def between(output: SchedulerOutput) -> None:
            if abort is not None and abort in output.num_scheduled_tokens:
                self._abort(abort)

        self.engine.step(between)
        if self.engine.worker.num_steps > steps:
            scheduled = self.engine.worker.last_request_ids
            on = self._features.union(*(self._request_features[name] for name in scheduled))
            self.feature_steps.update(on)

    def _continue(self, operation: Continue) -> None:
        """Send a session more input, or its end, if its client has not ended it already."""
        session = self.engine.scheduler.requests.get(operation.request_id)
        if session is None or not session.resumable or operation.request_id in self._ended:
            return
        # vLLM gives every turn as many tokens as the first one, and checks no turn's length.
        said = self._session_tokens.get(operation.request_id, session.num_prompt_tokens)
        said += num_tokens(operation.prompt) + session.max_tokens
        habits = self.case.habits  # the pool holds one request as long as these say
        if said + session.max_tokens > habits.max_prompt_tokens + habits.max_output_tokens:
            operation = replace(operation, last=True)
        self._session_tokens[operation.request_id] = said
        if operation.last:
            self._ended.add(operation.request_id)
        add = Add(operation.request_id, operation.prompt, 1, resumable=not operation.last)
        self.engine.continue_session(requests.make(self.engine.scheduler, add, self._num_added))
        self.counts["session turns"] += not operation.last

    def _abort(self, request_id: str) -> None:
        if request_id in self.engine.scheduler.requests:
            self.engine.abort([request_id])
            self.counts["aborts"] += 1
