# SPDX-License-Identifier: Apache-2.0
"""JSON objects of a file, one a line or in an array, with the line where each begins."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.readers.jsonl import not_json, read_records
from vllm_ascend_evaluation.replay.readers.text import lines_of, reading

_BLANKS = re.compile(r"\s*")


def first_character(path: Path) -> str:
    """Return the first character of a file that is not blank, empty if there is none.

    Raises:
        BadInputError: The file cannot be read.
    """
    texts = (line.strip() for _, line in lines_of(path))
    return next((text[0] for text in texts if text), "")


def read_documents(path: Path, max_records: int | None = None) -> Iterator[tuple[str, dict]]:
    """Yield (place, object) of JSON lines, or of one array of objects.

    Raises:
        BadInputError: The file cannot be read, or something in it is no JSON object.
    """
    if first_character(path) == "[":
        return islice(_read_array(path), max_records)
    return read_records(path, max_records)


def _read_array(path: Path) -> Iterator[tuple[str, dict]]:
    """Decode one element after the other: of a file of gigabytes the first ones come at once."""
    opener = gzip.open if path.suffix == ".gz" else open
    with reading(path), opener(path, "rt", encoding="utf-8-sig") as file:
        text = file.read()
    decode = json.JSONDecoder().raw_decode
    at = _after_blanks(text, text.index("[") + 1)
    line, counted_to = 1, 0
    while text[at : at + 1] != "]":
        line += text.count("\n", counted_to, at)
        counted_to = at
        place = f"{path}, line {line}"
        try:
            element, end = decode(text, at)
        except json.JSONDecodeError as error:  # counts lines from the start of the text
            raise not_json(error, path, 1) from error
        except (ValueError, RecursionError) as error:
            raise not_json(error, path, line) from error
        if not isinstance(element, dict):
            raise BadInputError(f"{place}: expected a JSON object")
        yield place, element
        at = _after_blanks(text, end)
        if text[at : at + 1] == ",":
            at = _after_blanks(text, at + 1)
        elif text[at : at + 1] != "]":
            raise not_json(json.JSONDecodeError("Expecting ',' or ']'", text, at), path, 1)
    at = _after_blanks(text, at + 1)
    if at < len(text):
        raise not_json(json.JSONDecodeError("more behind the array", text, at), path, 1)


def _after_blanks(text: str, at: int) -> int:
    match = _BLANKS.match(text, at)
    assert match is not None, "nothing is a match, too"
    return match.end()
