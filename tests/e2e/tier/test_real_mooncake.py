# SPDX-License-Identifier: Apache-2.0
"""Engines of the oracle on a real Mooncake Store, whose master is killed and comes back."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.e2e.server.server import free_port
from tests.e2e.tier.models import model_at, model_config
from tests.e2e.tier.real_mooncake import needs_mooncake, running_master
from tests.e2e.tier.test_faults import BOUNDARY, CELL, PROMPT, answer
from tests.e2e.tier.test_random_traffic import small_units
from tests.e2e.tier.tier_engine import TierEngine, transfer_config
from vllm_ascend.dry_run import scheduler as dry_run
from vllm_ascend.tier import scheduler_side
from vllm_ascend.tier.mooncake import MooncakeKeys, MooncakeStore, connect
from vllm_ascend.tier.mooncake_settings import MooncakeSettings
from vllm_ascend.tier.objects import HEADER_BYTES

__all__ = ["small_units"]

pytestmark = needs_mooncake


OBJECT_BYTES = 8 << 20
# Stores objects, each full of its own number, until it is killed. Their memory is the other's.
WORKER = f"""
import json, sys, time
import numpy as np
from vllm_ascend.tier.mooncake import MooncakeKeys, MooncakeStore, connect
from vllm_ascend.tier.mooncake_settings import MooncakeSettings

client = connect(MooncakeSettings(**json.loads(sys.argv[1])), gives_memory=False)
store = MooncakeStore(client, MooncakeKeys(sys.argv[2], 1), 0)
data = np.zeros({OBJECT_BYTES}, np.uint8)
store.register(data)
for number in range(40):  # all of them have room
    data[{HEADER_BYTES}:] = number
    assert store.write([b"r%d" % number], [0], [data], b"a layout's bytes") == [True]
    print(number, flush=True)
time.sleep(1000)
"""


def engine(settings: MooncakeSettings, seed: int, pool: str = "p", **extra) -> TierEngine:
    transfer = transfer_config(
        backend="mooncake", pool=pool, mooncake=dict(vars(settings)), **extra
    )
    return TierEngine(CELL.layout, CELL.options(4.0), transfer, CELL.oracle(seed))


def test_a_master_that_is_killed_costs_hits_and_one_that_comes_back_brings_them_again(
    tmp_path: Path, switch, monkeypatch
):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setattr(scheduler_side, "_PAUSE_S", 0.5)
    switch(CELL.environment)
    port, metadata = free_port(), free_port()
    with running_master(tmp_path, port, metadata) as settings:
        first, second = engine(settings, 1), engine(settings, 2)
        assert answer(first, "a") == 0
        answer(first, "end", [1, 2, 3])
        assert first.tier.is_idle()
        assert answer(second, "b") == BOUNDARY, "over the real store"
    started = time.monotonic()
    assert answer(second, "c", [7, *PROMPT]) == 0
    assert time.monotonic() - started < 300
    assert second.tier.counts.pauses == 1, "a dead store is left alone"
    with running_master(tmp_path, port, metadata):
        assert any(_is_shared(first, second, attempt) for attempt in range(20))
        # A client that outlives its master waits for it when it is collected, for 10 s and with
        # Python's lock: whatever other test runs in this process stands still.
        first.close()
        second.close()


def test_steps_go_on_while_a_master_hangs_and_its_tier_is_left_alone(
    tmp_path: Path, switch, monkeypatch
):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    switch(CELL.environment)
    masters: list[subprocess.Popen[bytes]] = []
    with running_master(tmp_path, processes=masters) as settings:
        running = engine(settings, 1, load_seconds=2)
        answer(running, "a")
        running.tier._thread.grace_s = 0.0
        _stop(masters[0])
        running.add("hangs", [7, *PROMPT], 4)  # nothing of it is here
        running.step()
        assert not running.hits.get("hangs") and running.scheduler.requests, "it alone waits"
        running.run()
        assert running.tier.counts.pauses == 1
        asked = time.monotonic()
        assert running.scheduler.reset_prefix_cache(reset_connector=True)
        assert time.monotonic() - asked < 20, "Mooncake itself waits for 30 s"
        masters[0].send_signal(signal.SIGCONT)
        running.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process, and wait until all its threads stand still: one that runs may answer yet."""
    process.send_signal(signal.SIGSTOP)
    tasks = [task / "stat" for task in Path(f"/proc/{process.pid}/task").iterdir()]
    while not all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks):
        time.sleep(0.01)


def test_after_a_reset_nothing_of_before_is_hit_although_it_was_just_read(
    tmp_path: Path, switch, monkeypatch
):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    switch(CELL.environment)
    with running_master(tmp_path) as settings:
        first, second = engine(settings, 1), engine(settings, 2)
        answer(first, "a")
        answer(first, "end", [1, 2, 3])
        # The store keeps what was asked for lately, unless it is told otherwise.
        assert answer(second, "b") == BOUNDARY
        assert second.scheduler.reset_prefix_cache(reset_connector=True)
        assert answer(second, "c") == 0
        first.close()
        second.close()


def test_the_same_path_with_other_weights_hits_nothing(tmp_path: Path, switch, monkeypatch):
    """Two nodes mount two models at one path, or one of them was tuned: rows are not the same."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    at_one_path = lambda length: model_config(tmp_path / "model", max_model_len=length)
    monkeypatch.setattr(dry_run, "_model_config", at_one_path)
    switch(CELL.environment)
    with running_master(tmp_path) as settings:
        model_at(tmp_path / "model", 0.0)
        first, second = engine(settings, 1, pool=""), engine(settings, 2, pool="")
        model_at(tmp_path / "model", 1.0)
        tuned = engine(settings, 3, pool="")
        assert answer(first, "a") == 0
        answer(first, "end", [1, 2, 3])
        assert answer(second, "b") == BOUNDARY, "of the same weights"
        assert answer(tuned, "c") == 0, "of others"
        for each in (first, second, tuned):
            each.close()


def test_a_worker_that_dies_while_it_stores_leaves_whole_objects_or_none(tmp_path: Path):
    chance = random.Random(0)
    with running_master(tmp_path) as settings:
        client = connect(settings, gives_memory=True)
        target = np.zeros(OBJECT_BYTES, np.uint8)
        for life in ("first", "second"):
            with _worker(settings, life) as worker:
                assert worker.stdout is not None
                assert worker.stdout.readline() == "0\n"
                time.sleep(chance.uniform(0, 0.1))
            told = [0, *map(int, worker.stdout)]
            store = MooncakeStore(client, MooncakeKeys(life, 1), 0)
            if life == "first":
                store.register(target)
            for number in itertools.count():
                [why] = store.read([b"r%d" % number], [0], [target], b"a layout's bytes")
                if why is not None:
                    break
                assert (target[HEADER_BYTES:] == number).all()
            assert why == "gone" and number > told[-1], "what was stored is there, and whole"
            client.remove_by_regex(f"^vat-{life}-.*", True)
        client.close()


def test_what_is_found_to_be_unusable_gives_way_to_what_is_stored_anew(tmp_path: Path):
    with running_master(tmp_path) as settings:
        client = connect(settings, gives_memory=True)
        store, data = MooncakeStore(client, MooncakeKeys("d", 1), 0), np.zeros(4096, np.uint8)
        store.register(data)
        ours, theirs = b"ours, 16 letters", b"somebody else's!"
        assert store.write([b"r"], [0], [data], theirs) == [True]
        assert store.read([b"r"], [0], [data], ours) == ["foreign"]
        assert store.write([b"r"], [0], [data], ours) == [True]
        assert store.read([b"r"], [0], [data], ours) == [None]
        client.close()


@contextlib.contextmanager
def _worker(settings: MooncakeSettings, digest: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker that stores, and kill it."""
    command = [sys.executable, "-c", WORKER, json.dumps(vars(settings)), digest]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _is_shared(first: TierEngine, second: TierEngine, attempt: int) -> bool:
    """Whether one engine hits what the other one has computed just now."""
    time.sleep(1.0)  # Mooncake's clients look for their master every second
    prompt = [50 + attempt, *PROMPT]
    answer(first, f"d{attempt}", prompt)
    answer(first, f"e{attempt}", [1, 2, 3, attempt])
    return answer(second, f"f{attempt}", prompt) == BOUNDARY
