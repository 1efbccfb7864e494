# SPDX-License-Identifier: Apache-2.0
"""Several engines at a time, each in a fork of this process: vLLM has one in a process."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tests.upstream.npu_reference.engine import NUM_ANSWERED, Engine

_PATIENCE_S = 300.0


@dataclass
class Answer:
    """What an instance says to a prompt.

    Attributes:
        tokens: That it sampled.
        num_cached: Tokens of the prompt that it did not compute, whoever had them.
        handed_over: What another instance needs to go on, if it was asked to.
    """

    tokens: list[int]
    num_cached: int
    handed_over: dict[str, Any] | None


class Instance:
    """An engine in a process of its own.

    Args:
        make: Makes the engine, over there.
    """

    def __init__(self, make: Callable[[], Engine]) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(self._pipe, theirs, make), daemon=True)
        self._process.start()
        theirs.close()  # or its end would not be noticed
        try:
            self._receive()
        except BaseException:
            self.end()
            raise

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of a module over there; the engine is its first argument.

        Raises:
            BaseException: What it raised.
            EOFError: The process is gone.
        """
        self._pipe.send((function, args, kwargs))
        return self._receive()

    def ask(self, prompts: Sequence[Sequence[int]], **how: Any) -> list[Answer]:
        """Return the answers to prompts, all asked at once; see :func:`answers`."""
        return self.call(answers, prompts, **how)

    def end(self) -> None:
        """End the process."""
        with suppress(OSError):  # it is gone
            self._pipe.send(None)
        self._process.join(_PATIENCE_S)
        self._process.kill()

    def _receive(self) -> Any:
        result, error = self._pipe.recv()
        if error is not None:
            raise error
        return result


@contextmanager
def instances(*makers: Callable[[], Engine]) -> Iterator[list[Instance]]:
    """Start instances, one after another, and end them."""
    with ExitStack() as ends:
        running = []
        for make in makers:
            instance = Instance(make)
            ends.callback(instance.end)
            running.append(instance)
        yield running


def without_cache(prompts: Sequence[Sequence[int]], **settings: Any) -> list[list[int]]:
    """Return the tokens of one engine that has no prefix cache and no connector.

    Args:
        prompts: Are all asked at once.
        settings: Of the engine.
    """
    with instances(lambda: Engine(enable_prefix_caching=False, **settings)) as (engine,):
        said = engine.ask(prompts)
    assert not any(answer.num_cached for answer in said)
    return [answer.tokens for answer in said]


# What an instance may be called with, beside functions of the checks


def answers(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    num_tokens: int = NUM_ANSWERED,
    handed_over: Sequence[dict[str, Any]] | None = None,
) -> list[Answer]:
    """Answer prompts greedily, all of them at once.

    Args:
        engine: Which one.
        prompts: Their tokens.
        num_tokens: To sample.
        handed_over: For each, ``kv_transfer_params``: of this instance, or from another one.
    """
    outputs = engine.answer(prompts, num_tokens, kv_transfer_params=handed_over)
    return [
        Answer(
            list(output.outputs[0].token_ids), output.num_cached_tokens, output.kv_transfer_params
        )
        for output in outputs
    ]


def empty_cache(engine: Engine) -> bool:
    """Empty the prefix cache; return whether every block was free."""
    return engine.core.scheduler.reset_prefix_cache()


def num_read(engine: Engine) -> int:
    """Return how many rows were checked."""
    return engine.tagged.memory.num_read


def _serve(asking: Connection, pipe: Connection, make: Callable[[], Engine]) -> None:
    """Make an engine, and do what is asked until nothing is, or nobody is there to ask."""
    asking.close()
    try:
        engine = make()
    except BaseException as error:  # whatever it is, it is the other side's
        pipe.send((None, _with_origin(error)))
        return
    pipe.send((None, None))
    while (asked := _next(pipe)) is not None:
        function, args, kwargs = asked
        try:
            told = (function(engine, *args, **kwargs), None)
        except BaseException as error:
            told = (None, _with_origin(error))
        pipe.send(told)


def _with_origin(error: BaseException) -> BaseException:
    """Note on an error where it was raised, which its process alone knows."""
    error.add_note("".join(traceback.format_exception(error)))
    return error


def _next(pipe: Connection) -> Any:
    with suppress(EOFError):
        return pipe.recv()
    return None
