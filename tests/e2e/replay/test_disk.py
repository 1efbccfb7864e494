# SPDX-License-Identifier: Apache-2.0
"""A disk below the tier in a replay: what falls out of memory comes up, and outlives the engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.replay.in_process import invoke
from tests.e2e.replay.test_tier import write_chats
from vllm_ascend.tier.layout import ROWS
from vllm_ascend_evaluation.replay.runs.clock import VirtualClock
from vllm_ascend_evaluation.replay.runs.disk import DiskOfRank, ModelledDisk

DISK = ("--disk-gib", "2")
RESTART = ("--restart-at", "110")


@pytest.fixture(scope="module")
def chats(tmp_path_factory) -> Path:
    trace = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    write_chats(trace, num_chats=45, num_turns=5, num_live=16)
    return trace


def replay(chats: Path, out: Path, *options: str) -> tuple[int, str, dict]:
    """Replay the chats over a tier that holds a few of them; verified."""
    result = invoke(
        *("replay", "--workload", str(chats), "--variant", "best", "--concurrency", "4"),
        *("--max-model-len", "16384", "--kv-gib", "1", "--verify", "--out", str(out)),
        *(options if "--tier-gib" in options else ("--tier-gib", "0.5", *options)),
    )
    if not (out / "report.json").exists():
        return result.exit_code, result.output, {}
    (workload,) = json.loads((out / "report.json").read_text())["workloads"]
    return result.exit_code, result.output, workload["runs"][0]


def test_what_falls_out_of_memory_comes_up(chats, tmp_path):
    code, said, run = replay(chats, tmp_path / "with", *DISK)
    assert code == 0, said
    _, _, without = replay(chats, tmp_path / "without")
    assert run["hit_rate_percent"] > without["hit_rate_percent"] + 20
    disk, tier = run["disk"], run["tier"]
    assert 0 < disk["hit_tokens"] <= tier["hit_tokens"] <= run["hit_tokens"]
    assert disk["read_bytes"] > 0 and 0 < disk["written_bytes"] <= tier["stored_bytes"] * 1.1
    assert without["disk"] is None and "to the disk" in said


def test_a_restart_costs_what_is_on_no_disk(chats, tmp_path):
    rates = {
        name: replay(chats, tmp_path / name, "--tier-gib", "2", *options)[2]["hit_rate_percent"]
        for name, options in {"plain": (), "disk": (*DISK, *RESTART), "lost": RESTART}.items()
    }
    assert rates["plain"] - 1 < rates["disk"]
    assert rates["lost"] < rates["plain"] - 3


def test_a_load_that_waits_too_long_is_computed(chats, tmp_path):
    code, said, run = replay(chats, tmp_path / "out", *DISK, "--disk-gib-per-second", "0.003")
    assert code == 0, said
    assert run["disk"]["num_failed_loads"] > 0 < run["disk"]["num_not_written"]


def test_what_comes_up_is_verified(chats, tmp_path, monkeypatch):
    """Planted: every object is written and read as the one of its kind before it."""
    put, last = ModelledDisk._put, {}

    def exchanged(disk, key, held):
        before, last[key[:1]] = last.get(key[:1], held), held
        return put(disk, key, before)

    monkeypatch.setattr(ModelledDisk, "_put", exchanged)
    code, said, _ = replay(chats, tmp_path / "out", *DISK)
    assert code == 1 and "violation" in said


def test_ranks_share_a_disk(chats, tmp_path):
    ranks = ("--data-parallel", "2", "--dp-routing")
    code, said, run = replay(chats, tmp_path / "disk", *ranks, "vllm", *DISK)
    assert code == 0, said
    _, _, alone = replay(chats, tmp_path / "none", *ranks, "vllm")
    assert run["hit_rate_percent"] > alone["hit_rate_percent"] + 20
    assert run["disk"]["read_bytes"] > 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--disk-gib", "0"), "--disk-gib 0: it must be greater"),
        (("--disk-gib-per-second", "3"), "--disk-gib-per-second 3: needs --disk-gib"),
        (("--restart-at", "225"), "--restart-at 225: chats.jsonl has 225 requests, the first of"),
        (("--data-parallel", "2", *RESTART), "--restart-at goes without --data-parallel"),
        (("--memory-use", *RESTART), "--restart-at goes without"),
        (
            ("--url", "http://localhost:1", *DISK),
            "--tier-gib, --disk-gib, --max-model-len: the server has its own",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_one_sentence(options, complaint, chats, tmp_path):
    code, said, _ = replay(chats, tmp_path / "out", *options)
    assert code == 2 and complaint in " ".join(said.split())


def test_a_disk_is_below_a_tier(chats, tmp_path):
    result = invoke("replay", "--workload", str(chats), *DISK, "--out", str(tmp_path / "out"))
    assert result.exit_code == 2 and "--disk-gib 2: needs --tier-gib" in result.output


def test_one_object_is_moved_after_the_other():
    clock, ended = VirtualClock(), []
    disk = ModelledDisk(clock, gib=1, gib_per_second=2**-30)  # a byte a second
    disk.sizes = {ROWS: 10}
    rank = DiskOfRank(disk)
    keys = [ROWS + bytes([number]) for number in range(3)]
    for key in keys:
        due = 25.0 if key == keys[0] else 0.0
        rank.write(key, b"", due, lambda k=key: k != keys[1], lambda g, _, k=key: ended.append(k))
    for now_s, expected in ((9, []), (10, [1, 2]), (34, [1, 2]), (35, [1, 2, 0])):
        clock.move_to(now_s * 1e3)
        assert ended == [keys[number] for number in expected], "the second is not wanted any more"
    assert [key for key, _ in disk.objects()] == [keys[2], keys[0]]
    rank.read(keys[2], dict(disk.objects())[keys[2]], b"", lambda g, _: ended.append(g))
    assert clock.num_awaited == 1
    clock.move_to(46e3)
    assert clock.num_awaited == 0 and [key for key, _ in disk.objects()] == [keys[0], keys[2]]
    rank.write(keys[1], b"", 99.0, lambda: True, lambda g, _: ended.append(g))
    disk.close(9.0)
    assert keys[1] not in dict(disk.objects()), "the engine has ended before it was written"
