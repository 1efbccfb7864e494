# SPDX-License-Identifier: Apache-2.0
"""A disk below the tier's memory: what an engine leaves there serves the next one, or nothing does.

The disk is a real one, the bytes are the oracle's tags: what a hit reads is proved.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest

from tests.e2e.core.workload import Workload
from tests.e2e.tier.test_faults import BOUNDARY, CELL, PROMPT, answer
from tests.e2e.tier.test_random_traffic import cell, small_units, with_resets
from tests.e2e.tier.tier_engine import TierEngine, transfer_config
from vllm_ascend.tier.disk import level
from vllm_ascend.tier.disk.files import DiskFiles
from vllm_ascend.tier.layout import ROWS

__all__ = ["small_units"]

GIB = 0.02
Start = Callable[..., TierEngine]


@pytest.fixture(autouse=True)
def seeded(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setattr(level, "SETTLE_S", 0.0)


@pytest.fixture
def start(switch, tmp_path) -> Iterator[Start]:
    """Start an engine over the disk of those before it, which may have been killed."""
    started: list[TierEngine] = []

    def start_engine(
        configuration=CELL, room=4.0, gib=GIB, disk_gib=1.0, seed=1, **extra
    ) -> TierEngine:
        switch(configuration.environment)
        disk = {"path": str(tmp_path), "gib": disk_gib}
        transfer = transfer_config(backend="host", gib=gib, pool="p", disk=disk, **extra)
        options, oracle = configuration.options(room), configuration.oracle(seed)
        started.append(TierEngine(configuration.layout, options, transfer, oracle))
        return started[-1]

    yield start_engine
    for engine in started:
        engine.index.disk.work.closes.set()


def settle(engine: TierEngine) -> None:
    """Wait until the disk has done everything that was asked of it."""
    work = engine.index.disk.work
    for thread in (work.rows, work.tails, *work.readers):
        thread.call(int).result(60)
    engine.index.settle()


def answered(engine: TierEngine, name: str, prompt=PROMPT) -> int:
    """Answer a prompt, and wait until all of it is on the disk; return the tokens of its hit."""
    hit = answer(engine, name, prompt)
    answer(engine, f"{name}, end", [1, 2, 3])
    assert engine.tier.is_idle()
    settle(engine)
    return hit


def files(folder: Path) -> list[Path]:
    return [path for path in folder.glob("granule-tier/*/*/*") if path.is_file()]


def test_an_engine_hits_what_a_killed_one_has_left(start):
    assert answered(start(), "a") == 0
    second = start()
    assert answer(second, "b") == BOUNDARY
    counts = second.tier.counts
    assert counts.disk_read_bytes > 0 == counts.disk_not_read
    assert answer(second, "c") == BOUNDARY and second.tier.counts.failed_loads == 0
    second.index.check_integrity()


def test_what_falls_out_of_memory_comes_up_again(start):
    engine = start(gib=0.003)
    assert answered(engine, "a") == 0
    of_a = set(engine.index._places)
    for number in range(40):
        answered(engine, f"other {number}", [number, *range(500, 780)])
        if of_a.isdisjoint(engine.index._places):
            break
    assert engine.scheduler.reset_prefix_cache()  # the device's own
    assert answer(engine, "again") == BOUNDARY
    assert engine.tier.counts.disk_read_bytes > 0
    engine.index.check_integrity()


@pytest.mark.parametrize("configuration", [CELL, cell("dsv4-rows", "mtp3", "best")], ids=str)
def test_random_traffic_over_restarts(configuration, start):
    seed = crc32(str(configuration).encode())
    hits = 0
    for number in range(3):
        engine = start(configuration, room=(4.0, 1.3, 1.2)[number], gib=0.0008, seed=seed)
        Workload(engine, with_resets(engine, configuration.traffic), seed).run(120)
        settle(engine)
        engine.index.check_integrity()
        hits += engine.tier.counts.disk_read_bytes
    assert hits > 0


def test_what_finds_no_room_in_memory_stays_on_the_disk(start):
    answered(start(), "a")
    index = start(gib=0.003).index
    key = next(iter(index.disk._index._generations))
    others = [ROWS + number.to_bytes(4, "big") for number in range(index.num_pages)]
    assert len(index.reserve(others, index._sizes[ROWS])) < len(others)
    assert index.use([key]) == [b""]
    index.drop(key)  # a worker of several has found nothing
    index.release([key])
    assert index.contains([key]) == [True]


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "short":
        path.write_bytes(data[:100])
    elif how == "zeroed":  # as a loss of power may leave it
        path.write_bytes(bytes(len(data)))
    elif how == "changed":
        path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])


@pytest.mark.parametrize("how", ["gone", "short", "zeroed", "changed"])
def test_a_file_that_cannot_be_used_is_computed_and_written_anew(how, start, tmp_path):
    answered(start(), "a")
    second = start()
    for path in files(tmp_path):
        spoil(path, how)
    assert answered(second, "b") == 0
    assert second.tier.counts.failed_loads == 1
    assert (second.tier.counts.disk_not_read > 0) == (how in {"gone", "short"})
    assert answer(start(), "c") == BOUNDARY


def test_a_file_under_the_name_of_another_is_not_taken(start, tmp_path):
    answered(start(), "a")
    rows = [path for path in files(tmp_path) if path.name.startswith("r")]
    first, last = rows[0], rows[-1]
    held = first.read_bytes()
    first.write_bytes(last.read_bytes())
    last.write_bytes(held)
    second = start()
    assert answer(second, "b") == 0 and second.tier.counts.failed_loads == 1


def test_a_write_that_was_cut_off_is_no_object(start, tmp_path, monkeypatch):
    def killed(descriptor, buffers):
        os.write(descriptor, bytes(buffers[0])[:100])
        raise KeyboardInterrupt("the process is gone")

    with monkeypatch.context() as patched:
        patched.setattr(os, "writev", killed)
        answered(start(), "a")
    assert all(path.name.endswith(".part") for path in files(tmp_path))
    assert start().index.disk.num_objects == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_takes_nothing_is_left_alone(code, start, monkeypatch, caplog):
    calls = []

    def refuse(*args):
        calls.append(args)
        raise OSError(code, os.strerror(code))

    engine = start()
    monkeypatch.setattr(os, "writev", refuse)
    assert answered(engine, "a") == 0
    assert answer(engine, "b") == BOUNDARY, "memory serves on"
    seen = len(calls)
    answered(engine, "c", [7, *PROMPT])
    assert len(calls) == seen, "nobody asks while it is left alone"
    assert engine.tier.counts.disk_not_written > 0


def test_a_slow_disk_delays_one_request_and_is_then_left_alone(start, monkeypatch):
    answered(start(), "a")
    engine = start(load_seconds=0.3)
    read = DiskFiles.read
    monkeypatch.setattr(DiskFiles, "read", lambda *args: time.sleep(1.0) or read(*args))
    started = time.monotonic()
    assert answer(engine, "b") == 0
    assert time.monotonic() - started < 60
    assert engine.tier.counts.failed_loads == 1
    answer(engine, "c", [*PROMPT[:280], 7])
    assert engine.tier.counts.loads == 1, "it is left alone for a while"
    settle(engine)
    engine.index.check_integrity()


def test_more_than_may_be_there_gives_up_what_was_used_least_recently(start, tmp_path):
    engine = start(disk_gib=0.002)
    for number in range(12):
        answered(engine, f"{number}", [number, *range(500, 780)])
    settle(engine)  # and what it gave up in the last step is removed
    settle(engine)
    disk = engine.index.disk
    assert engine.tier.counts.disk_evicted > 0
    assert disk.used_bytes <= 0.002 * (1 << 30)
    assert sum(path.stat().st_size for path in files(tmp_path)) == disk.used_bytes
    last = start(disk_gib=0.002)
    assert answer(last, "last", [11, *range(500, 780)]) > 0
    assert answer(last, "first", [0, *range(500, 780)]) == 0


def test_a_reset_reaches_the_disk_also_if_the_process_ends_at_once(start, tmp_path):
    engine = start()
    answered(engine, "a")
    engine.index.disk.work.rows.call(lambda: time.sleep(0.5))  # nothing is removed yet
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    assert start().index.disk.num_objects == 0
    assert answer(start(), "b") == 0


def test_what_was_on_its_way_before_a_reset_does_not_come_back(start):
    engine = start()
    answer(engine, "a")
    engine.scheduler.reset_prefix_cache(reset_connector=True)
    settle(engine)
    assert start().index.disk.num_objects == 0


def test_two_engines_share_a_folder(start):
    first, second = start(), start()
    answered(first, "a")
    answered(second, "other", [9, *PROMPT])
    assert answer(start(), "b") == BOUNDARY
    assert answer(start(), "c", [9, *PROMPT]) > 0


def test_another_layout_waits_until_nobody_uses_the_folder(start, tmp_path):
    first = start()
    answered(first, "a")
    with pytest.raises(ValueError, match=r'"disk": .* is in use by an engine with another model'):
        start(cell("dsv4-rows", "mtp3", "best"))
    first.close()
    assert start(cell("dsv4-rows", "mtp3", "best")).index.disk.num_objects == 0
    assert not files(tmp_path)


@pytest.mark.parametrize("who_resets", [0, 1])
def test_after_a_reset_all_that_share_a_folder_hold_the_new_one(who_resets, start, tmp_path):
    engines = start(), start()
    assert engines[who_resets].scheduler.reset_prefix_cache(reset_connector=True)
    other = engines[1 - who_resets]
    answered(other, "b")
    engines[who_resets].close()
    with pytest.raises(ValueError, match=r'"disk": .* is in use by an engine with another model'):
        start(cell("dsv4-rows", "mtp3", "best"))
    assert answer(start(), "c") == BOUNDARY
    other.close()


def test_a_folder_that_another_layout_empties_is_not_written_to(start, tmp_path, monkeypatch):
    """Its engine has ended meanwhile, so nobody holds it; this one comes back at that moment."""
    first, second = start(), start()
    assert first.scheduler.reset_prefix_cache(reset_connector=True)
    first.close()
    folder = next((tmp_path / "granule-tier").glob("*-*/lock")).parent
    with open(folder / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert answered(second, "b") == 0
        assert second.tier.counts.disk_pauses == 1 and not files(tmp_path)


def test_files_are_the_users_own_and_their_names_tell_nothing(start, tmp_path):
    engine = start()
    answered(engine, "a")
    for path in (tmp_path / "granule-tier").rglob("*"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    hashes = {key[1:].hex() for key in engine.index._places}
    assert hashes and not any(digest in path.name for path in files(tmp_path) for digest in hashes)
    shutil.rmtree(tmp_path / "granule-tier")


@pytest.mark.parametrize(
    ("spoilt", "complaint"),
    [
        ("nowhere", "there is no such folder"),
        ("a file", "is no folder"),
        ("a file of its name", "granule-tier: File exists"),
        ("another's secret", "secret is no secret of a tier: remove .*granule-tier"),
        ("a file for a layout", "granule-tier/.*-.*: File exists"),
        ("open to all", "can be read by others: chmod 700"),
        ("unseeded", '"disk" needs PYTHONHASHSEED'),
    ],
)
def test_a_disk_that_cannot_be_used_is_refused_before_anything_is_served(
    spoilt, complaint, start, tmp_path, monkeypatch
):
    if spoilt == "nowhere":
        tmp_path.rmdir()
    elif spoilt == "a file":
        tmp_path.rmdir()
        tmp_path.write_text("")
    elif spoilt == "a file of its name":
        (tmp_path / "granule-tier").write_text("")
    elif spoilt == "another's secret":
        (tmp_path / "granule-tier").mkdir(mode=0o700)
        (tmp_path / "granule-tier/secret").write_text("short")
    elif spoilt == "a file for a layout":
        start().close()
        (folder,) = {path.parent for path in (tmp_path / "granule-tier").glob("*/lock")}
        shutil.rmtree(folder)
        folder.write_text("")
    elif spoilt == "open to all":
        (tmp_path / "granule-tier").mkdir(mode=0o755)
    else:
        monkeypatch.delenv("PYTHONHASHSEED")
    for _ in range(2):
        with pytest.raises(ValueError, match=complaint):
            start()
