# SPDX-License-Identifier: Apache-2.0
"""How ``--help`` is laid out: plain text in which no word is broken or cut.

What ``--help`` shows is copied: syntaxes, variables, paths. Typer's own tables cut long words and
break them at hyphens.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import typer

_MOST_COLUMNS = 100
_LONGEST_NAME = 30
_GAP = 2
_MIN_TEXT_WIDTH = 20
# The formatter of the Click that this Typer brings.
_Formatter: Any = typer.Context.formatter_class


class WholeWords(_Formatter):
    """Lays out a help page; a word that is wider than its column stands out of it, whole."""

    def __init__(self, width: int | None = None, max_width: int | None = None) -> None:
        super().__init__(width=width, max_width=max_width or _MOST_COLUMNS)

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the line that says how a command is called, required arguments without braces."""
        args = args.replace("{", "").replace("}", "")
        self._write(f"{prefix or 'Usage: '}{prog} {args}", indent=self.current_indent)

    def write_text(self, text: str) -> None:
        """Write paragraphs."""
        for number, paragraph in enumerate(text.split("\n\n")):
            if number:
                self.write("\n")
            self._write(paragraph, indent=self.current_indent)

    def write_dl(
        self, rows: Sequence[tuple[str, str]], col_max: int = _LONGEST_NAME, col_spacing: int = _GAP
    ) -> None:
        """Write names with their texts beside them; below a name that is longer than most."""
        longest = max((len(name) for name, _ in rows if len(name) <= col_max), default=col_max)
        place = self.current_indent + longest + col_spacing
        for name, text in rows:
            start = f"{'':{self.current_indent}}{name}"
            if len(name) > longest or not text:
                self.write(f"{start}\n")
                start = ""
            if text:
                self._write(text, indent=place, start=start)

    def _write(self, text: str, *, indent: int, start: str = "") -> None:
        """Write a paragraph; ``start`` stands in front of it, within the indent."""
        width = max(self.width - indent, _MIN_TEXT_WIDTH)
        lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
        for number, line in enumerate(lines):
            before = start if number == 0 else ""
            self.write(f"{before:{indent}}{line}\n")


class HelpContext(typer.Context):
    """The context of a command whose help page has whole words."""

    formatter_class = WholeWords


def use_whole_words(command: Any) -> Any:
    """Give a command, and all commands below it, such help pages; return it.

    Args:
        command: Of Typer's; is changed.
    """
    for each in with_those_below(command):
        each.rich_markup_mode = None  # Typer's own tables otherwise
        each.context_class = HelpContext
        # A list of commands cuts what a command is for, but not what it has for such a list.
        each.short_help = " ".join((each.help or "").split("\n\n")[0].split())
    return command


def with_those_below(command: Any) -> Iterator[Any]:
    """Yield a command of Typer's and all commands below it."""
    yield command
    for child in getattr(command, "commands", {}).values():
        yield from with_those_below(child)
