# SPDX-License-Identifier: Apache-2.0
"""A model runner that makes no block copies is refused, by the check that ``vllm serve`` makes."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm.engine.arg_utils import EngineArgs

import vllm_ascend
from tests.release_marks import WHERE_THE_SECOND_RUNNER_RUNS
from vllm_ascend.prefix_cache_config import VARIABLES
from vllm_ascend_evaluation.models.tiny.maker import make_tiny_model

pytestmark = WHERE_THE_SECOND_RUNNER_RUNS

DSV4 = "VLLM_ASCEND_APPLY_DSV4_PATCH"
PARTIAL = "VLLM_ASCEND_DSV4_PARTIAL_HITS"
BEST = {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
V2 = "VLLM_USE_V2_MODEL_RUNNER"
COPIES = rf"^{V2}=1 cannot be used with hits that end inside blocks .* set {V2}=0 or {PARTIAL}=0$"
TABLES = rf"^{V2}=1 cannot be used with the KV cache layout .* \({DSV4}=1\), .*: set it to 0$"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runner") / "model"
    make_tiny_model(folder)
    return folder


@pytest.fixture
def configure(monkeypatch, model):
    """Return what ``vllm serve`` does with its arguments before it starts an engine."""
    vllm_ascend.register()

    def run(environment: dict[str, str], **options):
        for variable in VARIABLES:
            monkeypatch.delenv(variable.name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return EngineArgs(
            str(model), max_model_len=1024, dtype="float32", enforce_eager=True, **options
        ).create_engine_config()

    return run


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        ({PARTIAL: "1"}, COPIES),
        (BEST, COPIES),
        ({DSV4: "1"}, TABLES),
        ({DSV4: "1", PARTIAL: "1"}, TABLES),
        ({DSV4: "1", **BEST}, TABLES),
        ({DSV4: "1", "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "auto"}, TABLES),
    ],
)
def test_the_second_runner_is_refused(configure, environment, error):
    with pytest.raises(ValueError, match=error):
        configure({V2: "1", **environment})


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ({}, {}),
        ({**BEST, PARTIAL: "0"}, {}),
        (BEST, {"enable_prefix_caching": False}),
    ],
)
def test_where_it_has_nothing_to_copy_it_is_not(configure, environment, options):
    assert configure({V2: "1", **environment}, **options)


def test_the_first_one_is_not(configure):
    assert configure({V2: "0", DSV4: "1", **BEST})
