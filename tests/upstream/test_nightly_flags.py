# SPDX-License-Identifier: Apache-2.0
"""The single-node manifests serve with the flags of vllm-ascend's nightly test of that release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.upstream.sources import unpacked
from tests.ut.deploy.manifests import engines
from tests.ut.deploy.test_serve_flags import parse, vllm_parser

NIGHTLY = "tests/e2e/nightly/single_node/models/configs/DeepSeek-V4-Flash-W8A8-A3.yaml"
# What is a cluster's own, or shows hits, or only loads weights faster.
OURS_ALONE = {
    *("model", "model_tag", "config", "served_model_name", "host", "port", "api_server_count"),
    *("enable_prompt_tokens_details", "model_loader_extra_config"),
}


def of_nightly(release: str) -> dict[str, Any]:
    """Return what vLLM understands of the flags of a release's nightly test."""
    test = yaml.safe_load((unpacked(release) / NIGHTLY).read_text())["test_cases"][0]
    flags = [flag.replace("$SERVER_PORT", "8000") for flag in test["server_cmd"]]
    return vars(vllm_parser().parse_args(["serve", test["model"], *flags]))


@pytest.mark.parametrize(
    ("overlay", "release"),
    [("single-node", "0.20.2rc1"), ("single-node-0.23.0", "0.23.0.post1")],
)
def test_the_flags_are_those_of_the_nightly_test(overlay: str, release: str, tmp_path: Path):
    (engine,) = engines(overlay)
    ours, nightly = vars(parse(overlay, engine, tmp_path)), of_nightly(release)
    differing = {name for name in nightly if ours[name] != nightly[name]}
    assert differing <= OURS_ALONE
    assert engine.container["image"].endswith(f"-v{release}-a3")
