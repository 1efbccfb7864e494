# SPDX-License-Identifier: Apache-2.0
"""JSON lines and their fields, with errors that name file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.readers.text import lines_of

MAX_INTEGER = 2**63 - 1


def read_records(path: Path, max_records: int | None = None) -> Iterator[tuple[str, dict]]:
    """Yield (place, record) per line of a JSONL file, gzip'd if its name ends in ``.gz``.

    ``place`` reads "FILE, line N" and is what errors begin with. Blank lines are skipped.

    Raises:
        BadInputError: The file cannot be read, or a line is not a JSON object.
    """
    num_records = 0
    for number, line in lines_of(path):
        if not line.strip():
            continue
        if num_records == max_records:
            return
        num_records += 1
        place = f"{path}, line {number}"
        try:
            record = json.loads(line.rstrip())
        except (ValueError, RecursionError) as error:
            raise not_json(error, path, number) from error
        if not isinstance(record, dict):
            raise BadInputError(f"{place}: expected a JSON object")
        yield place, record


def not_json(error: Exception, path: Path, line: int) -> BadInputError:
    """Return what to say of text that cannot be decoded.

    Args:
        error: As the decoder raised it.
        path: The file.
        line: Where the decoded text begins.
    """
    if isinstance(error, json.JSONDecodeError):
        place = f"{path}, line {line + error.lineno - 1}, column {error.colno}"
        is_short = error.pos >= len(error.doc)
        found = error.msg.removesuffix(" at").removesuffix(" starting")
        reason = "ends too early" if is_short else found
    else:
        place = f"{path}, line {line}"
        is_deep = isinstance(error, RecursionError)
        reason = "nested too deeply" if is_deep else "a number has too many digits"
    return BadInputError(f"{place}: not valid JSON ({reason})")


def integer(record: dict, name: str, place: str, *, minimum: int) -> int:
    """Return a field that must be a whole number from ``minimum`` up.

    Raises:
        BadInputError: It is missing or something else.
    """
    value: Any = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        found = "missing" if value is None else repr(value)
        raise BadInputError(f"{place}: {name} is {found}, expected a whole number >= {minimum}")
    return value


def integers(record: dict, name: str, place: str, *, maximum: int = MAX_INTEGER) -> list[int]:
    """Return a field that must be a list of whole numbers from 0 to ``maximum``, not empty.

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
    if max(value) > maximum:
        raise BadInputError(f"{place}: {name} has {max(value)}, expected at most {maximum}")
    return value
