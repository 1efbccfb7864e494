# SPDX-License-Identifier: Apache-2.0
"""Tiny models, made once for all tests of a process."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.e2e.models.hugging_face import Reference
from vllm_ascend_evaluation.models.tiny.gemma import make_tiny_gemma
from vllm_ascend_evaluation.models.tiny.maker import VOCAB_SIZE, make_tiny_model

LONGEST_PROMPT = 4097


@pytest.fixture(scope="session")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny DeepSeek-V4."""
    folder = tmp_path_factory.mktemp("deepseek") / "model"
    make_tiny_model(folder)
    return folder


@pytest.fixture(scope="session")
def deepseek_that_selects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with an indexer that leaves rows out of prompts of 260 tokens, not of 8,200."""
    folder = tmp_path_factory.mktemp("deepseek-that-selects") / "model"
    make_tiny_model(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"index_topk": 64}))
    return folder


@pytest.fixture(scope="session")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Gemma-3: 5 sliding-window layers, 1 full."""
    folder = tmp_path_factory.mktemp("gemma")
    make_tiny_gemma(folder)
    return folder


@pytest.fixture(scope="session")
def text() -> list[int]:
    """Token ids that no two places repeat for long; prompts are cut from them."""
    rng = random.Random(0)
    return [rng.randrange(3, VOCAB_SIZE) for _ in range(LONGEST_PROMPT)]


@pytest.fixture(scope="session")
def reference(deepseek: Path) -> Reference:
    """Hugging Face's DeepSeek-V4 with the same weights."""
    return Reference(deepseek)
