# SPDX-License-Identifier: Apache-2.0
"""The table of mechanisms that are known under another name says where each really is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def rows() -> list[tuple[list[str], list[Path]]]:
    """Return for each row our names, and the files that it points at."""
    text = (ROOT / "docs" / "design-record.md").read_text()
    section = text.split("## Known under another name", 1)[1]
    cells = [line.split("|")[3:5] for line in section.splitlines() if line.startswith("| ")][1:]
    return [
        (
            re.findall(r"`(\w+)`", here),
            [ROOT / "vllm_ascend" / f for f in re.findall(r"`([\w/]+\.py)`", files)],
        )
        for here, files in cells
    ]


@pytest.mark.parametrize(("names", "files"), rows(), ids=lambda value: str(value[0]))
def test_every_name_is_in_one_of_the_files(names: list[str], files: list[Path]) -> None:
    assert names and files
    text = "\n".join(path.read_text() for path in files)
    for name in names:
        assert re.search(rf"\b{name}\b", text), f"{name} is in none of {files}"
    for path in files:
        assert any(name in path.read_text() for name in names), f"{path} has none of {names}"


def test_the_table_is_found() -> None:
    assert len(rows()) >= 20
