# SPDX-License-Identifier: Apache-2.0
"""Which objects go from memory to the disk below, and when."""

from __future__ import annotations

import pytest

from vllm_ascend.tier.disk.level import DiskLevel
from vllm_ascend.tier.layout import ROWS, TAIL
from vllm_ascend.tier.memory_over_disk import MemoryOverDisk
from vllm_ascend.tier.tail_choice import FAR_APART, KEPT, MARGINAL

SIZES = {ROWS: 1000, TAIL: 8000}
SPARE = FAR_APART - 1


class Disk:
    """A disk that does everything when it is told to."""

    def __init__(self):
        self.moves = []

    def begin(self, tell):
        return ()

    def write(self, key, place, due, is_wanted, ended):
        self.moves.append((key, lambda: ended("g", "")))

    def read(self, key, generation, place, ended):
        self.moves.append((key, lambda: ended(generation, "")))

    def remove(self, key, generation): ...

    def go_on(self) -> list[bytes]:
        moves, self.moves = self.moves, []
        for _, move in moves:
            move()
        return [key for key, _ in moves]


def over_disk(num_tails: int) -> tuple[MemoryOverDisk, Disk]:
    index, disk = MemoryOverDisk(num_tails * 9000 + 2000, list(SIZES.values())), Disk()
    index.disk = DiskLevel(disk, 10**9, index.file_bytes, index.num_pages)
    return index, disk


def store(index: MemoryOverDisk, key: bytes, rank: int = KEPT) -> bool:
    if not index.reserve([key], SIZES[key[:1]], rank=rank):
        return False
    index.stored(key)
    return True


@pytest.mark.parametrize("rank", [FAR_APART, MARGINAL, KEPT])
def test_what_is_kept_or_far_apart_is_written_at_once_and_comes_up_again(rank):
    index, disk = over_disk(2)
    keys = [TAIL + bytes([number]) for number in range(3)]
    for key in keys:
        assert store(index, key, rank)
        assert disk.go_on() == [key]
        index.settle()
    assert index.contains(keys) == [True] * 3
    assert not index.are_in_memory(keys[:1])
    index.use(keys[:1])
    assert disk.go_on() == keys[:1]
    index.settle()
    assert index.are_in_memory(keys[:1])
    index.release(keys[:1])
    index.check_integrity()


def test_a_spare_tail_is_written_once_a_hit_has_taken_it():
    index, disk = over_disk(2)
    spares = [TAIL + bytes([number]) for number in range(2)]
    assert all(store(index, key, SPARE) for key in spares)
    assert disk.go_on() == []
    index.use(spares[:1])
    index.release(spares[:1])
    index.check_integrity()
    assert disk.go_on() == spares[:1]
    index.settle()
    index.check_integrity()
    for number in range(5, 8):
        assert store(index, TAIL + bytes([number]))
        disk.go_on()
        index.settle()
    assert index.contains(spares) == [True, False]
    assert index.take_gone().keys == spares[1:]


def test_memory_gives_up_what_the_disk_has_before_a_spare_tail_that_was_used_later():
    index, disk = over_disk(2)
    kept, spare, new = (TAIL + bytes([number]) for number in range(3))
    for key, rank in ((kept, KEPT), (spare, SPARE), (new, KEPT)):
        assert store(index, key, rank)
        disk.go_on()
        index.settle()
    assert index.contains([kept, spare]) == [True, True]
    assert not index.are_in_memory([kept]) and index.are_in_memory([spare])
    assert index.has_room(SIZES[TAIL], 1, SPARE), "and a spare may take the place of what is kept"
    index.check_integrity()


def test_a_spare_tail_in_use_keeps_its_pages_until_it_is_written():
    index, disk = over_disk(1)
    spare = TAIL + b"s"
    assert store(index, spare, SPARE)
    (place,) = index.use([spare])
    index.release([spare])
    assert not store(index, TAIL + b"other"), "the disk has not read its pages yet"
    disk.go_on()
    index.settle()
    assert store(index, TAIL + b"other") and index.place(TAIL + b"other") == place
