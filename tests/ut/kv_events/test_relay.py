# SPDX-License-Identifier: Apache-2.0
"""What is passed on to routers that know no groups."""

from __future__ import annotations

import subprocess
import sys
import time

import msgspec
from vllm.distributed.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
    ZmqEventPublisher,
)

from tests.ut.kv_events.ports import free_ports
from tests.ut.kv_events.test_prefix_index import described, removed, stored
from vllm_ascend.kv_events.relay import PrefixEvents
from vllm_ascend.kv_events.subscriber import Subscriber
from vllm_ascend.prefix_cache_config import child_environment


def test_one_group_of_whole_prefixes_is_passed_on():
    prefixes = PrefixEvents()
    tail, first, second = (
        described(0, "tail", tail=3, groups=3),
        described(1, groups=3),
        described(2, groups=3),
    )
    cleared, ours = AllBlocksCleared(), stored([1], group=1)
    others = [stored([1], group=0), stored([1], group=2), stored([2], first=1, group=4)]
    assert prefixes.of([tail, first, second, ours, *others, cleared]) == [ours, cleared]
    gone = removed([1], group=1)
    assert prefixes.of([removed([1], group=0), gone]) == [gone]


def test_nothing_is_passed_on_before_the_groups_are_described():
    assert PrefixEvents().of([stored([1], group=0), removed([1], group=0)]) == []


def test_the_command_publishes_what_it_passes_on():
    live, replay, again, again_replay = (f"tcp://127.0.0.1:{port}" for port in free_ports(4))
    engine = ZmqEventPublisher(
        0, live.replace("127.0.0.1", "*"), replay.replace("127.0.0.1", "*"), topic="kv@pod@model"
    )
    command = [sys.executable, "-m", "vllm_ascend.kv_events.relay", "--topic", "kv@pod@model"]
    command += ["--endpoint", live, "--replay-endpoint", replay]
    command += ["--publish", again.replace("127.0.0.1", "*"), "--publish-replay", again_replay]
    process = subprocess.Popen(command, env=child_environment({"VLLM_LOGGING_LEVEL": "ERROR"}))
    router = Subscriber(
        again, again_replay, msgspec.msgpack.Decoder(KVEventBatch).decode, replay_timeout_s=120
    )
    try:
        events = [described(0, groups=2), described(1, "tail", tail=3, groups=2)]
        events += [stored([1]), stored([1], group=1)]
        engine.publish(KVEventBatch(ts=1.0, events=events))
        engine.publish(KVEventBatch(ts=2.0, events=[removed([1], group=1), removed([1])]))
        batches = []
        deadline = time.monotonic() + 120
        while len(batches) < 2 and time.monotonic() < deadline:
            batches += router.batches(0.2)
    finally:
        process.terminate()
        process.wait(timeout=30)
        router.close()
        engine.shutdown()
    assert [type(event) for batch in batches for event in batch.events] == [
        BlockStored,
        BlockRemoved,
    ]
    assert all(event.group_idx == 0 for batch in batches for event in batch.events)
