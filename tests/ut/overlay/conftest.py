# SPDX-License-Identifier: Apache-2.0
"""A miniature checkout for every test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ut.overlay.miniature import know, make_checkout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A known checkout without an overlay."""
    root = make_checkout(tmp_path / "vllm-ascend")
    know(root, monkeypatch)
    return root
