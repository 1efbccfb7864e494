# SPDX-License-Identifier: Apache-2.0
"""Runs a measuring tool as a process of its own, which never outlives its caller."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from vllm_ascend.prefix_cache_config import process_environment
from vllm_ascend.server_access.access import API_KEY_VARIABLE

_TICK_S = 2.0
_GRACE_S = 5.0
# What tools write logs and configurations to.
_TEXTS = (".txt", ".log", ".out", ".py")


class ToolError(RuntimeError):
    """A measuring tool failed, or its results make no sense; the message names it and its log."""


def run_tool(
    command: Sequence[str],
    *,
    folder: Path,
    log: Path,
    tick: Callable[[], None],
    api_key: str | None = None,
) -> None:
    """Run a command to its end.

    Args:
        command: Program and arguments.
        folder: Where it runs.
        log: Takes its output; in the folder.
        tick: Called every other second meanwhile; shows progress.
        api_key: Handed over in the environment, which other users cannot list. Where the tool
            wrote it down, it is struck out when the tool has ended.

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
                env=None if api_key is None else _environment_with(api_key),
            )
        except OSError as error:
            raise ToolError(f"{command[0]} cannot be started: {error}") from error
        try:
            while _is_running(process):
                tick()
        finally:
            _end(process)
            if api_key is not None:
                _strike_out(api_key, folder)
    if process.returncode:
        raise ToolError(
            f"{Path(command[0]).name} ended with {process.returncode} and {_last_line(log)!r}: "
            f"see {log}"
        )


def _environment_with(api_key: str) -> dict[str, str]:
    return {**process_environment(), API_KEY_VARIABLE: api_key}


def _strike_out(secret: str, folder: Path) -> None:
    """Put ``***`` in place of a secret, in all logs and configurations below a folder."""
    for path in folder.rglob("*"):
        if path.suffix in _TEXTS and path.is_file() and secret.encode() in path.read_bytes():
            path.write_bytes(path.read_bytes().replace(secret.encode(), b"***"))


def _last_line(log: Path) -> str:
    """Return what a log says last; of a traceback, that is the error."""
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no word")


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
