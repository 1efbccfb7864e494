# SPDX-License-Identifier: Apache-2.0
"""A checkout that keeps the compressor's state beside the pool is refused, whatever is allowed."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tests.ut.overlay.miniature import know, make_checkout, snapshot
from vllm_ascend.__main__ import app
from vllm_ascend.releases import WITH_OVERLAY

RELEASES = [release for release in WITH_OVERLAY if release.pooled_states]
FILE = "models/deepseek_v4/compressor.py"
CLASS = "class AscendCompressorStateCache:\n    def get_kv_cache_spec(self, vllm_config):\n        "


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.vllm)
@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            CLASS + "return AscendCircularBufferSpec(num_rows=32)\n",
            "returns AscendCircularBufferSp",
        ),
        (CLASS + "return None\n", "returns None"),
        (CLASS + "return\n", "returns None"),
        (CLASS + "pass\n", "returns None"),
        (
            CLASS + "if ring():\n            return Ring()\n"
            "        return AscendSlidingWindowMLASpec()\n",
            "returns AscendSlidingWindowMLASpec, Ring",
        ),
        ("class AscendCompressorStateCache:\n    pass\n", f"{FILE} has no AscendCompressorStateC"),
        (
            "class Compressor:\n    pass\n",
            f"{FILE} has no AscendCompressorStateCache.get_kv_cache_",
        ),
        ("no python", f"{FILE} has no AscendCompressorStateCache.get_kv_cache_spec"),
        (None, f"{FILE} has no AscendCompressorStateCache.get_kv_cache_spec"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--allow-unknown",)], ids=str)
def test_it_is_refused_in_one_sentence(release, text, what, options, tmp_path, monkeypatch):
    root = make_checkout(tmp_path / "vllm-ascend", release)
    know(root, monkeypatch, release.vllm)
    assert CliRunner().invoke(app, ["overlay", "plan", str(root)]).exit_code == 0
    file = root / "vllm_ascend" / FILE
    file.unlink() if text is None else file.write_text(text)
    before = snapshot(root)
    result = CliRunner().invoke(app, ["overlay", "apply", str(root), *options])
    (line,) = result.output.strip().splitlines()
    assert result.exit_code == 2 and "keeps the compressor's state outside the pool's" in line
    assert what in line and snapshot(root) == before
