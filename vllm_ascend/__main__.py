# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend``: the project's commands."""

from __future__ import annotations

import sys

try:
    import typer
except ImportError:
    sys.exit(
        "the commands need more libraries than serving: pip install vllm-ascend-backport[replay]"
    )

from vllm_ascend.replay.cli import replay

app = typer.Typer(
    help="A prefix cache for DeepSeek-V4 on Ascend, on unmodified vLLM 0.20.2.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(replay)


@app.callback()
def commands() -> None:
    """Keep the commands' names: with a single command typer would drop it."""


if __name__ == "__main__":
    app(prog_name="python -m vllm_ascend")
