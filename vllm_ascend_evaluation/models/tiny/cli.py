# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend tiny-model``: a model to try the cache with, on any machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vllm_ascend_evaluation.models.tiny import refuse_existing


def tiny_model(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the model.")],
    seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0,
) -> None:
    """Write a tiny DeepSeek-V4 with random weights: 6 layers, 2 of each kind, and a tokenizer."""
    # Before torch is imported, which takes seconds.
    if folder.exists() and not folder.is_dir():
        typer.secho(f"error: DIR {folder}: is not a folder", err=True, fg=typer.colors.RED)
        raise typer.Exit(2)
    try:
        refuse_existing(folder)
        from vllm_ascend_evaluation.models.tiny.maker import make_tiny_model

        make_tiny_model(folder, seed)
    except OSError as error:
        typer.secho(f"error: {error}", err=True, fg=typer.colors.RED)
        raise typer.Exit(2) from error
    num_bytes = sum(file.stat().st_size for file in folder.iterdir())
    typer.echo(f"written: {folder} ({num_bytes / 2**20:.1f} MiB); serve it as the README shows")
