# SPDX-License-Identifier: Apache-2.0
"""Tenants with the same tokens never share a block, nor a part of one; a tenant shares its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
import torch
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from tests.e2e.core.configurations import Configuration
from tests.e2e.core.engine import Engine
from tests.e2e.core.tenants import IsolationError, TenantWatch
from vllm_ascend.core.pool.exact_hashes import KINDS_ARE_HASHED
from vllm_ascend.core.pool.granule_index import GranuleIndex
from vllm_ascend.dry_run.worker import SamplingWorker
from vllm_ascend.prefix_cache_config import load_config
from vllm_ascend_evaluation.oracle import ContentViolation, check_integrity

CELLS = [
    Configuration.named(case, mode, switches)
    for case, mode, switches in (
        ("dsv4-rows", "plain", "retention-unset"),
        ("dsv4-rows", "plain", "best"),
        ("dsv4-rows", "priority", "pin-best"),
        ("dsv4-rows", "async-mtp", "best"),
        ("dsv4-rows", "plain", "partial"),
        ("dsv4-rows", "mtp1", "sparse-N"),
        ("dsv4-stock", "plain", "partial-0"),
        ("dsv4-stock", "plain", "retention-unset"),
        ("gemma", "async", "spare-0"),
        ("gemma", "priority", "pin"),
        ("full", "plain", "retention-unset"),
        ("mamba", "plain", "retention-unset"),
    )
]
BEST = next(cell for cell in CELLS if str(cell) == "dsv4-rows-plain-best")


def lora(number: int) -> LoRARequest:
    return LoRARequest(f"adapter-{number}", number, "/nowhere")


# What vLLM tells tenants apart by; None is the base model without a salt.
TENANTS: dict[str, dict[str, Any]] = {
    "nobody": {},
    "salt a": {"cache_salt": "a"},
    "salt b": {"cache_salt": "b"},
    "lora 1": {"lora": lora(1)},
    "lora 2": {"lora": lora(2)},
    "salt a, lora 1": {"cache_salt": "a", "lora": lora(1)},
    "salt b, lora 1": {"cache_salt": "b", "lora": lora(1)},
}
# Spelled like an adapter. With nothing set vLLM takes it for the adapter: see the last test.
LOOKALIKE = {"salt adapter-1": {"cache_salt": "adapter-1"}}


def tenants_of(cell: Configuration) -> dict[str, dict[str, Any]]:
    """Return who talks to an engine."""
    return TENANTS | LOOKALIKE if load_config(cell.environment).changes_caching else TENANTS


def watched(scheduler: Scheduler, watch: TenantWatch) -> Callable[[], SchedulerOutput]:
    """Return the scheduler's ``schedule``, with every step looked at."""
    schedule = type(scheduler).schedule

    def schedule_and_look() -> SchedulerOutput:
        output = schedule(scheduler)
        watch.check(output)
        return output

    return schedule_and_look


@dataclass
class Crowd:
    """All tenants on one engine, each asking the same questions at random times.

    Attributes:
        tenants: request id -> tenant.
        num_resumed: Requests that had to give their blocks up, and came back.
    """

    engine: Engine
    seed: int
    watch: TenantWatch = field(init=False)
    tenants: dict[str, str] = field(default_factory=dict)
    num_resumed: int = 0

    def __post_init__(self) -> None:
        self.watch = TenantWatch(self.engine.scheduler, self.tenants.__getitem__)
        self.engine.scheduler.schedule = watched(self.engine.scheduler, self.watch)

    def run(self, cell: Configuration, num_requests: int) -> None:
        """Prompts of one family, cut anywhere; resets, aborts and preemptions on the way."""
        rng = random.Random(self.seed)
        unit, longest = cell.traffic.unit_tokens, cell.traffic.max_prompt_tokens
        family = [rng.randrange(50) for _ in range(longest)]
        tenants = tenants_of(cell)
        for number in range(num_requests):
            tenant = rng.choice(list(tenants))
            cut = rng.choice([longest, rng.randrange(1, longest), rng.randrange(1, 9) * unit])
            prompt = family[:cut] + [rng.randrange(50) for _ in range(rng.randrange(unit))]
            self.tenants[f"r{number}"] = tenant
            self.engine.add(
                f"r{number}",
                prompt[:longest],
                rng.randrange(1, 30),
                arrival_time=float(number),
                priority=rng.randrange(3),
                **tenants[tenant],
            )
            for _ in range(rng.randrange(4)):
                self.engine.step()
            if rng.random() < 0.05 and self.engine.alive:
                self.engine.abort([rng.choice(self.engine.alive)])
            if rng.random() < 0.04:
                busy = not cell.mode.is_async
                self.num_resumed += busy * len(self.engine.scheduler.running)
                self.engine.reset(busy=busy)
        self.engine.drain()


def crowd(cell: Configuration, make_engine, room: float, seed: int) -> Crowd:
    engine = make_engine(
        lambda: cell.layout,
        lambda: cell.options(room),
        cell.oracle(seed),
        cell.environment,
        name="tenants",
    )
    return Crowd(engine, seed)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_no_block_is_shared_by_two_tenants(cell, make_engine):
    shared = resumed = 0
    for seed, room in enumerate((1.05, 6.0)):
        everyone = crowd(cell, make_engine, room, seed)
        everyone.run(cell, 120)
        shared += everyone.watch.shared
        resumed += everyone.num_resumed + everyone.engine.num_preemptions
    assert shared > 100, "no tenant hit its own prefix, so it proves nothing"
    assert resumed or cell.mode.is_async


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_tenant_hits_what_it_would_hit_alone(cell, make_engine):
    """And never more, whatever others have asked before: the first request of each hits nothing."""
    prompt = [i * 7 % 50 for i in range(cell.traffic.max_prompt_tokens - 1)]
    tenants = tenants_of(cell)
    everyone = crowd(cell, make_engine, 8.0 * len(tenants), seed=0)
    hits = {}
    for visit, (number, tenant) in product(range(2), enumerate(tenants)):
        name = f"{visit}-{number}"
        everyone.tenants[name] = tenant
        everyone.engine.add(name, prompt, 2, **tenants[tenant])
        everyone.engine.run()
        hits.setdefault(tenant, []).append(everyone.engine.hits[name])
    assert len({tuple(both) for both in hits.values()}) == 1, hits
    first, second = hits["nobody"]
    assert first == 0 < second


# Multimodal items and prompt embeddings: the content oracle knows neither, the watch needs none.


def own_request(kind: str, engine: Engine, name: str, tenant: int, start: int) -> Request:
    """Return a request of equal tokens whose content is the tenant's from ``start`` on."""
    num_tokens = 4 * 64 + 5
    embeds, features = None, []
    if kind == "prompt embeddings":
        embeds = torch.zeros(num_tokens, 4)
        embeds[start:] = tenant
    else:
        place = PlaceholderRange(offset=start, length=num_tokens - start)
        features = [MultiModalFeatureSpec(None, "image", f"image-{tenant}", place)]
    return Request(
        request_id=name,
        prompt_token_ids=None if embeds is not None else [7] * num_tokens,
        prompt_embeds=embeds,
        mm_features=features,
        sampling_params=SamplingParams(max_tokens=2, ignore_eos=True, temperature=0.0),
        pooling_params=None,
        block_hasher=kv_cache_utils.get_request_block_hasher(
            engine.manager.block_pool.hash_block_size, get_hash_fn_by_name("sha256")
        ),
    )


def ask(engine: Engine, request: Request) -> int:
    """Have a request answered; return its hit."""
    scheduler, worker = engine.scheduler, SamplingWorker(engine.scheduler)
    # As a multimodal model would have it; the stand-in model has no encoder.
    scheduler.max_num_encoder_input_tokens = 10_000
    scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=10_000)
    scheduler.add_request(request)
    hit = None
    while scheduler.requests:
        output = scheduler.schedule()
        if output.scheduled_new_reqs:
            hit = output.scheduled_new_reqs[0].num_computed_tokens
        scheduler.update_from_output(output, worker.execute(output))
    assert hit is not None
    return hit


@pytest.mark.parametrize("kind", ["prompt embeddings", "image"])
@pytest.mark.parametrize("start", [0, 1, 15, 16, 17, 63, 64, 65, 100, 200])
def test_what_is_not_in_the_tokens_ends_a_hit(kind, start, make_engine):
    """Equal tokens, all of them: only what stands behind them tells the tenants apart."""
    engine = make_engine(
        lambda: BEST.layout, lambda: BEST.options(8.0), None, BEST.environment, name="tenants"
    )
    watch = TenantWatch(engine.scheduler, lambda name: name.split()[0])
    hits = {}
    for name in ("1 first", "2 first", "1 again", "2 again"):
        request = own_request(kind, engine, name, int(name[0]), start)
        if start == 0:
            engine.scheduler.schedule = watched(engine.scheduler, watch)
        hits[name] = ask(engine, request)
    assert hits["1 first"] == 0
    assert hits["2 first"] <= start
    assert hits["1 again"] == hits["2 again"] == 256
    check_integrity(engine.manager)


# Planted bugs


def forget_the_salt(patch: pytest.MonkeyPatch) -> None:
    """Leave the salt out of the keys, adapters stay in."""
    original = kv_cache_utils.generate_block_hash_extra_keys

    def without_salt(request, *args):
        salt, request.cache_salt = request.cache_salt, None
        try:
            return original(request, *args)
        finally:
            request.cache_salt = salt

    patch.setattr(kv_cache_utils, "generate_block_hash_extra_keys", without_salt)


def forget_what_stands_behind_tokens(patch: pytest.MonkeyPatch) -> None:
    """Name blocks by their tokens alone."""
    patch.setattr(kv_cache_utils, "generate_block_hash_extra_keys", lambda r, s, e, i: (None, i))


def take_any_partial_block(patch: pytest.MonkeyPatch) -> None:
    """End a hit inside whatever block of the group was entered last, whosever it is."""
    last: dict[int, object] = {}
    enter, find = GranuleIndex.enter, GranuleIndex.find

    def remember(self, group_id, block, granules):
        last[group_id] = granules[-1]
        return enter(self, group_id, block, granules)

    def find_any(self, group_id, granule):
        return find(self, group_id, last[group_id]) or find(self, group_id, granule)

    patch.setattr(GranuleIndex, "enter", remember)
    patch.setattr(GranuleIndex, "find", find_any)


BUGS = [forget_the_salt, forget_what_stands_behind_tokens, take_any_partial_block]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(bug, make_engine, monkeypatch):
    bug(monkeypatch)
    with pytest.raises((IsolationError, ContentViolation)):
        for seed in range(4):
            crowd(BEST, make_engine, 6.0, seed).run(BEST, 120)


def test_the_watch_alone_catches_a_shared_block(make_engine, monkeypatch):
    """It does not lean on the content oracle, which looks at rows that are read."""
    forget_the_salt(monkeypatch)
    monkeypatch.setattr(ContentViolation, "__init__", lambda self, *args, **kwargs: None)
    with pytest.raises(IsolationError, match=r"which .* filled"):
        for seed in range(4):
            crowd(BEST, make_engine, 6.0, seed).run(BEST, 120)


@pytest.mark.skipif(KINDS_ARE_HASHED, reason="vLLM hashes a salt as a salt")
def test_with_nothing_set_a_salt_may_pass_for_an_adapter(make_engine):
    """vLLM 0.20.2's own: the first block of an adapter's prompt goes to whoever names it."""
    stock = next(cell for cell in CELLS if str(cell) == "full-plain-retention-unset")
    everyone = crowd(stock, make_engine, 8.0, seed=0)
    prompt = list(range(41))
    for tenant in ("lora 1", "salt adapter-1"):
        everyone.tenants[tenant] = tenant
    everyone.engine.add("lora 1", prompt, 1, **TENANTS["lora 1"])
    everyone.engine.run()
    everyone.engine.add("salt adapter-1", prompt, 1, **LOOKALIKE["salt adapter-1"])
    with pytest.raises(IsolationError, match="holds block 1, which lora 1 filled"):
        everyone.engine.run()


# What a tenant can find out about others


A3 = {
    switches: Configuration.named("dsv4-a3-128", "plain", switches)
    for switches in ("retention-unset", "best")
}


@pytest.mark.parametrize(("switches", "seen_tokens"), [("retention-unset", 16_384), ("best", 128)])
def test_how_much_of_anothers_prompt_a_probe_shows(switches, seen_tokens, make_engine):
    """Without salts everybody is one tenant; a hit tells how far a guess is right."""
    cell = A3[switches]
    engine = make_engine(
        lambda: cell.layout, lambda: cell.options(30.0), cell.oracle(0), cell.environment
    )
    rng = random.Random(0)
    secret = [rng.randrange(50) for _ in range(33_000)]
    engine.add("victim", secret, 1)
    engine.run()
    for number, right in enumerate((100, 128, 5_000, 16_384, 16_511, 32_900)):
        engine.add(f"probe {number}", [*secret[:right], *[60] * 200], 1)
        engine.add(f"salted {number}", secret[:right], 1, cache_salt=f"another {number}")
        engine.run()
        assert engine.hits[f"probe {number}"] == right // seen_tokens * seen_tokens
        assert engine.hits[f"salted {number}"] == 0


@pytest.mark.parametrize("cell", CELLS[1:7], ids=str)
def test_what_others_say_changes_nothing_but_the_room_that_is_left(cell, make_engine):
    """No junction, no kept tail, no order of eviction depends on a foreign tenant's tokens."""
    unit = cell.traffic.unit_tokens
    mine = [i * 7 % 50 for i in range(8 * unit + 3)]
    pools = []
    for theirs in (mine[: 5 * unit + 1] + [60] * unit, [70] * (6 * unit + 1)):
        engine = make_engine(
            lambda: cell.layout, lambda: cell.options(6.0), cell.oracle(0), cell.environment
        )
        for number, (prompt, salt) in enumerate(((mine, "a"), (theirs, "b"), (mine, "a"))):
            engine.add(f"r{number}", prompt, 2, cache_salt=salt)
            engine.run()
        queue = engine.manager.block_pool.free_block_queue.get_all_free_blocks()
        pools.append([(block.block_id, block.block_hash is None) for block in queue])
    assert pools[0] == pools[1]
