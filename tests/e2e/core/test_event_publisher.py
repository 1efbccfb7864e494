# SPDX-License-Identifier: Apache-2.0
"""vLLM's own publisher in between: scheduler, ZMQ, another process, and the index there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from vllm.distributed.kv_events import AllBlocksCleared, KVEventBatch, ZmqEventPublisher

from tests.e2e.core.configurations import Configuration, grid
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.engine import Engine
from tests.e2e.core.event_follower import engine_hit
from tests.e2e.core.workload import Workload
from tests.ut.kv_events.ports import free_ports
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend.kv_events.subscriber import MissedEventsError, Subscriber
from vllm_ascend.prefix_cache_config import child_environment
from vllm_ascend_evaluation.kv_events.prefix_index import PrefixIndex

REPOSITORY = Path(__file__).parents[3]
_NAMES = ("gemma-plain-spare-0", "dsv4-rows-plain-best", "dsv4-rows-mtp1-best")
_CELLS = [cell for cell in grid() if str(cell) in _NAMES]
_decode = msgspec.msgpack.Decoder(KVEventBatch).decode

ROUTER = """
import json, sys
import msgspec
from vllm.distributed.kv_events import KVEventBatch
from vllm_ascend_evaluation.kv_events.prefix_index import PrefixIndex
from vllm_ascend.kv_events.subscriber import Subscriber

decode = msgspec.msgpack.Decoder(KVEventBatch).decode
endpoints = None
for line in sys.stdin:
    question = json.loads(line)
    if endpoints != question["endpoints"]:
        endpoints = question["endpoints"]
        subscriber, index = Subscriber(*endpoints, decode, "kv@"), PrefixIndex()
    for batch in subscriber.batches(question["patience"]):
        index.apply(batch.events)
        if batch.ts >= question["until"]:
            break
    print(json.dumps([index.longest_hit(tokens) for tokens in question["prompts"]]), flush=True)
"""


class PublishedEngine:
    """An engine whose scheduler publishes over ZMQ as with ``--kv-events-config``."""

    def __init__(self, engine: Engine, buffer_steps: int = 10_000) -> None:
        live, replay = free_ports(2)
        self.engine = engine
        self.endpoint = f"tcp://127.0.0.1:{live}"
        self.replay_endpoint = f"tcp://127.0.0.1:{replay}"
        self.publisher = ZmqEventPublisher(
            0,
            endpoint=f"tcp://*:{live}",
            replay_endpoint=f"tcp://*:{replay}",
            buffer_steps=buffer_steps,
            topic="kv@engine@model",
        )
        self.last_ts = 0.0
        engine.scheduler.kv_event_publisher = self

    def publish(self, batch: KVEventBatch) -> None:
        """Note when the last batch was published, and hand it on."""
        self.last_ts = batch.ts
        self.publisher.publish(batch)

    def wait_until_sent(self) -> None:
        """Return once the publisher's thread has sent all that was published."""
        self.publisher._event_queue.join()

    def subscribe(self) -> Subscriber:
        return Subscriber(self.endpoint, self.replay_endpoint, _decode, "kv@")

    def prompts(self) -> list[list[int]]:
        """Prompts whose look-up would tell a difference."""
        prompts = []
        for request in list(self.engine.requests.values())[-12:]:
            if request.cache_salt or request.lora_request:
                continue
            tokens = list(request.all_token_ids)
            prompts += [tokens, tokens[: len(tokens) // 2] + [7] * 9, tokens + [3] * 50]
        return prompts

    def expected(self, prompts: list[list[int]]) -> list[int]:
        # What a step completes can be hit from the next one on.
        self.engine.manager.coordinator.new_step_starts()
        return [engine_hit(self.engine, tokens, None, 0) for tokens in prompts]


@pytest.fixture
def publish(make_engine: MakeEngine) -> Iterator[Callable[..., PublishedEngine]]:
    """Build engines that publish; their publishers are shut down when the test ends."""
    started: list[PublishedEngine] = []

    def start(cell: Configuration, **kwargs) -> PublishedEngine:
        options = vars(cell.options(2.5)) | {"enable_kv_cache_events": True}
        engine = make_engine(
            lambda: cell.layout, SchedulerOptions(**options), cell.oracle(3), cell.environment
        )
        started.append(PublishedEngine(engine, **kwargs))
        return started[-1]

    yield start
    for engine in started:
        engine.publisher.shutdown()


def serve(engine: Engine, cell: Configuration, num_steps: int, seed: int) -> None:
    """Traffic, and then steps until no request is left; the cache stays."""
    workload = Workload(engine, cell.traffic, seed)
    target = engine.worker.num_steps + num_steps
    while engine.worker.num_steps < target:
        if len(engine.alive) < cell.traffic.max_alive:
            workload._add()
        engine.step()
    engine.run()


def follow(subscriber: Subscriber, index: PrefixIndex, until: float) -> list:
    """Apply batches up to the one published at a time; return all events."""
    events: list = []
    for batch in subscriber.batches(timeout_s=20):
        index.apply(batch.events)
        events += batch.events
        if batch.ts >= until:
            break
    return events


@pytest.fixture(scope="module")
def router() -> Iterator[subprocess.Popen[str]]:
    """A process that follows one engine after another."""
    process = subprocess.Popen(
        [sys.executable, "-c", ROUTER],
        cwd=REPOSITORY,
        env=child_environment({"VLLM_LOGGING_LEVEL": "ERROR"}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    yield process
    process.stdin.close()
    process.wait(timeout=300)


@pytest.mark.parametrize("cell", _CELLS, ids=str)
def test_a_router_in_another_process_knows_what_the_engine_would_hit(
    cell: Configuration, publish: Callable[..., PublishedEngine], router: subprocess.Popen[str]
) -> None:
    """It comes late, too: a hundred steps were published when it is asked for the first time."""
    assert router.stdin is not None and router.stdout is not None
    published = publish(cell)
    hits = 0
    for number, num_steps in enumerate((100, 30, 30)):
        serve(published.engine, cell, num_steps, seed=number)
        prompts = published.prompts()
        question = {
            "endpoints": [published.endpoint, published.replay_endpoint],
            "prompts": prompts,
            "until": published.last_ts,
            "patience": 300,
        }
        router.stdin.write(json.dumps(question) + "\n")
        router.stdin.flush()
        expected = published.expected(prompts)
        assert json.loads(router.stdout.readline()) == expected
        hits += sum(map(bool, expected))
    assert hits


def test_a_reset_is_told_while_the_engine_is_idle(
    publish: Callable[..., PublishedEngine],
) -> None:
    """No step follows that would publish it."""
    published = publish(_CELLS[0])
    serve(published.engine, _CELLS[0], 40, seed=1)
    subscriber, index = published.subscribe(), PrefixIndex()
    follow(subscriber, index, published.last_ts)
    prompts = published.prompts()
    assert any(map(index.longest_hit, prompts))
    assert published.engine.reset()
    events = follow(subscriber, index, published.last_ts)
    assert any(isinstance(event, AllBlocksCleared) for event in events)
    assert not any(map(index.longest_hit, prompts))
    assert index.is_ready
    subscriber.close()


def test_a_router_that_missed_too_much_is_told_so_and_exact_after_a_reset(
    publish: Callable[..., PublishedEngine],
) -> None:
    published = publish(_CELLS[1], buffer_steps=5)
    engine = published.engine
    serve(engine, _CELLS[1], 40, seed=1)
    # Whoever asks before its thread is so far is in time for the first batches.
    published.wait_until_sent()
    subscriber, index = published.subscribe(), PrefixIndex()
    with pytest.raises(MissedEventsError, match="batches 0 to"):
        follow(subscriber, index, published.last_ts)
    follow(subscriber, index, published.last_ts)
    assert not index.is_ready
    assert not any(map(index.longest_hit, published.prompts()))
    assert engine.reset()
    serve(engine, _CELLS[1], 40, seed=2)
    follow(subscriber, index, published.last_ts)
    prompts = published.prompts()
    assert [index.longest_hit(tokens) for tokens in prompts] == published.expected(prompts)
    subscriber.close()
