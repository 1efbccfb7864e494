# SPDX-License-Identifier: Apache-2.0
"""Fixtures of several checks; imported where they are used, as checks run without conftests."""

from __future__ import annotations

import pytest

import vllm_ascend.platform


@pytest.fixture
def without_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let vLLM's configuration be made on a machine that has none."""
    platform = vllm_ascend.platform.NPUPlatform
    monkeypatch.setattr(platform, "check_and_update_config", lambda *_: None)
    monkeypatch.setattr(platform, "device_type", "cpu")
