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

from vllm_ascend.models.tiny.cli import tiny_model
from vllm_ascend.replay.cli import replay
from vllm_ascend.replay.memory_curve import memory_curve
from vllm_ascend.replay.prefix_curve import prefix_curve
from vllm_ascend.replay.sweep import sweep

app = typer.Typer(
    help="A prefix cache for DeepSeek-V4 on Ascend, on unmodified vLLM 0.20.2.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (replay, sweep, memory_curve, prefix_curve, tiny_model):
    app.command()(command)


if __name__ == "__main__":
    app(prog_name="python -m vllm_ascend")
