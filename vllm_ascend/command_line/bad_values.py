# SPDX-License-Identifier: Apache-2.0
"""The error of an option whose value is out of its range or no number.

It is one line with the option, the value and what is allowed. Typer's has three, and no value.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
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
        parts = [[value] for value in values] if isinstance(values, list | tuple) else [values]
        for part in parts if values is not None else ():
            try:
                read(context, {**given, parameter.name: part}, rest)
            except typer.BadParameter as error:
                value = part[0] if isinstance(part, list) else part
                typer.echo(f"error: {_say(parameter, value, error.message)}", err=True)
                raise typer.Exit(_EXIT_BAD_INPUT) from error
        return read(context, given, rest)

    return read_or_end


def _say(parameter: Any, value: str, problem: str) -> str:
    name = "/".join(parameter.opts) if parameter.param_type_name == "option" else parameter.name
    if problem.startswith(_ITS_SUBJECT):
        problem = f"it must{problem.removeprefix(_ITS_SUBJECT)}"
    return f"{name} {shlex.quote(value)}: {problem}"
