# SPDX-License-Identifier: Apache-2.0
"""Processes of the same interpreter that are asked what only a vLLM process can tell."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Importing vLLM takes seconds; on a cold disk of a container, a minute or two.
TIMEOUT_SECONDS = 600
# `vllm serve` does not look for modules in the current folder.
WITHOUT_CURRENT_FOLDER = "import sys; sys.path[:] = [p for p in sys.path if p]; "
_LAST_LINES = 5
_FIND_PACKAGE = (
    f"{WITHOUT_CURRENT_FOLDER}import importlib.util, json; "
    "found = importlib.util.find_spec(sys.argv[1]); "
    "json.dump({'origin': found and found.origin}, open(sys.argv[2], 'w'))"
)


_running: set[subprocess.Popen[str]] = set()
_is_over = threading.Event()


@contextlib.contextmanager
def end_together() -> Iterator[None]:
    """Let an exception that leaves the block, such as an interrupt, end all that threads ask.

    A terminal's interrupt does not reach these processes: each leads a group of its own, so that
    what it starts can be ended with it.
    """
    _is_over.clear()
    try:
        yield
    except BaseException:
        _is_over.set()
        for process in tuple(_running):
            _end(process)
        raise


def ask(
    arguments: Sequence[str], *, environ: Mapping[str, str], timeout: float = TIMEOUT_SECONDS
) -> dict[str, Any]:
    """Run a child that writes one JSON document to the file named by its last argument.

    Args:
        arguments: Of the interpreter, without that file.
        environ: The child's environment.
        timeout: In seconds.

    Returns:
        What it wrote last; with ``"died"``, in words, if it ended otherwise than with 0.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        try:
            result = _run([sys.executable, *arguments, str(answer)], environ, timeout)
        except (OSError, subprocess.TimeoutExpired) as error:
            return {**_read(answer), "died": str(error)}
        answers = _read(answer)
    if result.returncode or not answers:
        lines = (result.stderr.strip() or result.stdout.strip()).splitlines()[-_LAST_LINES:]
        answers["died"] = f"exit code {result.returncode}: {' '.join(lines) or 'nothing said'}"
    return answers


def _run(
    command: Sequence[str], environ: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; what ends the wait ends it and all that it has started.

    Raises:
        OSError: It cannot be started.
        TimeoutExpired: It did not end in time.
    """
    process = subprocess.Popen(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    _running.add(process)
    try:
        if _is_over.is_set():  # before it could be seen among those that run
            _end(process)
        output, error = process.communicate(timeout=timeout)
    finally:
        _running.discard(process)
        _end(process)
    return subprocess.CompletedProcess(command, process.returncode, output, error)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _read(answer: Path) -> dict[str, Any]:
    try:
        return json.loads(answer.read_text())
    except (OSError, json.JSONDecodeError):
        return {}


def find_package(name: str, environ: Mapping[str, str]) -> Path | None:
    """Return the folder of the package that serving would import; nothing is imported."""
    origin = ask(["-c", _FIND_PACKAGE, name], environ=environ).get("origin")
    return Path(origin).parent if origin else None
