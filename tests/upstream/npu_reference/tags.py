# SPDX-License-Identifier: Apache-2.0
"""Row tags: hooks that reference operators call with every row they read and write."""

from __future__ import annotations

import torch


def wrote(
    cache: torch.Tensor, blocks: torch.Tensor, rows: torch.Tensor, sources: torch.Tensor
) -> None:
    """Rows were written from tokens or rows of the step."""


def read(
    cache: torch.Tensor,
    blocks: torch.Tensor,
    rows: torch.Tensor,
    request: int,
    positions: torch.Tensor,
) -> None:
    """Rows of a request were read."""
