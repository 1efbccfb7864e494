# SPDX-License-Identifier: Apache-2.0
"""``--help`` at any width: no word of it is broken or cut, so that all of it can be copied."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

from vllm_ascend.__main__ import app


def commands() -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield (path, command) of all commands and groups."""

    def walk(command, path):
        yield path, command
        context = typer.Context(command)
        for name in getattr(command, "list_commands", lambda _: ())(context):
            yield from walk(command.get_command(context, name), (*path, name))

    return walk(typer.main.get_command(app), ())


ALL = dict(commands())


def help_of(path: tuple[str, ...], columns: int) -> str:
    result = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.output


def texts(command) -> Iterator[str]:
    """Yield what the sources say about a command: its docstring and the help of its options."""
    yield command.help or ""
    for parameter in command.params:
        yield from (option for option in parameter.opts if option.startswith("-"))
        yield getattr(parameter, "help", None) or ""


@pytest.mark.parametrize("columns", [50, 80, 300])
@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_word_stands_whole(path, columns):
    # Names of the same option stand behind one another, with commas.
    words = help_of(path, columns).split()
    shown = {*words, *(word.removesuffix(",") for word in words)}
    wanted = {word for text in texts(ALL[path]) for word in text.split()}
    assert wanted - shown == set()


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_it_fits_the_terminal(path, columns):
    """A line is longer than the terminal only if a single word is."""
    for line in help_of(path, columns).splitlines():
        indent = len(line) - len(line.lstrip())
        assert len(line) <= columns or len(line.split()) == 1, (indent, line)


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_arguments_stand_without_braces(path):
    """Typer puts what a command must be given into braces, which a reader would type."""
    usage, _, _ = help_of(path, 300).partition("\n\n")
    assert not set("{}") & set(usage), usage


def test_the_list_of_commands_says_of_each_what_its_own_help_begins_with():
    shown = " ".join(help_of((), 80).split())
    for path, command in ALL.items():
        if len(path) == 1:
            first = " ".join(command.help.split("\n\n")[0].split())
            assert f"{path[0]} {first}" in shown


def test_into_a_pipe_the_syntaxes_are_whole():
    """As with ``... --help | grep``."""
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [sys.executable, "-m", "vllm_ascend", "replay", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    for syntax in ("REQUESTS:INPUT:SHARED:OUTPUT", "PREFIXESxROUNDS:SHARED:OWN:OUTPUT"):
        assert syntax in result.stdout
    assert "NAME:VARIABLE=VALUE,..." in result.stdout
    assert "…" not in result.stdout
