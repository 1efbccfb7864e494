# SPDX-License-Identifier: Apache-2.0
"""Runs a measuring tool as a process of its own, which never outlives its caller."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

_TICK_S = 2.0
_GRACE_S = 5.0
_LAST_LINES = 12


class ToolError(RuntimeError):
    """A measuring tool failed, or its results make no sense; the message names it and its log."""


def run_tool(command: Sequence[str], *, folder: Path, log: Path, tick: Callable[[], None]) -> None:
    """Run a command to its end.

    Args:
        command: Program and arguments.
        folder: Where it runs.
        log: Takes its output.
        tick: Called every other second meanwhile; shows progress.

    Raises:
        ToolError: It cannot be started or did not end with 0.
    """
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # tools start processes of their own
            )
        except OSError as error:
            raise ToolError(f"{command[0]} cannot be started: {error}") from error
        try:
            while _is_running(process):
                tick()
        finally:
            _end(process)
    if process.returncode:
        lines = log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        raise ToolError(
            f"{Path(command[0]).name} ended with {process.returncode}; {log} ends with\n"
            + "\n".join(lines)
        )


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_TICK_S)
    return process.returncode is None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the tool if it still runs, and everything that it started and left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
