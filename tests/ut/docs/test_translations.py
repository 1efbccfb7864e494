# SPDX-License-Identifier: Apache-2.0
"""A page in Chinese shows what its English page shows: blocks, rows of tables, anchors."""

from __future__ import annotations

import re

import pytest
from markdown.extensions.toc import slugify

from tests.pages import REPOSITORY, blocks

CHINESE = sorted(f"docs/{page.name}" for page in (REPOSITORY / "docs").glob("*.zh.md"))
_SHOWN = {"bash", "text", "yaml", "json"}
_ANCHOR = re.compile(r"^#+ .*\{ #(\S+) \}$", re.MULTILINE)
_SECTION = re.compile(r"^##+ (.*)$", re.MULTILINE)


def text(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def english(page: str) -> str:
    return page.replace(".zh.md", ".md")


def shown(page: str) -> list[tuple[str, str]]:
    return [(b.language, b.text) for b in blocks(page) if b.language in _SHOWN]


def test_there_are_pages_in_chinese() -> None:
    assert len(CHINESE) >= 5


@pytest.mark.parametrize("page", CHINESE)
def test_a_page_in_chinese_shows_the_blocks_of_its_english_page(page: str) -> None:
    assert (REPOSITORY / english(page)).is_file()
    assert shown(english(page)), "nothing is compared"
    assert shown(page) == shown(english(page))


@pytest.mark.parametrize("page", CHINESE)
def test_a_page_in_chinese_has_the_table_rows_of_its_english_page(page: str) -> None:
    def rows(path: str) -> int:
        return len(re.findall(r"^ *\|", text(path), re.MULTILINE))

    assert rows(page) == rows(english(page))


@pytest.mark.parametrize("page", [page for page in CHINESE if _ANCHOR.search(text(page))])
def test_a_link_to_a_section_works_in_both_languages(page: str) -> None:
    assert _ANCHOR.findall(text(page)) == [
        slugify(section, "-") for section in _SECTION.findall(text(english(page)))
    ]


@pytest.mark.parametrize("page", CHINESE)
def test_the_two_pages_lead_to_each_other(page: str) -> None:
    for here, other in ((page, english(page)), (english(page), page)):
        assert f"]({other.removeprefix('docs/')})" in text(here), here
