# SPDX-License-Identifier: Apache-2.0
"""Tiny DeepSeek-V4 models with random weights, to try the cache without an NPU."""

from __future__ import annotations

from pathlib import Path


def refuse_existing(folder: Path) -> None:
    """Refuse a folder with a model, without importing torch.

    Raises:
        FileExistsError: A model lies in ``folder``.
    """
    if (folder / "config.json").exists():
        raise FileExistsError(f"{folder} holds a model already: name another folder")
