# SPDX-License-Identifier: Apache-2.0
"""``doctor`` with a serving command or a manifest, as one types it: the whole way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.release_marks import WHERE_BLOCKS_COUNT_ROWS
from tests.ut.core.checks.test_early_check import SHAPE
from tests.ut.doctor.test_cli import BEST, doctor


@pytest.fixture
def whole_model(tmp_path: Path) -> Path:
    """The shape of a DeepSeek-V4 with one MTP layer, for which vLLM makes a configuration."""
    shape = {**SHAPE, "num_nextn_predict_layers": 1, "compress_ratios": [0, 4, 128, 0]}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    return tmp_path


def test_a_serving_command_is_judged_as_it_stands(whole_model):
    drafts = '{"method": "mtp", "num_speculative_tokens": 1}'
    command = ("vllm", "serve", str(whole_model), "--block-size", "128", "--skip-tokenizer-init")
    result = doctor(
        "--json", "--", *command, "--speculative-config", drafts,
        VLLM_CPU_KVCACHE_SPACE="1", **BEST,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    told = json.loads(result.stdout)
    assert told["findings"] == []
    assert told["command"]["text"].startswith(f"vllm serve {whole_model} --block-size 128")
    assert (told["layout"]["block_size"], told["layout"]["smallest_prefix"]) == (128, 256)


@WHERE_BLOCKS_COUNT_ROWS
def test_a_manifest_is_judged_with_its_own_environment(whole_model, tmp_path):
    transfer = json.dumps({"kv_connector": "ExampleConnector", "kv_role": "kv_both"})
    command = ["vllm", "serve", "/models/m", "--skip-tokenizer-init"]
    service = {
        "environment": {**BEST, "VLLM_CPU_KVCACHE_SPACE": "1"},
        "command": [*command, "--kv-transfer-config", transfer],
    }
    manifest = tmp_path / "compose.yaml"
    manifest.write_text(json.dumps({"services": {"engine": service}}))  # JSON is YAML
    result = doctor(
        "--manifest", str(manifest), "--model", str(whole_model), VLLM_ASCEND_SPARE_TAILS="no"
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "VLLM_ASCEND_SPARE_TAILS='no'" not in result.stdout
    assert "VLLM_ASCEND_SPARE_TAILS=1 (by the profile)" in result.stdout
    said = " ".join(result.stdout.split())
    assert "an engine would not start with this command, here: the KV connector" in said
    assert (
        f"Command vllm serve /models/m --skip-tokenizer-init --kv-transfer-config '{transfer}'"
        in said
    )
