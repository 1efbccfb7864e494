# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.flood``: a flood ends what is kept, later than what is not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.flood.results import Flood

REPOSITORY = Path(__file__).parents[3]
LRU = "best:VLLM_ASCEND_EVICTION=lru"


def make_flood(*points: tuple[int, float]) -> Flood:
    return Flood("best", 128, 16, 1000, 100, list(points))


def test_tokens_until():
    flood = make_flood((0, 80.0), (1000, 60.0), (2000, 40.0), (3000, 0.0))
    assert (flood.before, flood.tokens_until(0.5), flood.tokens_until(0.0)) == (80.0, 2000, 3000)


@pytest.mark.parametrize("points", [((0, 0.0),), ((0, 80.0), (1000, 60.0))])
def test_what_never_came_is_none(points):
    assert make_flood(*points).tokens_until(0.5) is None


def flood(
    folder: Path, *arguments: str, variants: Sequence[str] = ("best",)
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.flood", "--variant", *variants),
            *("--flood", "16384", "--prefixes", "1", "--out", str(folder), *arguments),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )


def test_a_small_flood(tmp_path):
    result = flood(tmp_path, "--block-size", "128", "--kv-gib", "4", variants=("best", LRU))
    assert result.returncode == 0, result.stderr
    best, lru = (
        Flood(**flood) for flood in json.loads((tmp_path / "flood.json").read_text())["floods"]
    )
    assert (tmp_path / "flood.png").read_bytes().startswith(b"\x89PNG")
    # 28,672 of 29,184 tokens.
    assert best.before == lru.before == pytest.approx(98.25, abs=0.01)
    assert best.tokens_until(0.5) is None, "what came again is protected"
    # Kept is a tail per prompt: most of the pool's C4 blocks have to be filled first.
    assert lru.num_blocks * 512 // 2 < lru.tokens_until(0.0) < lru.num_blocks * 512
    assert f"{lru.tokens_until(0.0):,}" in result.stdout


def test_normal_traffic_goes_on_among_a_flood(tmp_path):
    """A prefix that is asked for again in time stays; one that is not is lost, unless protected."""
    memory = ("--block-size", "128", "--kv-gib", "4")
    result = flood(tmp_path, *memory, "--between", "1", "40", variants=("best", LRU))
    assert result.returncode == 0, result.stderr
    mixtures = json.loads((tmp_path / "flood.json").read_text())["mixtures"]
    *others, many_lru = (mixture["hit_rate"] for mixture in mixtures)
    assert others == pytest.approx([98.25] * 3, abs=0.01)
    assert many_lru == 0
    assert "98.25 %" in result.stdout


def test_too_little_memory_is_one_line(tmp_path):
    result = flood(tmp_path, "--block-size", "128", "--kv-gib", "0.1")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("error: best on dsv4-flash-a3: ")
    assert "Traceback" not in result.stderr
