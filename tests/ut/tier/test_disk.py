# SPDX-License-Identifier: Apache-2.0
"""What is given up first on a disk, and names that tell nobody what was asked."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from vllm_ascend.tier.disk import level as level_module
from vllm_ascend.tier.disk.files import DiskFiles
from vllm_ascend.tier.disk.index import DiskIndex
from vllm_ascend.tier.disk.level import DiskLevel
from vllm_ascend.tier.disk.names import SECRET_BYTES, FileNames
from vllm_ascend.tier.host_memory import place_of
from vllm_ascend.tier.layout import ROWS, TAIL
from vllm_ascend.tier.settings import DiskSettings, read_settings

SIZES = {ROWS: 10, TAIL: 80}
KEYS = st.builds(
    lambda kind, n: kind + bytes([n]), st.sampled_from((ROWS, TAIL)), st.integers(0, 9)
)


@given(st.sampled_from((ROWS, TAIL)), st.binary(min_size=0, max_size=40))
def test_a_name_is_its_keys_and_nobody_elses(kind, digest):
    names, others = (FileNames(bytes([i]) * SECRET_BYTES) for i in (1, 2))
    key = kind + digest
    name = names.name(key)
    assert names.key(name) == key
    if len(digest) > 8:
        assert others.key(name) != key
        assert name[1:] != digest.hex()


@pytest.mark.parametrize("name", ["", "r", "rxyz", "lock", "t00.part"])
def test_other_files_have_no_key(name):
    assert FileNames(bytes(SECRET_BYTES)).key(name) in (None, b"", b"r")


@given(st.lists(st.tuples(st.sampled_from(["add", "touch", "first", "remove"]), KEYS)))
def test_what_is_given_up_first(steps):
    index, order = DiskIndex(10**9, SIZES), []
    for step, key in steps:
        is_there = key in order
        if is_there:
            order.remove(key)
        if step == "add":
            index.add(key, "g")
            order.append(key)
        elif step == "touch":
            index.touch([key])
            order += [key] * is_there
        elif step == "first":
            index.forget_first(key)
            order[:0] = [key] * is_there
        else:
            assert index.remove(key) == ("g" if is_there else None)
        assert index.used_bytes == sum(SIZES[key[:1]] for key in order)
    index.num_bytes = 100
    given_up = [key for key, _ in index.victims()]
    assert given_up == order[: len(given_up)]
    left = order[len(given_up) :]
    assert sum(SIZES[key[:1]] for key in left) <= 100
    if given_up:
        assert sum(SIZES[key[:1]] for key in (given_up[-1], *left)) > 100
    assert all((key in index) == (key in left) for key in order)


@pytest.mark.parametrize("num_pages", [1, 1024, 3000])
def test_an_object_may_have_any_number_of_pages(num_pages, tmp_path):
    pages = [bytearray(number.to_bytes(2, "big")) for number in range(num_pages)]
    files = DiskFiles(str(tmp_path), "layout")
    generation = files.write(ROWS, [memoryview(page) for page in pages])
    found = [bytearray(2) for _ in pages]
    files.read(ROWS, generation, [memoryview(page) for page in found])
    assert found == pages
    with pytest.raises(OSError, match="too short"):
        files.read(ROWS, files.write(ROWS, [memoryview(b"ab")]), [memoryview(bytearray(3))])
    files.close()


def test_what_was_wanted_before_a_clearing_is_not_written_behind_it(tmp_path):
    files = DiskFiles(str(tmp_path), "layout")
    wanted_at = files.num_clears
    files.clear()
    with pytest.raises(OSError, match="was cleared"):
        files.write(ROWS, [memoryview(b"ab")], wanted_at)
    files.write(ROWS, [memoryview(b"ab")], files.num_clears)
    files.close()


def test_a_write_finds_another_folder_if_its_own_was_removed_under_it(tmp_path, monkeypatch):
    files, write, removed = DiskFiles(str(tmp_path), "layout"), DiskFiles._write, []

    def remove_first(self, key, generation, buffers):
        if not removed:
            removed.append((tmp_path / "granule-tier/layout" / generation).rmdir())
        write(self, key, generation, buffers)

    monkeypatch.setattr(DiskFiles, "_write", remove_first)
    assert files.write(ROWS, [memoryview(b"ab")]) in files.generations()
    files.close()


class AtOnce:
    """A disk that has done everything when it is asked."""

    def begin(self, tell):
        return ()

    def write(self, key, place, due, is_wanted, ended):
        ended("g", "")

    def remove(self, key, generation): ...


def test_what_is_written_a_day_is_told(monkeypatch):
    lines = []
    monkeypatch.setattr(level_module.logger, "info", lambda text, *a: lines.append(text % a))
    now = [100.0]
    sizes = {ROWS: 10**9, TAIL: 8 * 10**9}
    level = DiskLevel(AtOnce(), 10**12, sizes, 100, lambda: now[0])
    for _ in range(2):
        now[0] += 3600
        level.take_done()
    assert not lines
    for number in range(10):
        assert level.write(ROWS + bytes([number]), place_of([number]))
    now[0] += 3599
    level.take_done()
    assert not lines
    now[0] += 3601
    level.take_done()
    (line,) = lines
    assert "10.0 GB written in 2.0 h, 0.12 TB a day" in line


def test_the_setting():
    told = {"backend": "host", "gib": 1, "disk": {"path": "/mnt/nvme", "gib": 2000}}
    assert read_settings(told).disk == DiskSettings("/mnt/nvme", 2000)


@pytest.mark.parametrize(
    ("disk", "complaint"),
    [
        ("/mnt", r'"disk": "/mnt" is invalid: allowed are JSON objects with "path" and "gib"'),
        ({"path": "/mnt"}, r'"disk": .* is invalid'),
        ({"path": "/mnt", "gib": 1, "gb": 1}, r'"disk": .* is invalid'),
        ({"path": "mnt", "gib": 1}, r'"disk path": "mnt" is invalid: allowed are absolute paths'),
        (
            {"path": "/mnt", "gib": float("inf")},
            r'"disk gib": Infinity is invalid',
        ),
        ({"path": "/mnt", "gib": True}, r'"disk gib": true is invalid'),
        ({"path": "/mnt", "gib": 0}, r'"disk gib": 0 is invalid: allowed are numbers of GiB above'),
    ],
)
def test_bad_settings_are_refused_by_one_sentence(disk, complaint):
    with pytest.raises(ValueError, match=complaint):
        read_settings({"backend": "host", "gib": 1, "disk": disk})


def test_a_mooncake_store_has_no_disk_of_ours():
    told = {"backend": "mooncake", "disk": {"path": "/mnt", "gib": 1}}
    with pytest.raises(ValueError, match='"disk" is only for backend host'):
        read_settings(told)
