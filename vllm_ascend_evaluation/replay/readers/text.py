# SPDX-License-Identifier: Apache-2.0
"""Text files line by line: UTF-8 with or without a byte order mark, gzip'd if so named."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from vllm_ascend.command_line.bad_input import BadInputError


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line) of a file, gzip'd if its name ends in ``.gz``.

    Raises:
        BadInputError: The file cannot be read.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    with reading(path), opener(path, "rt", encoding="utf-8-sig") as file:
        yield from enumerate(file, 1)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Say in one line that a file cannot be read.

    Raises:
        BadInputError: In place of what reading it raises.
    """
    try:
        yield
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise BadInputError(f"{path}: cannot be read ({error})") from error
