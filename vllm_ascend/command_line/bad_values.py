# SPDX-License-Identifier: Apache-2.0
"""The error of an option whose value is out of its range or no number.

It is one line with the option, the value and what is allowed. Typer's has three, and no value.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import typer

from vllm_ascend.command_line.help_pages import with_those_below

_EXIT_BAD_INPUT = 2
# How the library begins that checks values for Typer.
_ITS_SUBJECT = "Input should"


def name_bad_values(command: Any) -> Any:
    """Give a command, and all commands below it, such errors; return it.

    Args:
        command: Of Typer's; is changed.
    """
    for each in with_those_below(command):
        for parameter in each.params:
            parameter.handle_parse_result = _naming(parameter, parameter.handle_parse_result)
    return command


def _naming(parameter: Any, read: Callable[..., Any]) -> Callable[..., Any]:
    """Return what reads a parameter and ends the command if its value cannot be used."""

    def read_or_end(context: Any, given: dict[str, Any], rest: list[str]) -> Any:
        values = given.get(parameter.name)
        # One by one, because Typer does not say which of several it means.
        parts = [[value] for value in values] if isinstance(values, list | tuple) else []
        for part in (*parts, values):
            with _bad_value_ends(parameter, part):
                result = read(context, {**given, parameter.name: part}, rest)
        return result

    return read_or_end


@contextlib.contextmanager
def _bad_value_ends(parameter: Any, value: Any) -> Iterator[None]:
    try:
        yield
    except typer.BadParameter as error:
        if value is None:
            raise  # it was not given, and must be
        text = value[0] if isinstance(value, list | tuple) else value
        typer.echo(f"error: {_say(parameter, text, error.message)}", err=True)
        raise typer.Exit(_EXIT_BAD_INPUT) from error


def _say(parameter: Any, value: str, problem: str) -> str:
    name = "/".join(parameter.opts) if parameter.param_type_name == "option" else parameter.name
    if problem.startswith(_ITS_SUBJECT):
        problem = f"it must{problem.removeprefix(_ITS_SUBJECT)}"
    return f"{name} {shlex.quote(value)}: {problem}"
