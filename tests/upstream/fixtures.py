# SPDX-License-Identifier: Apache-2.0
"""Fixtures and sizes of several checks, which run without conftests: they import them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import vllm_ascend.platform

# --block-size -> rows of C4/C128/indexer, window, C4 state, C128 state; indexer and other pages.
A3 = {
    128: ((128, 128, 8, 32), (16640, 131072)),
    64: ((64, 64, 4, 16), (8320, 65536)),
    32: ((32, 32, 2, 8), (4160, 32768)),
}
A5 = {
    128: ((128, 128, 8, 16), (16896, 81920)),
    64: ((64, 64, 4, 8), (8448, 40960)),
    32: ((32, 32, 2, 4), (4224, 20480)),
}


@pytest.fixture
def without_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let vLLM's configuration be made on a machine that has none."""
    platform = vllm_ascend.platform.NPUPlatform
    monkeypatch.setattr(platform, "check_and_update_config", lambda *_: None)
    monkeypatch.setattr(platform, "device_type", "cpu")


@pytest.fixture
def caplog_of_vllm(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """vLLM's loggers do not propagate."""
    logger = logging.getLogger("vllm")
    logger.addHandler(caplog.handler)
    logger.setLevel(logging.INFO)
    yield caplog
    logger.removeHandler(caplog.handler)


def splits_slots_by_the_groups_block(builder: type, rows: int) -> None:
    """Check that a metadata builder splits slots by its group's block, or the size it is given."""
    metadata = SimpleNamespace(num_reqs=1, query_start_loc=None)
    extra = {f"{kind}_ratio_to_sas_metadata": {} for kind in ("prefill", "decode", "common")}
    for size in (None, 16):
        bare = object.__new__(builder)
        bare.kv_cache_spec = SimpleNamespace(block_size=rows)
        given = {} if size is None else {"block_size": size}
        with pytest.raises(AttributeError):  # a bare builder gets no further
            bare.build(0, metadata, **extra, **given)
        assert vars(bare)["block_size"] == (size or rows)
