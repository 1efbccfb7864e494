# SPDX-License-Identifier: Apache-2.0
"""Processes of the same interpreter that are asked what only a vLLM process can tell."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
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
            result = subprocess.run(
                [sys.executable, *arguments, str(answer)],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return {**_read(answer), "died": str(error)}
        answers = _read(answer)
    if result.returncode or not answers:
        lines = (result.stderr.strip() or result.stdout.strip()).splitlines()[-_LAST_LINES:]
        answers["died"] = f"exit code {result.returncode}: {' '.join(lines) or 'nothing said'}"
    return answers


def _read(answer: Path) -> dict[str, Any]:
    try:
        return json.loads(answer.read_text())
    except (OSError, json.JSONDecodeError):
        return {}


def find_package(name: str, environ: Mapping[str, str]) -> Path | None:
    """Return the folder of the package that serving would import; nothing is imported."""
    origin = ask(["-c", _FIND_PACKAGE, name], environ=environ).get("origin")
    return Path(origin).parent if origin else None
