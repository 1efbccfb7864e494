# SPDX-License-Identifier: Apache-2.0
"""Which options the command line has; the others have their defaults."""

from __future__ import annotations

import typer


def given_options(context: typer.Context) -> dict[str, str]:
    """Return how options are spelled that the command line has, by the names of their parameters.

    Args:
        context: Of the command.
    """

    def is_given(name: str) -> bool:
        source = context.get_parameter_source(name)
        return source is not None and source.name == "COMMANDLINE"

    spelled = {str(parameter.name): parameter.opts[0] for parameter in context.command.params}
    return {name: option for name, option in spelled.items() if is_given(name)}
