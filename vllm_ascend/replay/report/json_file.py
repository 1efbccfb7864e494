# SPDX-License-Identifier: Apache-2.0
"""Results as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol


class Report(Protocol):
    """What can be written as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        ...


def write_json(report: Report, path: Path) -> None:
    """Write the report; a reader never sees half of it.

    Raises:
        OSError: The folder cannot be written.
    """
    write_whole(path, json.dumps(report.to_dict(), indent=1) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a text file at once: a reader sees what was there before, or all of the text.

    Raises:
        OSError: The folder cannot be written.
    """
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
