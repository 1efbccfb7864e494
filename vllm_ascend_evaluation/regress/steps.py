# SPDX-License-Identifier: Apache-2.0
"""The two steps of a run: put a load on the server, and ask it questions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from vllm_ascend.server_access.access import ServerError
from vllm_ascend.server_access.server import ANSWERED, Server
from vllm_ascend.server_access.vocabulary import FIRST_ID
from vllm_ascend_evaluation.regress import ais_bench, chat, own_load, vllm_bench
from vllm_ascend_evaluation.regress.gpqa import QuestionFile
from vllm_ascend_evaluation.regress.hit_counts import counted_use, other_counters
from vllm_ascend_evaluation.regress.journal import TOOLS, Answer, Journal
from vllm_ascend_evaluation.regress.process import ToolError
from vllm_ascend_evaluation.regress.results import (
    ACCURACY,
    AIS_BENCH,
    PERFORMANCE,
    WARM_UPS,
    Accuracy,
    AccuracySettings,
    CacheUse,
    Load,
    Performance,
    PerformanceSettings,
    Times,
)


@dataclass(frozen=True)
class Run:
    """What both steps need.

    Attributes:
        server: The server.
        journal: Where results go.
        tokenizer: Of the model: a folder or, for ``vllm bench serve``, a repository.
        timeout_s: Longest time for the answer to one question.
    """

    server: Server
    journal: Journal
    tokenizer: str
    timeout_s: float


def measure_performance(run: Run, settings: PerformanceSettings) -> None:
    """Put the load on the server as often as it is not done yet.

    Raises:
        ServerError: It cannot be reached.
        ToolError: The tool failed.
        BadInputError: The step was begun with other settings.
    """
    run.journal.begin(PERFORMANCE, settings)
    if run.journal.measured.performance is not None:
        return
    loads = run.journal.loads()
    for number in range(len(loads), settings.warmup + settings.repeats):
        loads.append(_put_load(run, settings, _name_of_load(number, settings)))
        run.journal.keep_load(loads[-1])
    run.journal.finish(Performance(settings, tuple(loads[settings.warmup :]), _now()))


def _name_of_load(number: int, settings: PerformanceSettings) -> str:
    """Return what the ``number``-th load, from 0, is for."""
    counted = number - settings.warmup + 1
    return f"{PERFORMANCE}, " + (f"{counted} of {settings.repeats}" if counted > 0 else "warm-up")


def _put_load(run: Run, settings: PerformanceSettings, name: str) -> Load:
    """Put the load on the server once."""
    before = run.server.counters()
    times = _times(run, settings, name)
    after = run.server.counters()
    cache = _cache_use(before, after) or _use_by_answers(run, settings, name, before, after)
    run.server.check_start(run.journal.measured.target)
    return Load(times, cache)


def _times(run: Run, settings: PerformanceSettings, name: str) -> Times:
    measure = ais_bench.measure if settings.tool == AIS_BENCH else vllm_bench.measure
    request = {
        "prompt": [FIRST_ID] * settings.input_tokens,
        "max_tokens": settings.output_tokens,
    }
    with (
        _reason_of_the_server(run, "/v1/completions", request),
        _requests_bar(run.server, name, settings.requests) as tick,
    ):
        return measure(
            run.journal.measured.target,
            settings,
            access=run.server.access,
            tokenizer=run.tokenizer,
            folder=_tool_folder(run, PERFORMANCE, settings.tool),
            tick=tick,
        )


def _cache_use(before: Mapping[str, float], after: Mapping[str, float]) -> CacheUse | None:
    try:
        return counted_use(before, after)
    except ValueError as error:
        raise ServerError(f"{error}: the server was started anew meanwhile") from error


def _use_by_answers(
    run: Run,
    settings: PerformanceSettings,
    name: str,
    before: Mapping[str, float],
    after: Mapping[str, float],
) -> CacheUse:
    """Return what the answers to a load of our own say, for a server without such counters."""
    with _progress() as progress:
        bar = progress.add_task(f"{name}, hits", total=settings.requests + WARM_UPS)
        return own_load.hits_of_answers(
            run.journal.measured.target,
            settings,
            access=run.server.access,
            timeout_s=run.timeout_s,
            counters=other_counters(before, after),
            on_answer=lambda answered: progress.update(bar, completed=answered),
        )


def measure_accuracy(run: Run, settings: AccuracySettings, gpqa: QuestionFile) -> None:
    """Have the questions answered that are not answered yet.

    Args:
        run: The run.
        settings: How to ask.
        gpqa: The questions.

    Raises:
        ServerError: It cannot be reached.
        ToolError: The tool failed.
        BadInputError: The step was begun with other settings.
    """
    run.journal.begin(ACCURACY, settings)
    if run.journal.measured.accuracy is not None:
        return
    ask = _ask_with_ais_bench if settings.tool == AIS_BENCH else _ask
    result = ask(run, settings, gpqa)
    run.server.check_start(run.journal.measured.target)
    run.journal.finish(result)


def _ask_with_ais_bench(run: Run, settings: AccuracySettings, gpqa: QuestionFile) -> Accuracy:
    request = {
        "messages": [{"role": "user", "content": "?"}],
        "max_tokens": settings.max_tokens,
    }
    with (
        _reason_of_the_server(run, "/v1/chat/completions", request),
        _requests_bar(run.server, ACCURACY, settings.questions) as tick,
    ):
        correct, unanswered = ais_bench.ask(
            run.journal.measured.target,
            settings,
            access=run.server.access,
            tokenizer=run.tokenizer,
            questions=gpqa.path,
            folder=_tool_folder(run, ACCURACY, settings.tool),
            tick=tick,
        )
    return Accuracy(settings, correct, unanswered, cut=None, finished=_now())


def _ask(run: Run, settings: AccuracySettings, gpqa: QuestionFile) -> Accuracy:
    done = run.journal.answers()
    with _progress() as progress:
        bar = progress.add_task(ACCURACY, total=settings.questions, completed=len(done))

        def keep(answer: Answer) -> None:
            done[answer.number] = answer
            run.journal.keep(answer)
            progress.update(bar, completed=len(done))

        chat.ask(
            run.journal.measured.target,
            settings,
            [question for question in gpqa.questions if question.number not in done],
            access=run.server.access,
            timeout_s=run.timeout_s,
            keep=keep,
        )
    return Accuracy(
        settings,
        correct=sum(answer.is_correct for answer in done.values()),
        unanswered=sum(answer.letter is None for answer in done.values()),
        cut=sum(answer.is_cut for answer in done.values()),
        finished=_now(),
    )


def _tool_folder(run: Run, step: str, tool: str) -> Path:
    # The tool runs in it, where a relative path would mean another place.
    return (run.journal.folder / TOOLS / f"{step}-{tool}").resolve()


@contextlib.contextmanager
def _reason_of_the_server(run: Run, path: str, request: dict[str, object]) -> Iterator[None]:
    """If the tool fails, add what the server says to such a request: tools keep its status alone.

    Raises:
        ToolError: The tool failed.
    """
    try:
        yield
    except ToolError as error:
        reason = run.server.refusal(path, model=run.journal.measured.target.model, **request)
        if not reason:
            raise
        raise ToolError(f"{error}; asked by this command, the server says: {reason}") from error


@contextlib.contextmanager
def _requests_bar(server: Server, name: str, total: int) -> Iterator[Callable[[], None]]:
    """Yield what shows how many requests the server has answered so far."""
    before = server.counters().get(ANSWERED, 0.0)
    with _progress() as progress:
        bar = progress.add_task(name, total=total)

        def tick() -> None:
            # Only a picture: if the server is gone, the tool finds out by itself.
            with contextlib.suppress(ServerError):
                answered = server.counters().get(ANSWERED, 0.0) - before
                progress.update(bar, completed=min(int(answered), total))

        yield tick
        # The tool has ended, and has all answers: the last tick may lie seconds behind.
        progress.update(bar, completed=total)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        console=Console(stderr=True, emoji=False),
    )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
