# SPDX-License-Identifier: Apache-2.0
"""How commands end: exit codes, and one sentence for input that cannot be used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import typer
from rich.console import Console
from rich.markup import escape

from vllm_ascend.command_line.bad_input import BadInputError

EXIT_VIOLATION = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

# emoji=False: "2:100:50:1" is a workload, not a picture.
error_console = Console(stderr=True, emoji=False)


def say(what: str, text: str) -> None:
    """Tell the user something beside the results.

    Args:
        what: Its kind, with rich's markup.
        text: Taken as it is.
    """
    # soft_wrap: a terminal wraps by itself, and a file is to have it in one line.
    error_console.print(f"{what} {escape(text)}", highlight=False, soft_wrap=True)


@contextlib.contextmanager
def bad_input_ends() -> Iterator[None]:
    """End the command with one sentence and its exit code if what the user gave cannot be used.

    Raises:
        typer.Exit: In place of ``BadInputError`` and ``OSError``.
    """
    try:
        yield
    except (BadInputError, OSError) as error:
        say("[bold red]error:[/]", str(error))
        raise typer.Exit(EXIT_BAD_INPUT) from error
