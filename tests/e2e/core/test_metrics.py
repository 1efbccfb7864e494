# SPDX-License-Identifier: Apache-2.0
"""What the cache counts, on its way through vLLM: scheduler, encoder, decoder, stat loggers."""

from __future__ import annotations

import json
import logging
import pickle
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.metrics.loggers import StatLoggerManager
from vllm.v1.metrics.prometheus import get_prometheus_registry, unregister_vllm_metrics
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from tests.e2e.core import layouts
from tests.e2e.core.configurations import DSV4, PARTIAL, RETENTION, SPARE
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.engine import Engine
from tests.e2e.scraping import difference, own_metrics
from vllm_ascend.core.policy.ranks import Rank
from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend.prefix_cache_config import child_environment

REPOSITORY = Path(__file__).parents[3]
ZERO = {DSV4: "1", PARTIAL: "1", RETENTION: "0"}
FEW_LAYERS = (0, 4, 128)


def tokens(seed: int, num_tokens: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(100_000) for _ in range(num_tokens)]


class Wire:
    """An engine whose outputs are encoded as vLLM does, for API servers to decode."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.messages: list[bytes] = []
        self._update = engine.scheduler.update_from_output
        engine.scheduler.update_from_output = self._update_and_send

    def _update_and_send(self, *args):
        outputs = self._update(*args)
        for message in outputs.values():
            (encoded,) = MsgpackEncoder().encode(message)
            self.messages.append(bytes(encoded))
        return outputs

    def serve(self, request_id: str, prompt: list[int], max_tokens: int = 2) -> int:
        """Serve a request to its end; return its hit."""
        self.engine.add(request_id, prompt, max_tokens)
        self.engine.run()
        return self.engine.hits[request_id]

    def record(self, *loggers, engines=(0,)) -> None:
        """Deliver all that was sent since the last time, once for each engine."""
        decoder = MsgpackDecoder(EngineCoreOutputs)
        for message in self.messages:
            stats = decoder.decode([message]).scheduler_stats
            for logger, engine in product(loggers, engines):
                logger.record(stats, None, engine_idx=engine)
        self.messages.clear()


def scrape() -> dict[str, float]:
    return own_metrics(generate_latest(get_prometheus_registry()).decode())


def a3(num_blocks: int = 2000, **options) -> dict:
    return {
        "layout": lambda: dsv4_flash_a3(128, compress_ratios=FEW_LAYERS),
        "options": SchedulerOptions(num_blocks=num_blocks, max_model_len=20_000, **options),
    }


@pytest.fixture(autouse=True)
def empty_registry() -> Iterator[None]:
    yield
    unregister_vllm_metrics()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What the project's logger says; vLLM writes lines only where its own says as much."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("vllm.plugins.vllm_ascend_backport")
    logger.addHandler(handler)
    with (
        caplog.at_level(logging.INFO, logger.name),
        caplog.at_level(logging.INFO, "vllm.v1.metrics.loggers"),
    ):
        yield messages
    logger.removeHandler(handler)


def four_requests(wire: Wire) -> None:
    """A prompt twice, then two prompts that leave it at token 512, the first of them unprepared."""
    first = tokens(1, 1000)
    branches = [first[:512] + tokens(seed, 488) for seed in (2, 3)]
    prompts = [first, first, *branches]
    hits = [wire.serve(f"r{i}", prompt) for i, prompt in enumerate(prompts)]
    assert hits == [0, 896, 0, 512]


FOUR_REQUESTS = {
    "prefix_hit_tokens_count": 4,
    "prefix_hit_tokens_sum": 896 + 512,
    "prefix_lookup_seconds_count": 4,
    "partial_hits_total": 2,
    # 896 ends inside a C4 block (512 tokens) and a C128 block (16,384), 512 in the latter only.
    "copied_blocks_total": 3,
    "junction_misses_total": 1,
    # The second request starts at its replay boundary, so it has none to keep.
    "kept_boundaries_total.replay": 3,
    "kept_boundaries_total.junction": 1,
}


def test_counts_are_exact_behind_the_real_encoder(make_engine: MakeEngine):
    wire = Wire(make_engine(**a3(), environment=ZERO))
    manager = StatLoggerManager(wire.engine.scheduler.vllm_config)
    before = scrape()
    assert set(before.values()) == {0}, "counters are there from the start"
    four_requests(wire)
    wire.record(manager)
    change = difference(scrape(), before)
    blocks = {name: change.pop(name) for name in list(change) if name.startswith("kv_cache_blocks")}
    assert change == FOUR_REQUESTS
    pool = wire.engine.manager.block_pool
    assert sum(blocks.values()) == pool.num_gpu_blocks - 1
    assert "kv_cache_blocks.used" not in blocks, "all requests have ended"
    queue = pool.free_block_queue
    assert blocks["kv_cache_blocks.cached"] == queue.tier(Rank.KEPT).num_free_blocks > 0


@pytest.mark.parametrize(
    ("interval", "interval_boundaries"), [("256", [256, 512, 768]), ("512", [512])]
)
def test_every_kept_boundary_has_one_reason(interval, interval_boundaries, make_engine):
    """A prompt of 1000 tokens and 300 more: replay boundary 896, finish boundary 1280."""
    wire = Wire(make_engine(**a3(), environment={**ZERO, RETENTION: interval}))
    manager = StatLoggerManager(wire.engine.scheduler.vllm_config)
    wire.serve("r", tokens(1, 1000), max_tokens=301)
    wire.record(manager)
    # Behind the prompt the interval goes on, up to 1300 tokens.
    passed = list(range(1024, 1301, int(interval)))
    at_the_end = 1280 in passed
    kinds = {k: v for k, v in scrape().items() if k.startswith("kept_boundaries")}
    assert kinds == {
        "kept_boundaries_total.replay": 1,
        "kept_boundaries_total.interval": len(interval_boundaries + passed),
        "kept_boundaries_total.finish": 0 if at_the_end else 1,
        "kept_boundaries_total.junction": 0,
    }


@pytest.mark.parametrize("spare", ["0", "1"])
def test_evictions_are_blocks_that_lost_their_content(spare, make_engine):
    """Of a pool that holds about two of ten prompts."""
    engine = make_engine(
        lambda: layouts.gemma_like(16, 64),
        SchedulerOptions(num_blocks=1500, max_num_seqs=2, max_model_len=4000),
        environment={RETENTION: "1024", SPARE: spare},
    )
    wire = Wire(engine)
    pool = engine.manager.block_pool
    lost: Counter[str] = Counter()
    hand_out = pool.get_new_blocks

    def watched(num_blocks: int):
        # The content that the next blocks to be handed out still have.
        for block in pool.free_block_queue.get_all_free_blocks()[:num_blocks]:
            if block.block_hash is not None:
                lost[pool.rank(block).name] += 1
        return hand_out(num_blocks)

    pool.get_new_blocks = watched
    manager = StatLoggerManager(engine.scheduler.vllm_config)
    for i in range(10):
        wire.serve(f"r{i}", tokens(i, 2500))
    wire.record(manager)
    told = scrape()
    assert told["kv_cache_evictions_total.cached"] == lost["KEPT"] + lost["ROLLING"] > 0
    spares = sum(count for rank, count in lost.items() if rank.startswith("SPARE"))
    assert told["kv_cache_evictions_total.spare"] == spares
    assert bool(spares) == (spare == "1")
    assert engine.reset(), "a reset is not an eviction, and counters outlive it"
    wire.serve("again", tokens(99, 20))
    wire.record(manager)
    assert scrape()["kv_cache_evictions_total.cached"] == told["kv_cache_evictions_total.cached"]


def test_a_waiting_request_is_counted_once(make_engine):
    """It is looked up in every step until there is room for it, and so timed as often."""
    wire = Wire(make_engine(**a3(num_blocks=1400, max_num_seqs=4), environment=ZERO))
    manager = StatLoggerManager(wire.engine.scheduler.vllm_config)
    for i in range(4):
        wire.engine.add(f"r{i}", tokens(i, 6000), 5)
    wire.engine.run()
    wire.record(manager)
    told = scrape()
    assert told["prefix_hit_tokens_count"] == 4
    assert told["prefix_lookup_seconds_count"] > 4


def test_a_preempted_request_is_counted_once(make_engine):
    engine = make_engine(
        lambda: layouts.gemma_like(4, 9),
        SchedulerOptions(num_blocks=60, max_num_seqs=3, max_model_len=120),
        environment={RETENTION: "0"},
    )
    wire = Wire(engine)
    manager = StatLoggerManager(engine.scheduler.vllm_config)
    for i in range(3):
        engine.add(f"r{i}", tokens(i, 30), 60)
    engine.run()
    assert engine.num_preemptions
    wire.record(manager)
    assert scrape()["prefix_hit_tokens_count"] == 3


def test_with_everything_unset_nothing_is_counted_or_shown(make_engine):
    engine = make_engine(
        lambda: layouts.gemma_like(16, 64),
        SchedulerOptions(num_blocks=400, max_model_len=4000),
        environment={},
    )
    wire = Wire(engine)
    manager = StatLoggerManager(engine.scheduler.vllm_config)
    wire.serve("r", tokens(1, 1000))
    decoder = MsgpackDecoder(EngineCoreOutputs)
    stats = [decoder.decode([message]).scheduler_stats for message in wire.messages]
    assert stats
    assert all(stat.ascend_prefix_cache is None for stat in stats)
    wire.record(manager)
    assert scrape() == {}


@pytest.mark.parametrize(("aggregates", "prefix"), [(False, "Engine 000"), (True, "1 Engines Agg")])
def test_one_line_per_interval_and_none_when_nothing_happened(
    aggregates, prefix, make_engine, told
):
    wire = Wire(make_engine(**a3(), environment=ZERO))
    config = wire.engine.scheduler.vllm_config
    logger = StatLoggerManager(config, aggregate_engine_logging=aggregates)
    told.clear()  # the engine has told what is in force
    four_requests(wire)
    wire.record(logger)
    logger.log()
    line = told.pop()
    assert line.startswith(prefix) and ": Prefix cache: " in line
    for part in (
        "35.2 % of 4,000 prompt tokens hit; requests started 4, hits inside a block 2, ",
        "blocks copied 3, junction misses (rows matched further than any tail was cached) 1; ",
        "; blocks: used 0, scratch ",
        "; evicted with content: spare 0, cached 0",
        "; boundaries kept: replay 3, finish 0, interval 0, junction 1",
    ):
        assert part in line
    logger.log()
    assert not told
    wire.serve("more", tokens(7, 300))
    wire.record(logger)
    logger.log()
    (line,) = told
    assert "Prefix cache: 0.0 % of 300 prompt tokens hit; requests started 1, " in line


@pytest.mark.parametrize(("aggregates", "lines"), [(False, 2), (True, 1)])
def test_there_are_as_many_lines_as_vllms(aggregates, lines, make_engine, told):
    wire = Wire(make_engine(**a3(), environment=ZERO))
    config = wire.engine.scheduler.vllm_config
    logger = StatLoggerManager(config, [0, 1], aggregate_engine_logging=aggregates)
    silent = StatLoggerManager(config, [0, 1], enable_default_loggers=False)
    told.clear()
    four_requests(wire)
    wire.record(logger, silent, engines=(0, 1))
    silent.log()
    assert not told
    logger.log()
    requests = [int(re.search(r"requests started (\d+)", line)[1]) for line in told]
    assert requests == [8 // lines] * lines


API_SERVERS = """
import json, os, pickle, sys
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.metrics.loggers import StatLoggerManager
from vllm.v1.metrics.prometheus import get_prometheus_registry
from vllm.v1.serial_utils import MsgpackDecoder
from prometheus_client import generate_latest
import vllm_ascend.patch.platform

def serve(work):
    config, messages = pickle.load(open(work, "rb"))
    logger = StatLoggerManager(config)
    decoder = MsgpackDecoder(EngineCoreOutputs)
    for message in messages:
        logger.record(decoder.decode([message]).scheduler_stats, None, engine_idx=0)
    print("METRICS", json.dumps(generate_latest(get_prometheus_registry()).decode()), flush=True)

for work in sys.argv[1:]:  # each in a process of its own
    if not (child := os.fork()):
        serve(work)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_two_api_servers_add_up(make_engine: MakeEngine, tmp_path: Path):
    """Each is told of every other step; either one shows the whole."""
    wire = Wire(make_engine(**a3(), environment=ZERO))
    four_requests(wire)
    (tmp_path / "shared").mkdir()
    works = [tmp_path / f"work{number}" for number in range(2)]
    for number, work in enumerate(works):
        work.write_bytes(
            pickle.dumps((wire.engine.scheduler.vllm_config, wire.messages[number::2]))
        )
    shared = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "shared")}
    children = subprocess.run(
        [sys.executable, "-c", API_SERVERS, *map(str, works)],
        env=child_environment({"VLLM_LOGGING_LEVEL": "ERROR", **ZERO, **shared}),
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    texts = [json.loads(text) for text in re.findall("METRICS (.*)", children.stdout)]
    half, whole = map(own_metrics, texts)
    changed = {name: value for name, value in whole.items() if value}
    blocks = {n: changed.pop(n) for n in list(changed) if n.startswith("kv_cache_blocks")}
    assert changed == FOUR_REQUESTS
    assert 0 < half["prefix_lookup_seconds_count"] < 4, "the first one did not see everything"
    assert sum(blocks.values()) == wire.engine.manager.block_pool.num_gpu_blocks - 1


def test_a_process_without_the_patches_passes_over_the_numbers(make_engine: MakeEngine, tmp_path):
    """Such as vLLM's data parallel coordinator."""
    wire = Wire(make_engine(**a3(), environment=ZERO))
    four_requests(wire)
    work = tmp_path / "work"
    work.write_bytes(pickle.dumps(wire.messages))
    code = """
import pickle, sys
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.serial_utils import MsgpackDecoder
decoder = MsgpackDecoder(EngineCoreOutputs)
messages = pickle.load(open(sys.argv[1], "rb"))
stats = [decoder.decode([message]).scheduler_stats for message in messages]
assert not hasattr(stats[0], "ascend_prefix_cache")
print(sum(one.prefix_cache_stats.hits for one in stats))
"""
    child = subprocess.run(
        [sys.executable, "-c", code, str(work)],
        env=child_environment({"VLLM_LOGGING_LEVEL": "ERROR"}),
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    assert child.stdout.split()[-1] == str(896 + 512)


def test_prometheus_loggers_replace_each_other(make_engine):
    """vLLM builds another one when an engine is scaled; metrics must not be registered twice."""
    config = make_engine(**a3(), environment=ZERO).scheduler.vllm_config
    StatLoggerManager(config, [0])
    StatLoggerManager(config, [0, 1])
    text = generate_latest(get_prometheus_registry()).decode()
    assert own_metrics(text, "1") == own_metrics(text, "0") != {}
