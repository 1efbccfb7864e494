# SPDX-License-Identifier: Apache-2.0
"""Files that a tool writes into docs/, and the check that they are up to date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def write_or_check(
    texts: Mapping[Path, str], arguments: Sequence[str] | None, *, description: str, make: str
) -> int:
    """Write files, or with ``--check`` among the arguments say which are stale.

    Args:
        texts: What each file must hold.
        arguments: Command line; the process's by default.
        description: What the command does.
        make: The make target that writes the files.

    Returns:
        The exit status: 1 if a file is stale.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="only say what is not up to date")
    if parser.parse_args(arguments).check:
        stale = [path for path, text in texts.items() if not _holds(path, text)]
        for path in stale:
            print(f"{path.relative_to(DOCS)} is stale: run `make {make}`", file=sys.stderr)
        return int(bool(stale))
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text
