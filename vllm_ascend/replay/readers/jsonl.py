# SPDX-License-Identifier: Apache-2.0
"""JSON lines with errors that name file and line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm_ascend.replay.trace import BadInputError


def read_records(path: Path, max_records: int | None = None) -> Iterator[tuple[str, dict]]:
    """Yield (place, record) per line of a JSONL file, gzip'd if its name ends in ``.gz``.

    ``place`` reads "FILE, line N" and is what errors begin with. Blank lines are skipped.

    Raises:
        BadInputError: The file cannot be read, or a line is not a JSON object.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    num_records = 0
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                if num_records == max_records:
                    return
                num_records += 1
                place = f"{path}, line {number}"
                yield place, _parse(line, place)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: cannot be read ({error})") from error


def _parse(line: str, place: str) -> dict:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadInputError(f"{place}: not valid JSON ({error})") from error
    if not isinstance(record, dict):
        raise BadInputError(f"{place}: expected a JSON object")
    return record


def integer(record: dict, name: str, place: str, *, minimum: int) -> int:
    """Return a field that must be a whole number from ``minimum`` up.

    Raises:
        BadInputError: It is missing or something else.
    """
    value: Any = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise BadInputError(f"{place}: {name} is {value!r}, expected a whole number >= {minimum}")
    return value


def integers(record: dict, name: str, place: str) -> list[int]:
    """Return a field that must be a list of whole numbers from 0 up, not empty.

    Raises:
        BadInputError: It is missing or something else.
    """
    value: Any = record.get(name)
    if (
        not isinstance(value, list)
        or not value
        or any(isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in value)
    ):
        raise BadInputError(f"{place}: {name} must be a non-empty list of whole numbers >= 0")
    return value


def check_order(arrival_ms: float, previous_ms: float, place: str) -> None:
    """Refuse a record that arrives before the one in front of it.

    Raises:
        BadInputError: It does.
    """
    if arrival_ms < previous_ms:
        raise BadInputError(f"{place}: timestamp {arrival_ms} lies before the previous one")
