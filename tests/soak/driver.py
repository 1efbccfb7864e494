# SPDX-License-Identifier: Apache-2.0
"""One real engine that operations are applied to, every step verified."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from tempfile import TemporaryDirectory

from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

import vllm_ascend.patch.platform  # noqa: F401  (installs the patches)
from tests.e2e.connectors.fake_connector import transfer_config
from tests.e2e.core.engine import Engine
from tests.soak import requests
from tests.soak.case import Case
from tests.soak.engines import PatientEngine, environment
from tests.soak.features import features_of, features_of_request
from tests.soak.operations import (
    Abort,
    Add,
    Continue,
    Operation,
    Reset,
    Sleep,
    StartAnew,
    Step,
    TurnTo,
    WakeUp,
    num_tokens,
)
from tests.soak.promises import is_ours, without_vllm_defects
from tests.soak.tier_engine import SoakTierEngine, pool_of
from vllm_ascend.prefix_cache_config import load_config
from vllm_ascend_evaluation.oracle import OracleOptions

# The last requests take some hundreds; those that preempt each other go on for ever.
_MAX_LAST_TURNS = 8000


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
        self._pool = pool_of(case.tier) if case.tier else None
        self._folder = TemporaryDirectory()
        self._num_engines_made = 0
        self._ended_engines: list[Engine] = []
        with environment(case.environment):
            count = case.tier.num_engines if case.tier else 1
            self._engines = [self._make_engine() for _ in range(count)]
            self._admits_as_vllm = not load_config().changes_caching
        self._current = 0
        self._num_given_up = 0
        if without_vllm_defects(case, self.engine.scheduler) != case:
            raise ValueError("stock vLLM is not exact with this")
        self._features = features_of(case)
        self._request_features: dict[str, frozenset[str]] = {}
        self._num_added = 0
        self._ended: set[str] = set()
        self._session_tokens: dict[str, int] = {}
        self._check_every = check_every
        self._turn = 0

    def _make_engine(self) -> Engine:
        case, layout = self.case, self.case.layout.build()
        engine: Engine
        if self._pool is not None:
            engine = SoakTierEngine(
                case, self._pool, self._folder.name, self._num_engines_made, self._oracle
            )
        elif case.connection is not None:
            transfer = transfer_config(**asdict(case.connection))
            engine = PatientEngine(layout, case.options, transfer, self._oracle)
        else:
            engine = Engine(layout, case.options, self._oracle)
        self._num_engines_made += 1
        # The stand-in model has no encoder.
        engine.scheduler.max_num_encoder_input_tokens = case.encoder_tokens
        engine.scheduler.encoder_cache_manager = EncoderCacheManager(case.encoder_tokens)
        return engine

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
    def engine(self) -> Engine:
        """The engine that operations are about."""
        return self._engines[self._current]

    @property
    def num_steps(self) -> int:
        """Steps of all engines so far."""
        engines = (*self._engines, *self._ended_engines)
        return sum(engine.worker.num_steps for engine in engines)

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
                self._reset(operation)
            case Sleep():
                engine.sleep(operation.level, operation.mode)
                self.counts["sleeps"] += 1
            case WakeUp():
                engine.wake_up()
            case TurnTo():
                self._current = operation.engine % len(self._engines)
            case StartAnew():
                self._start_anew()
        self._turn += 1
        if self._turn % self._check_every == 0:
            self.engine.check()

    def finish(self) -> None:
        """Let everything end and check the leftovers."""
        for number in range(len(self._engines)):
            self._current = number
            self._finish_engine()

    def _finish_engine(self) -> None:
        engine = self.engine
        engine.wake_up()
        for session in self.open_sessions():
            self._continue(Continue(session.request_id, (), last=True))
        turns = 0
        while engine.step():
            turns += 1
            if turns == _MAX_LAST_TURNS:
                self._give_up_youngest()
                turns = 0
        if isinstance(engine, SoakTierEngine):
            engine.settle()
        engine.drain()

    def _start_anew(self) -> None:
        """Put another engine in the place of this one, which ends with all its requests."""
        self._ended_engines.append(self.engine)
        if isinstance(self.engine, SoakTierEngine):
            self.engine.kill()
        with environment(self.case.environment):
            self._engines[self._current] = self._make_engine()

    def _reset(self, operation: Reset) -> None:
        engine = self.engine
        if operation.tier:
            is_reset = engine.scheduler.reset_prefix_cache(operation.busy, reset_connector=True)
        else:
            is_reset = engine.reset(busy=operation.busy)
        self.counts["resets"] += is_reset
        if is_reset and operation.loses_memory and isinstance(engine, SoakTierEngine):
            engine.lose_memory()

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
        """Count what the engines count themselves."""
        self.counts["requests"] = self._num_added
        self.counts["starved"] = self._num_given_up
        for engine in (*self._engines, *self._ended_engines):
            self._tally(engine)

    def _tally(self, engine: Engine) -> None:
        counts = self.counts
        counts["steps"] += engine.worker.num_steps
        counts["hits"] += sum(hit > 0 for hit in engine.hits.values())
        counts["hit tokens"] += sum(engine.hits.values())
        counts["preemptions"] += engine.num_preemptions
        if isinstance(engine, PatientEngine):
            counts["starved"] += engine.num_starved
        if isinstance(engine, SoakTierEngine):
            counts["loads of the tier"] += engine.tier.counts.loads
            counts["failed loads of the tier"] += engine.tier.counts.failed_loads
            counts["bytes from the disk"] += engine.tier.counts.disk_read_bytes
        elif isinstance(engine, PatientEngine):
            connector = engine.worker.connector
            counts["loads"] += connector.num_loaded
            counts["failed loads"] += connector.num_failed

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
