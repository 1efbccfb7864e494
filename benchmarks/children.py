# SPDX-License-Identifier: Apache-2.0
"""Measuring processes that answer questions, so that several of them can take turns."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vllm_ascend.prefix_cache_config import child_environment

_REPOSITORY = Path(__file__).parents[1]
_ANSWER = "ANSWER "


class ChildError(RuntimeError):
    """A measuring process ended before it answered; the message holds what it said last."""


class Child:
    """A module of ours, run as a process: a line of JSON in, a line of JSON out."""

    def __init__(self, module: str, *arguments: str, environment: Mapping[str, str]) -> None:
        """Start it.

        Args:
            module: What ``python -m`` runs; it calls ``answer_all``.
            environment: The project's variables in the process; all others are unset.
        """
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in end()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            cwd=_REPOSITORY,
            env={**child_environment(environment), "VLLM_LOGGING_LEVEL": "ERROR"},
        )

    def ask(self, question: Any, on_line: Callable[[str], None] = lambda line: None) -> Any:
        """Send a question; return the answer.

        Args:
            on_line: Told of every line that comes before the answer.

        Raises:
            ChildError: It ended without one.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(_ANSWER):
                return json.loads(line.removeprefix(_ANSWER))
            on_line(line)
        self._said.seek(0)
        raise ChildError(f"the measuring process ended early: {self._said.read()[-4000:]}")

    def end(self) -> None:
        """Let it go."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._said.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def answer_all(answer: Callable[[Any], Any]) -> None:
    """Answer every question on standard input, until there are no more."""
    for line in sys.stdin:
        print(_ANSWER + json.dumps(answer(json.loads(line))), flush=True)
