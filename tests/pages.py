# SPDX-License-Identifier: Apache-2.0
"""What the pages show in blocks: commands to type, and what they print."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

REPOSITORY = Path(__file__).parents[1]
# Where somebody who has never seen the project begins to type.
FIRST_PAGES = ("README.md", "docs/index.md", "docs/quick-start.md", "docs/quick-start.zh.md")
_ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=\S*")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: Its path in the repository.
        line: Where it begins, counted from 1.
        language: ``bash`` for what is typed, ``text`` for what is printed, ...
    """

    page: str
    line: int
    language: str
    text: str

    def commands(self) -> list[str]:
        """Return the commands of a ``bash`` block, continued lines joined, comments taken off.

        A block that defines a function is one command. Lines of ``NAME=value`` alone are settings
        for a manifest and no commands.
        """
        if self.language != "bash":
            return []
        if re.search(r"^\w+\(\) \{", self.text, re.MULTILINE):
            return [self.text]
        lines = re.sub(r" *\\\n *", " ", self.text).splitlines()
        commands = [re.sub(r"(^| +)#.*", "", line).strip() for line in lines]
        return [
            command
            for command in commands
            if command and not all(_ASSIGNMENT.fullmatch(word) for word in command.split())
        ]

    def settings(self) -> list[str]:
        """Return the names that are set by lines of ``NAME=value`` alone."""
        lines = [line.split() for line in self.text.splitlines() if self.language == "bash"]
        only = [words for words in lines if all(_ASSIGNMENT.fullmatch(word) for word in words)]
        return [word.partition("=")[0] for words in only for word in words]


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in its order."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    fences = [token for token in MarkdownIt().parse(text) if token.type == "fence" and token.map]
    return [Block(page, fence.map[0] + 1, fence.info.strip(), fence.content) for fence in fences]
