# SPDX-License-Identifier: Apache-2.0
"""The table of releases: which vLLM is run, what becomes of reports, and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from benchmarks import release_table
from vllm_ascend.command_line.ends import EXIT_VIOLATION
from vllm_ascend.releases import SUPPORTED, running_release


def run_of(variant: str, hit_tokens: int, violations: tuple[str, ...] = ()) -> dict:
    return {
        "variant": variant,
        "hit_tokens": hit_tokens,
        "hit_rate_percent": hit_tokens / 10,
        "violations": list(violations),
    }


@pytest.fixture
def replays(monkeypatch):
    """What is replayed instead of the real workloads, and what was asked for."""
    asked = []

    def replay(release, workloads, options):
        asked.append((release.vllm, tuple(workloads), tuple(options)))
        twice = "--concurrency" in options
        hits = {"upstream-like": (0, 16_384), "best": (128, 8_320)} if twice else {}
        return [
            (name, run_of(variant, hit))
            for variant in ("upstream-like", "best")
            for name, hit in zip(workloads, hits.get(variant, (500, 250)), strict=False)
        ]

    monkeypatch.setattr(release_table, "_replay", replay)
    return asked


def test_every_release_and_block_size_has_a_row_per_variant(replays, tmp_path, capsys):
    arguments = ["--block-size", "128", "--block-size", "32", "--out", str(tmp_path)]
    assert release_table.main(arguments) == 0
    rows = json.loads((tmp_path / "releases.json").read_text())
    assert [(row["release"], row["block_size"], row["variant"]) for row in rows] == [
        (release.vllm, block_size, variant)
        for release in SUPPORTED
        for block_size in (128, 32)
        for variant in ("upstream-like", "best")
    ]
    assert [row["least_prefix"] for row in rows[:2]] == [16_384, 128]
    assert rows[0]["hit_rates"] == {"W1": 50.0, "W2": 25.0}
    assert "16,384" in capsys.readouterr().out


def test_a_trace_is_one_more_column_and_one_release_can_be_asked_for(replays, tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("{}\n")
    release_table.main(["--release", "0.23.0", "--trace", str(trace), "--out", str(tmp_path)])
    (row, _) = json.loads((tmp_path / "releases.json").read_text())
    assert row["release"] == "0.23.0" and "W4" in row["hit_rates"]
    assert {release for release, *_ in replays} == {"0.23.0"}


def test_a_wrong_row_is_told_and_fails(monkeypatch, tmp_path, capsys):
    wrong = [("W1", run_of(variant, 1, ("row 3",))) for variant in ("upstream-like", "best")]
    monkeypatch.setattr(release_table, "_replay", lambda *_: wrong)
    assert release_table.main(["--release", "0.20.2", "--out", str(tmp_path)]) == 1
    assert "row 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "told"),
    [(["--release", "0.19.1"], "invalid choice"), (["--trace", "/no/such"], "no such file")],
)
def test_bad_input_is_one_error(wrong, told, capsys):
    with pytest.raises(SystemExit) as ended:
        release_table.main(wrong)
    assert ended.value.code == 2 and told in capsys.readouterr().err


def test_another_release_is_taken_from_where_it_is_unpacked():
    for release in SUPPORTED:
        path = release_table._environment(release).get("PYTHONPATH")
        if release is running_release():
            assert path == os.environ.get("PYTHONPATH")
        else:
            assert Path(path).parts[-2:] == (".venv-vllm", release.vllm)


def test_a_replay_that_finds_wrong_rows_is_read_and_one_that_fails_is_not(monkeypatch):
    """It ends with an exit code of its own for wrong rows, and its report has them."""

    def ended(code: int, *, complete: bool = True):
        def run(command, **_):
            runs = [run_of("best", 1, ("row 3",))]
            report = {"workloads": [{"workload": "W1", "runs": runs}], "complete": complete}
            (Path(command[-1]) / "report.json").write_text(json.dumps(report))
            return subprocess.CompletedProcess(command, code)

        return run

    monkeypatch.setattr(subprocess, "run", ended(EXIT_VIOLATION))
    ((_, run),) = release_table._replay(SUPPORTED[0], ("W1",), ())
    assert run["violations"] == ["row 3"]
    monkeypatch.setattr(subprocess, "run", ended(2))
    with pytest.raises(SystemExit, match=r"vLLM 0\.20\.2 ended with 2"):
        release_table._replay(SUPPORTED[0], ("W1",), ())
    monkeypatch.setattr(subprocess, "run", ended(EXIT_VIOLATION, complete=False))
    with pytest.raises(SystemExit, match=r"on vLLM 0\.20\.2 failed"):
        release_table._replay(SUPPORTED[0], ("W1",), ())


def test_results_without_a_place_are_told_before_anything_is_replayed(replays, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="is a file, expected a folder"):
        release_table.main(["--out", str(tmp_path / "file")])
    assert not replays
