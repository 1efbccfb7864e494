# SPDX-License-Identifier: Apache-2.0
"""On every release: ``vllm serve`` with the profile, one prompt twice, and what the doctor says."""

from __future__ import annotations

import subprocess
import sys

from tests.e2e.server.server import BEST, cached, longest_hit, serve, tokens
from vllm_ascend.prefix_cache_config import child_environment
from vllm_ascend.releases import running_release
from vllm_ascend_evaluation.models.tiny.maker import make_tiny_model


def test_one_prompt_hits_when_it_comes_again(tmp_path):
    make_tiny_model(tmp_path / "model")
    with serve(tmp_path / "model", tmp_path / "log", BEST) as server:
        prompt = tokens(1000, seed=0)
        first, second = server.complete(prompt), server.complete(prompt)
    assert (cached(first), cached(second)) == (0, longest_hit(len(prompt)))
    assert first["choices"][0]["token_ids"] == second["choices"][0]["token_ids"]


def test_the_doctor_finds_nothing_wrong(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "vllm_ascend", "doctor"],
        env=child_environment(BEST),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"vLLM {running_release().vllm}" in result.stdout
