# SPDX-License-Identifier: Apache-2.0
"""The sweep and the curves as a user runs them, on as few runs as show anything."""

import json

import pytest

from tests.e2e.replay.in_process import invoke

# Every prompt shares 4,500 tokens with the one before it, so the boundary at 4,096 can be hit.
SHARED = ("--workload", "3:5000:4500:4", "--concurrency", "1", "--max-model-len", "6000")
SMALL_STEPS = ("--max-num-batched-tokens", "2048")


def test_a_refused_setting_is_a_sign_in_the_table(tmp_path):
    """4,096 fits the alignment of block size 32, and not that of 128."""
    result = invoke(
        *("sweep", *SHARED, *SMALL_STEPS, "--kv-gib", "4", "--verify", "--no-best"),
        *("--block-size", "32", "--block-size", "128", "--interval", "4096"),
        *("--partial", "0", "--mtp", "1"),
        *("--json", str(tmp_path / "s.json"), "--markdown", str(tmp_path / "s.md")),
    )
    assert result.exit_code == 0, result.output
    text = (tmp_path / "s.md").read_text()
    rate = 100 * 2 * 4096 / (3 * 5000)
    assert f"| 32 | 1 | no | **{rate:.2f}** |" in text
    assert "| 128 | 1 | no | - |" in text
    assert "`-` refused: VLLM_PREFIX_CACHE_RETENTION_INTERVAL=4096 is invalid" in text
    (done,) = json.loads((tmp_path / "s.json").read_text())["workloads"][0]["runs"]
    assert done["verified"] and done["num_speculative_tokens"] == 1 and not done["violations"]


def test_a_memory_curve(tmp_path):
    result = invoke(
        *("memory-curve", *SHARED, *SMALL_STEPS, "--kv-gib", "4", "--verify"),
        *("--json", str(tmp_path / "c.json"), "--png", str(tmp_path / "c.png")),
    )
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "c.json").read_text())
    runs = {run["variant"]: run for run in report["workloads"][0]["runs"]}
    assert list(runs) == ["upstream-like", "interval 0, partial hits", "best"]
    assert runs["upstream-like"]["hit_tokens"] == 0 < runs["best"]["hit_tokens"]
    # The capacity of the bounds is what vLLM's own sizing makes of the same memory.
    assert {run["num_blocks"] for run in runs.values()} == {(4 << 30) // report["bytes_per_block"]}
    assert (16 << 30) // report["bytes_per_block"] == 5106
    # 8 of 512 tokens are hit twice; ours may end at every 128.
    assert list(report["bounds"][1]["rates"].values()) == [100 * 2 * 4096 / (3 * 5000)]
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_a_prefix_curve(tmp_path):
    """Three prefixes fit with all their windows, ten do only without most of them."""
    result = invoke(
        *(
            "prefix-curve",
            "--prefixes",
            "3",
            "--prefixes",
            "10",
            "--shared",
            "3000",
            "--own",
            "300",
        ),
        *("--kv-tokens", "36000", "--rounds", "2", "--output", "4", "--max-model-len", "4096"),
        *("--variant", "upstream-like", "--variant", "pinned", "--verify", *SMALL_STEPS),
        *("--json", str(tmp_path / "p.json"), "--png", str(tmp_path / "p.png")),
    )
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "p.json").read_text())
    dense, pinned = (line["rates"] for line in report["warm_rates"])
    whole = pytest.approx(100 * 2992 / 3300)
    assert (dense["3"], pinned["3"]) == (whole, whole)
    # The only chunk that ended inside the prefix did so at 2,048. Two find what was computed again.
    assert (dense["10"], pinned["10"]) == (0.0, pytest.approx(100 * (2048 + 0.2 * 944) / 3300))
    assert all(run["verified"] for w in report["workloads"] for run in w["runs"])
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_goodput(tmp_path):
    """Its rates are those at which a whole replay at the same speed keeps the promise."""
    traffic = ("--workload", "chat:8", "--max-output-tokens", "8", "--variant", "best")
    slo = ("--slo", "ttft=4s,tpot=1s", "--slo-percent", "90")
    files = ("--json", str(tmp_path / "g.json"), "--png", str(tmp_path / "g.png"))
    result = invoke("goodput", *traffic, *slo, *files)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "g.json").read_text())
    loads = report["loads"]
    kept = [load["kept_percent"] >= 90 for load in loads]
    assert kept == sorted(kept, reverse=True) and kept[0] and not kept[-1]
    best = [load for load in loads if load["kept_percent"] >= 90][-1]
    assert report["goodput"] == {"best": best["requests_per_second"]}
    timed = ("--timestamps", "--speed", str(best["speed"]), "--out", str(tmp_path / "r"))
    result = invoke("replay", *traffic, *timed)
    assert result.exit_code == 0, result.output
    (run,) = json.loads((tmp_path / "r" / "report.json").read_text())["workloads"][0]["runs"]
    assert run["modelled_ttft_ms"] == best["ttft_ms"]
    assert run["modelled_tpot_ms"] == best["tpot_ms"]
    assert run["arrivals_per_second"] == best["requests_per_second"]
