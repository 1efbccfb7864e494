# SPDX-License-Identifier: Apache-2.0
"""Finds ``vllm serve`` in what a container or a shell is told to run; needs no vLLM.

What the flags mean is not decided here: vLLM's own parser reads them.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple

SERVE = ("vllm", "serve")
_API_SERVER = "vllm.entrypoints.openai.api_server"
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
# What a shell runs to get a word; nobody runs it here.
_SUBSTITUTION = re.compile(r"\$\([^()]*\)|`[^`]*`")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")
_SHELLS = ("sh", "bash", "dash", "ash", "zsh")
_ENDS_COMMAND = frozenset(";&|\n")
_REDIRECTS = frozenset("<>")


class Container(NamedTuple):
    """What runs something.

    Attributes:
        name: Of the container; empty for a command that was typed in.
        words: The command line, e.g. ``["bash", "-c", "vllm serve ..."]``.
        environ: The environment of it.
    """

    name: str
    words: list[str]
    environ: Mapping[str, str]


@dataclass(frozen=True)
class ServingCommand:
    """A ``vllm serve`` and the environment that it runs in.

    Attributes:
        flags: What stands behind ``vllm serve``.
        environ: The whole environment.
        container: Name of what runs it; empty for one that was typed in.
    """

    flags: tuple[str, ...]
    environ: Mapping[str, str]
    container: str = ""

    def __str__(self) -> str:
        return shlex.join((*SERVE, *self.flags))


def find_serving_command(container: Container) -> ServingCommand | None:
    """Return the ``vllm serve`` that a command line comes to; ``None`` if it comes to none.

    Assignments in front of it, and exports of a shell's script, are part of its environment.

    Raises:
        ValueError: A shell's script has a quotation without an end.
    """
    environ = dict(container.environ)
    for command in _simple_commands(container.words):
        if command[:1] == ["export"]:
            environ.update(_assignments(command[1:], environ))
            continue
        flags = _flags_of_serve(command)
        if flags is not None:
            front = command[: len(command) - len(flags)]
            environ.update(_assignments(front, environ))
            expanded = tuple(_expanded(flag, environ) for flag in flags)
            return ServingCommand(expanded, environ, container.name)
        if all(map(_ASSIGNMENT.fullmatch, command)):  # a line of nothing else
            environ.update(_assignments(command, environ))
    return None


def _simple_commands(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the commands of a command line: itself, or those of the script that a shell is told."""
    is_shell = bool(words) and PurePath(words[0]).name in _SHELLS
    options = [i for i, word in enumerate(words) if re.fullmatch(r"-[a-z]*c[a-z]*", word)]
    if not is_shell or not options or options[0] + 1 >= len(words):
        yield list(words)
        return
    yield from _split(words[options[0] + 1])


def _split(script: str) -> Iterator[list[str]]:
    text = _SUBSTITUTION.sub("$_", _COMMENT.sub("", script.replace("\\\n", " ")))
    lexer = shlex.shlex(text, posix=True, punctuation_chars="".join(_ENDS_COMMAND | _REDIRECTS))
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    command: list[str] = []
    is_file = False  # the next word is what a stream is redirected to
    for word in lexer:
        if set(word) <= _ENDS_COMMAND:
            if command:
                yield command
            command = []
        elif set(word) <= _ENDS_COMMAND | _REDIRECTS:  # ">", "2>&1" without its numbers
            is_file = True
            if command and command[-1].isdigit():
                command.pop()
        elif is_file:
            is_file = False
        else:
            command.append(word)
    if command:
        yield command


def _flags_of_serve(command: list[str]) -> list[str] | None:
    """Return what stands behind ``vllm serve``, however that is spelled, if it is there."""
    for i, (first, second) in enumerate(itertools.pairwise(command)):
        if (PurePath(first).name, second) == SERVE or (first, second) == ("-m", _API_SERVER):
            return command[i + 2 :]
    return None


def _assignments(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    found = (_ASSIGNMENT.fullmatch(word) for word in words)
    return {match[1]: _expanded(match[2], environ) for match in found if match}


def _expanded(word: str, environ: Mapping[str, str]) -> str:
    """Put values in the places of a shell's variables; one that is not known stays as it is."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[2], match[3]
        return environ.get(name) or (match[0] if default is None else default)

    return _VARIABLE.sub(value, word)
