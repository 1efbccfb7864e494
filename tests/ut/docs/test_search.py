# SPDX-License-Identifier: Apache-2.0
"""What is typed into the site's search box finds every page that has it, in both languages."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.ut.docs.browser import Search

ENGLISH = (
    *("granule", "granules", "eviction", "evictions", "hit", "hits", "metrics", "retention"),
    *("connectors", "preemption", "doctor", "overlay", "tails", "tier", "VLLM_ASCEND_SPARE_TAILS"),
)
CHINESE = ("提示", "命中", "前缀", "调度", "驱逐", "缓存", "块", "覆盖", "补丁", "窗口")
ABSENT = "xylophone"


class _Text(HTMLParser):
    """What a reader sees of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self._parts: list[str] = []
        self.feed(html)
        self.close()

    def handle_data(self, data: str) -> None:
        self._parts.append(data)

    def __str__(self) -> str:
        return " ".join(self._parts)


@pytest.fixture(scope="module")
def search(site: Path) -> Search:
    return Search(site, (*ENGLISH, *CHINESE, ABSENT))


def pages_with(search: Search, word: str) -> set[str]:
    """Return the pages on which a word starts with this one, read without the search's library.

    Chinese is written without blanks: there it is enough that a page has the word as one, which the
    index marks by blanks of no width.
    """
    separator = search.index["config"]["separator"]
    wanted = [part.lower() for part in re.split(separator, word) if part]
    found = set()
    for entry in search.index["docs"]:
        words = re.split(separator, f"{_Text(entry['title'])} {_Text(entry['text'])}".lower())
        if all(any(word.startswith(part) for word in words) for part in wanted):
            found.add(entry["location"].partition("#")[0])
    return found


@pytest.mark.parametrize("word", ENGLISH + CHINESE)
def test_every_page_that_has_a_word_is_found(search, word):
    expected = pages_with(search, word)
    assert expected, f"no page has {word}: ask for another one"
    assert expected <= set(search.pages(word))


def test_what_no_page_has_is_not_found(search):
    assert search.pages(ABSENT) == []


def test_the_page_about_a_word_comes_first(search):
    assert search.pages("metrics")[0] == "metrics.html"
    assert search.pages("doctor")[0] == "doctor.html"
