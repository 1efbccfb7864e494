# SPDX-License-Identifier: Apache-2.0
"""What was given is told from defaults, even if it says the same."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.testing import CliRunner

from vllm_ascend_evaluation.given_options import given_options


def test_given_options_are_those_of_the_command_line_as_they_are_spelled():
    found = {}
    app = typer.Typer()

    @app.command()
    def command(
        context: typer.Context,
        size: Annotated[int, typer.Option("--block-size")] = 1,
        other: int = 2,
    ) -> None:
        found.update(given_options(context))

    assert CliRunner().invoke(app, ["--block-size", "1"]).exit_code == 0
    assert found == {"size": "--block-size"}
