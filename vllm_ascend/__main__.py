# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend``: the project's commands, each imported when it is asked for."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from importlib.util import find_spec
from typing import Any

try:
    import typer
except ImportError:
    sys.exit(
        "the commands need more libraries than serving: pip install vllm-ascend-backport[replay]"
    )

# Some need no vLLM, and must not import it: the overlay runs before anything is in its place.
COMMANDS = {
    "doctor": "vllm_ascend.doctor.cli:doctor",
    "overlay": "vllm_ascend.overlay.cli:app",
    "regress": "vllm_ascend.regress.cli:regress",
    "replay": "vllm_ascend.replay.cli:replay",
    "sweep": "vllm_ascend.replay.sweep:sweep",
    "traffic": "vllm_ascend.replay.traffic:traffic",
    "memory-curve": "vllm_ascend.replay.memory_curve:memory_curve",
    "prefix-curve": "vllm_ascend.replay.prefix_curve:prefix_curve",
    "tiny-model": "vllm_ascend.models.tiny.cli:tiny_model",
}

_EXIT_BAD_INPUT = 2


class _LazyCommands(typer.core.TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands that are there: over a checkout, the CPU's models are not."""
        return [name for name, target in COMMANDS.items() if _exists(target.partition(":")[0])]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, typer.Typer):
            function, command = command, _typer()
            command.command(cmd_name)(function)
        return typer.main.get_command(command)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; a file that cannot be used ends it with one line."""
        try:
            return super().invoke(ctx)
        except OSError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(_EXIT_BAD_INPUT) from error


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


_typer = partial(typer.Typer, add_completion=False, pretty_exceptions_enable=False)
app = _typer(
    cls=_LazyCommands,
    help="A prefix cache for DeepSeek-V4 on Ascend, on unmodified vLLM 0.20.2.",
    no_args_is_help=True,
)


@app.callback()
def _commands() -> None:
    """A group has to have a function."""


if __name__ == "__main__":
    app(prog_name="python -m vllm_ascend")
