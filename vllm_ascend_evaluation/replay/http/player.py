# SPDX-License-Identifier: Apache-2.0
"""Sends a workload's requests: so many at a time, or when the trace says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from vllm_ascend.server_access.access import ServerError
from vllm_ascend_evaluation.replay.http.client import Answer, HttpClient
from vllm_ascend_evaluation.replay.sessions import Turns
from vllm_ascend_evaluation.replay.trace import TraceRequest, Workload


@dataclass
class Played:
    """What came of one workload.

    Attributes:
        answers: Number of the request, from 0 -> its answer; in the order of answers.
        sent: Number of the request -> prompt tokens sent.
        seconds: Wall-clock time.
        failure: What the server did wrong; that ended it.
        interrupted: Whether the user ended it.
    """

    answers: dict[int, Answer] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0
    failure: ServerError | None = None
    interrupted: bool = False

    @property
    def is_cut_short(self) -> bool:
        """Whether something ended it early."""
        return self.interrupted or self.failure is not None


class Player:
    """Sends the requests of one workload.

    Attributes:
        played: What came of it so far.
    """

    def __init__(self, client: HttpClient, model: str, on_answer: Callable[[Played], None]) -> None:
        """Prepare.

        Args:
            client: Speaks to the server.
            model: Name of the model.
            on_answer: Told of every answer.
        """
        self.played = Played()
        self._client = client
        self._model = model
        self._on_answer = on_answer
        self._tasks: list[asyncio.Task[None]] = []
        self._main: asyncio.Task | None = None

    async def play(self, workload: Workload, speed: float | None = None) -> None:
        """Send everything; a failure of the server, or being cancelled, ends it early.

        Args:
            workload: With token ids that the server has.
            speed: Send at the requests' times, so many times as fast; ``None``: keep as many in
                flight as the workload says.
        """
        self._main = asyncio.current_task()
        started = time.perf_counter()
        try:
            if speed is None:
                self._begin_turns(workload)
            else:
                await self._begin_by_the_clock(workload, speed)
            await asyncio.gather(*self._tasks)
        except asyncio.CancelledError:
            self.played.interrupted = self.played.failure is None
        finally:
            self.played.seconds = time.perf_counter() - started
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin_turns(self, workload: Workload) -> None:
        turns = Turns(workload.requests())
        answered = asyncio.Condition()

        async def take_turns() -> None:
            while True:
                async with answered:
                    # What is left may wait for an answer that another worker awaits.
                    while (taken := turns.take()) is None and turns.has_more:
                        await answered.wait()
                if taken is None:
                    return
                await self._send(*taken)
                async with answered:
                    turns.finish(taken[1])
                    answered.notify_all()

        for _ in range(min(workload.concurrency, workload.num_requests)):
            self._begin(take_turns())

    async def _begin_by_the_clock(self, workload: Workload, speed: float) -> None:
        start = time.perf_counter()
        last_turns: dict[int, asyncio.Task[None]] = {}
        for number, request in enumerate(workload.requests()):
            session = request.session
            if request.arrival_ms is not None:
                due = start + request.arrival_ms / 1000.0 / speed
                await asyncio.sleep(max(due - time.perf_counter(), 0.0))
                task = self._begin(self._send(number, request))
            else:
                assert request.think_ms is not None, "checked before anything was sent"
                before = None if session is None else last_turns.get(session)
                think_s = request.think_ms / 1000.0 / speed
                task = self._begin(self._send_behind(before, think_s, number, request))
            if session is not None:
                last_turns[session] = task

    async def _send_behind(
        self, before: asyncio.Task[None] | None, think_s: float, number: int, request: TraceRequest
    ) -> None:
        """Send a turn so long after the answer to the one before it."""
        if before is not None:
            await asyncio.wait([before])
        await asyncio.sleep(think_s)
        await self._send(number, request)

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def _send(self, number: int, request: TraceRequest) -> None:
        prompt = request.prompt_token_ids
        self.played.sent[number] = len(prompt)
        try:
            answer = await self._client.complete(self._model, prompt, request.output_tokens)
        except ServerError as error:
            self._stop(error)
            return
        self.played.answers[number] = answer
        self._on_answer(self.played)

    def _stop(self, failure: ServerError) -> None:
        # Only the first counts: what ends the others is that they are cancelled.
        if not self.played.is_cut_short:
            self.played.failure = failure
            assert self._main is not None
            self._main.cancel()
