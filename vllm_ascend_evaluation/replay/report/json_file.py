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


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file at once: a reader sees what was there before, or all of the content.

    Raises:
        OSError: The folder cannot be written; what was there before is still there.
    """
    data = content.encode() if isinstance(content, str) else content
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_bytes(data)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
