# SPDX-License-Identifier: Apache-2.0
"""Workers map the scheduler's memory and nothing else, whatever has its number."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from vllm_ascend.tier.host_memory import ForeignMemoryError, HostMemory, HostStore
from vllm_ascend.tier.objects import HEADER_BYTES
from vllm_ascend.tier.settings import check_nodes, read_settings

PAGES, PAGE = 16, 4096
LAYOUT = b"l" * 16


@pytest.fixture
def made() -> HostMemory:
    return HostMemory.make(PAGES, PAGE)


def test_a_worker_finds_what_the_scheduler_has_made(made):
    memory, address = made
    store, data = HostStore("digest"), np.zeros(PAGE, np.uint8)
    data[HEADER_BYTES:] = 7
    store.attach(address)
    assert store.write([b"r1"], [(3,)], [data], LAYOUT) == [True]
    seen = np.zeros(PAGE, np.uint8)
    memory.read((3,), seen)
    assert (seen == data).all()


@pytest.fixture
def foreign(tmp_path) -> Iterator[dict[str, int]]:
    """What another process may have open under the same number."""
    file = tmp_path / "somebody else's"
    file.write_bytes(bytes(PAGES * PAGE))
    os.mkfifo(tmp_path / "pipe")
    opened = {
        "a file": os.open(file, os.O_RDWR),
        "a pipe": os.open(tmp_path / "pipe", os.O_RDWR),
        "a device": os.open("/dev/null", os.O_RDWR),
        "another tier": HostMemory.make(PAGES, PAGE)[1].descriptor,
    }
    yield opened
    for descriptor in opened.values():
        os.close(descriptor)


@pytest.mark.parametrize("what", ["a file", "a pipe", "a device", "another tier"])
def test_what_is_somebody_elses_is_not_mapped(what, made, foreign):
    before = os.stat(foreign[what]).st_mtime_ns
    with pytest.raises(ForeignMemoryError, match="use backend mooncake"):
        HostStore("digest").attach(made[1]._replace(descriptor=foreign[what]))
    assert os.stat(foreign[what]).st_mtime_ns == before


def test_memory_of_another_size_or_of_nobody_is_not_mapped(made):
    address = made[1]
    for wrong in (
        address._replace(num_pages=PAGES + 1),
        address._replace(process=1 << 30),
        address._replace(descriptor=1 << 20),
    ):
        with pytest.raises(ForeignMemoryError):
            HostStore("digest").attach(wrong)


def test_workers_on_several_nodes_are_refused():
    host = read_settings({"backend": "host", "gib": 1})
    check_nodes(host, 1)
    with pytest.raises(ValueError, match="spread over 2: use mooncake"):
        check_nodes(host, 2)
    mooncake = {"backend": "mooncake", "mooncake": {"master_server_address": "host:1"}}
    check_nodes(read_settings(mooncake), 2)
