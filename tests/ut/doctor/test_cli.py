# SPDX-License-Identifier: Apache-2.0
"""The command itself: exit codes, JSON on standard output and nothing else, 80 columns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_ascend.prefix_cache_config import child_environment

REPOSITORY = Path(__file__).parents[3]
BEST = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1", "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}


def doctor(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vllm_ascend", "doctor", *arguments],
        env=child_environment(environ),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    config = {
        "model_type": "deepseek_v4",
        "num_hidden_layers": 3,
        "compress_ratios": [0, 4, 128],
        "max_position_embeddings": 131_072,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_what_is_right_is_one_json_document_and_exit_code_0(model):
    result = doctor("--json", "--model", str(model), "--num-speculative-tokens", "1", **BEST)
    assert result.returncode == 0, result.stdout + result.stderr
    told = json.loads(result.stdout)
    assert (told["verdict"], told["exit_code"], told["findings"]) == ("right", 0, [])
    assert told["layout"]["smallest_prefix"] == 256
    assert {patch["status"] for patch in told["patches"]} <= {
        "applied",
        "not needed",
        "overridden",
        "left to vLLM",
        "not available",
    }
    assert {"target", "feature", "status", "reason"} == set(told["patches"][0])
    assert len(told["variables"]) >= 10


def test_what_is_wrong_is_text_of_80_columns_and_exit_code_1():
    result = doctor(VLLM_ASCEND_DSV4_PARTIAL_HITS="yes", VLLM_ASCEND_DSV4_PARTIAL_HIT="1")
    assert result.returncode == 1, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "serving would be wrong (2 wrong, 0 warnings)"
    assert "\x1b" not in result.stdout
    assert "VLLM_ASCEND_DSV4_PARTIAL_HITS='yes' is invalid" in result.stdout
    assert "-> the nearest name is VLLM_ASCEND_DSV4_PARTIAL_HITS" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "/nowhere"), "--model /nowhere: not a readable config.json"),
        (("--checkout", "/nowhere"), "--checkout /nowhere: is not a checkout of vllm-ascend"),
        (("--model", "MODEL", "--kv-transfer-config", "[]"), "expected a JSON object"),
        (("--model", "MODEL", "--kv-transfer-config", "{"), "not JSON"),
        (("--kv-transfer-config", "{"), "--kv-transfer-config {: not JSON"),
        (("--kv-transfer-config", "[]"), "expected a JSON object"),
        (("--model", "README.md"), "not a readable config.json"),
        (("--block-size", "0"), "--block-size"),
        (("--", "vllm", "bench"), "the command behind --: 'vllm' is not `vllm serve ...`"),
        (("--", "bash", "-c", "vllm serve 'm"), "the command behind --: No closing quotation"),
        (("--container", "vllm"), "--container vllm: needs --manifest"),
        (("--manifest", "/nowhere"), "--manifest /nowhere: not a readable YAML file"),
        (("--manifest", "mkdocs.yml"), "--manifest mkdocs.yml: no container runs `vllm serve`"),
        (("--manifest", "f", "--", "vllm", "serve"), "--manifest f: leave it out, or the command"),
        (("--block-size", "64", "--", "vllm", "serve", "m"), "--block-size: the serving command"),
        (("--model", "/nowhere", "--", "vllm", "serve", "m"), "not a readable config.json"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(model, arguments, message):
    result = doctor(*(str(model) if word == "MODEL" else word for word in arguments))
    assert result.returncode == 2
    assert result.stdout == ""
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
