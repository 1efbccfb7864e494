# SPDX-License-Identifier: Apache-2.0
"""A router beside an engine: follows its events, and is compared with the engine's own look-up."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
from vllm.distributed.kv_events import KVCacheEvent, KVEventBatch
from vllm.lora.request import LoRARequest

from tests.e2e.core.engine import Engine
from vllm_ascend.dry_run.scheduler import make_request
from vllm_ascend_evaluation.kv_events.prefix_index import PrefixIndex

_decoder = msgspec.msgpack.Decoder(KVEventBatch)


def over_the_wire(events: Sequence[KVCacheEvent]) -> list:
    """Encode events as vLLM's publisher does and decode them by the schema of vLLM 0.20.2."""
    batch = KVEventBatch(ts=0.0, events=list(events))
    return _decoder.decode(msgspec.msgpack.Encoder().encode(batch)).events


def engine_hit(engine: Engine, tokens: list[int], salt: str | None, adapter: int) -> int:
    """What the engine's look-up gives for a prompt; nothing is enqueued."""
    lora = LoRARequest(f"adapter-{adapter}", adapter, "/nowhere") if adapter else None
    request = make_request(engine.scheduler, "probe", tokens, 1, cache_salt=salt, lora=lora)
    coordinator = engine.manager.coordinator
    return coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)[1]


def index_hit(index: PrefixIndex, tokens: list[int], salt: str | None, adapter: int) -> int:
    """What the router's index gives for the same prompt."""
    lora = f"adapter-{adapter}" if adapter else None
    return index.longest_hit(tokens, cache_salt=salt, lora_name=lora)


class Follower:
    """Compares at the start of every step, where the next request would be looked up.

    Attributes:
        outcomes: how many probes hit, missed, or were of another tenant.
    """

    def __init__(
        self,
        engine: Engine,
        seed: int,
        probes_per_step: int = 4,
        read: Callable[[Sequence[KVCacheEvent]], list] = over_the_wire,
        index: PrefixIndex | None = None,
    ) -> None:
        self.engine = engine
        self.index = PrefixIndex() if index is None else index
        self.outcomes: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._probes_per_step = probes_per_step
        self._read = read
        pool, coordinator = engine.manager.block_pool, engine.manager.coordinator
        self._take_events, self._new_step_starts = pool.take_events, coordinator.new_step_starts
        pool.take_events, coordinator.new_step_starts = self._publish, self._start_step

    def _publish(self) -> list[KVCacheEvent]:
        events = self._take_events()
        self.index.apply(self._read(events))
        return events

    def _start_step(self) -> None:
        self._new_step_starts()
        self._publish()
        for _ in range(self._probes_per_step):
            self.compare(*self._probe())

    def compare(self, tokens: list[int], salt: str | None = None, adapter: int = 0) -> None:
        """Ask both about one prompt."""
        expected = engine_hit(self.engine, tokens, salt, adapter)
        found = index_hit(self.index, tokens, salt, adapter)
        assert found == expected, (
            f"index {found}, engine {expected}: "
            f"{len(tokens)} tokens, salt {salt}, adapter {adapter}"
        )
        self.outcomes["hit" if found else "miss"] += 1
        if found and (salt or adapter):
            self.outcomes["hit of a tenant"] += 1

    def _probe(self) -> tuple[list[int], str | None, int]:
        """A prefix of what was seen, cut anywhere, going on alike or differently."""
        rng = self._random
        requests = list(self.engine.requests.values())
        if not requests:
            return [1, 2, 3], None, 0
        request = rng.choice(requests)
        tokens = list(request.all_token_ids)
        tokens = tokens[: rng.randrange(1, len(tokens) + 1)] if rng.random() < 0.6 else tokens
        if rng.random() < 0.6:
            tokens += [rng.randrange(50) for _ in range(rng.randrange(1, 40))]
        salt = request.cache_salt if rng.random() < 0.8 else rng.choice([None, "a", "b"])
        adapter = request.lora_request.lora_int_id if request.lora_request else 0
        return tokens, salt, adapter if rng.random() < 0.8 else rng.randrange(3)
