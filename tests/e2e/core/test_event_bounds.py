# SPDX-License-Identifier: Apache-2.0
"""What the relay tells an index of longest chains, against the engine's own look-up at every step.

A chain of blocks cannot tell every hit (docs/kv-events.md), so equality is required of what the
engine's look-ups imply: the longest prefix in which every boundary is hit, and the longest that
some prompt hits. The engine's answer lies between them, and is both where they are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from zlib import crc32

import pytest
from vllm.distributed.kv_events import BlockRemoved, KVCacheEvent
from vllm.v1.request import Request

from tests.e2e.core.configurations import Configuration, grid
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.dynamo_router import DynamoRouter
from tests.e2e.core.engine import Engine
from tests.e2e.core.event_follower import Follower, engine_hit, index_hit, over_the_wire
from tests.e2e.core.workload import Workload
from tests.release_marks import WHERE_EVENTS_ARE_ARRAYS
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend.kv_events.bound import Bound
from vllm_ascend.kv_events.bounds import BoundEvents
from vllm_ascend_evaluation.kv_events.prefix_index import PrefixIndex

# Question -> answer: tokens, salt, adapter -> tokens.
Ask = Callable[[list[int], str | None, int], int]

_CHAINS = (
    "gemma-plain-retention-0",
    "gemma-plain-spare-0",
    "dsv4-rows-plain-partial-0",
    "dsv4-rows-plain-best",
    "dsv4-rows-mtp1-best",
    "dsv4-gpu-plain-retention-0",
)
_DYNAMO = (
    "dsv4-a3-32-plain-partial-0",
    "dsv4-a3-32-plain-best",
    "dsv4-gpu-plain-retention-0",
    "dsv4-gpu-plain-best-of-stock",
)


class BoundFollower(Follower):
    """Feeds two indexes of chains through the relay, and holds both against the engine."""

    def __init__(self, engine: Engine, seed: int, **kwargs) -> None:
        self.bounds = {bound: BoundEvents(bound) for bound in Bound}
        self._prompts: dict[str, Request] = {}
        super().__init__(engine, seed, **kwargs)

    def deliver(self, bound: Bound, events: Sequence[KVCacheEvent]) -> None:
        """Bring events to the index of a bound."""
        raise NotImplementedError

    def ask(self, bound: Bound, tokens: list[int], salt: str | None, adapter: int) -> int:
        """Return what the index of a bound finds of a prompt but for its last token."""
        raise NotImplementedError

    def _publish(self) -> list[KVCacheEvent]:
        events = self._take_events()
        for bound, view in self.bounds.items():
            self.deliver(bound, view.of(self._read(events)))
        return events

    def compare(self, tokens: list[int], salt: str | None = None, adapter: int = 0) -> None:
        """Ask everybody about one prompt."""
        hit = engine_hit(self.engine, tokens, salt, adapter)
        lower, upper = (
            self.ask(bound, tokens, salt, adapter) for bound in (Bound.LOWER, Bound.UPPER)
        )
        assert hit <= upper
        assert upper == self._longest_of_any(tokens, salt, adapter)
        if self.engine.scheduler.use_eagle:
            # The last hit boundary rests on one more granule than a chain can look ahead.
            assert lower <= hit + self._alignment
        else:
            assert lower == self._hit_everywhere(tokens, salt, adapter)
        self.outcomes["hit" if hit else "miss"] += 1
        self.outcomes["exact hit"] += bool(hit) and hit in (lower, upper)

    @property
    def _alignment(self) -> int:
        return self.engine.manager.coordinator.lcm_block_size

    def _hit_everywhere(self, tokens: list[int], salt: str | None, adapter: int) -> int:
        """The longest prefix in which the engine hits every boundary when a prompt ends there."""
        end = step = self._alignment
        while end < len(tokens):
            if engine_hit(self.engine, tokens[: end + 1], salt, adapter) != end:
                break
            end += step
        return end - step

    def _longest_of_any(self, tokens: list[int], salt: str | None, adapter: int) -> int:
        """The longest prefix that the engine hits, or hits more than, in any prompt so far."""
        self._prompts |= self.engine.requests
        coordinator, longest = self.engine.manager.coordinator, 0
        for request in self._prompts.values():
            lora = request.lora_request.lora_int_id if request.lora_request else 0
            if (request.cache_salt, lora) != (salt, adapter):
                continue
            shared = _shared(tokens[:-1], request.all_token_ids) // self._alignment
            if shared * self._alignment > longest:
                hit = coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens)[
                    1
                ]
                longest = max(longest, min(hit, shared * self._alignment))
        return longest


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


class ChainFollower(BoundFollower):
    """Its indexes know chains of blocks and nothing of groups."""

    def __init__(self, engine: Engine, seed: int, **kwargs) -> None:
        self._chains = {bound: PrefixIndex(described=False) for bound in Bound}
        super().__init__(engine, seed, **kwargs)

    def deliver(self, bound: Bound, events: Sequence[KVCacheEvent]) -> None:
        """Apply them."""
        self._chains[bound].apply(over_the_wire(events))

    def ask(self, bound: Bound, tokens: list[int], salt: str | None, adapter: int) -> int:
        """Look it up; the index leaves the last token out by itself."""
        return index_hit(self._chains[bound], tokens, salt, adapter)


class DynamoFollower(BoundFollower):
    """Its indexes are NVIDIA Dynamo's, behind ZMQ. A third one hears the engine itself."""

    def __init__(self, engine: Engine, seed: int, **kwargs) -> None:
        coordinator = engine.manager.coordinator
        self.routers = {bound: DynamoRouter(coordinator.lcm_block_size) for bound in Bound}
        self.plain = DynamoRouter(coordinator.hash_block_size)
        self.num_removals = 0
        self.errors: dict[str, list[int]] = {"plain": [], "upper": [], "lower": []}
        super().__init__(engine, seed, **kwargs)

    def close(self) -> None:
        """Stop the routers."""
        for router in (*self.routers.values(), self.plain):
            router.close()

    def deliver(self, bound: Bound, events: Sequence[KVCacheEvent]) -> None:
        """Publish them."""
        self.num_removals += sum(isinstance(event, BlockRemoved) for event in events)
        self.routers[bound].publish(list(events))

    def ask(self, bound: Bound, tokens: list[int], salt: str | None, adapter: int) -> int:
        """Ask Dynamo."""
        return self.routers[bound].longest_prefix(tokens[:-1], _adapter_name(adapter))

    def _publish(self) -> list[KVCacheEvent]:
        events = super()._publish()
        self.plain.publish(events)
        return events

    def compare(self, tokens: list[int], salt: str | None = None, adapter: int = 0) -> None:
        """Leave salts out, which Dynamo knows only as its own handlers tag them; note errors."""
        super().compare(tokens, None, adapter)
        hit = engine_hit(self.engine, tokens, None, adapter)
        for bound in Bound:
            self.errors[bound.value].append(self.ask(bound, tokens, None, adapter) - hit)
        found = self.plain.longest_prefix(tokens[:-1], _adapter_name(adapter))
        self.errors["plain"].append(found - hit)

    def report(self) -> str:
        """Say how often each index was wrong, and by how much."""
        lines = []
        for name, errors in self.errors.items():
            long, short = [e for e in errors if e > 0], [-e for e in errors if e < 0]
            lines.append(
                f"{name:5}: {errors.count(0)} of {len(errors)} as the engine; "
                + ", ".join(
                    f"{len(wrong)} too {what}"
                    + (f" by {min(wrong)} to {max(wrong)}" if wrong else "")
                    for what, wrong in (("long", long), ("short", short))
                )
                + f"; off by {sum(map(abs, errors)) / len(errors):.0f} tokens on average"
            )
        return "\n".join(lines)


def _adapter_name(adapter: int) -> str | None:
    return f"adapter-{adapter}" if adapter else None


def _cells(names: Sequence[str]) -> list[Configuration]:
    return [cell for cell in grid() if str(cell) in names]


def _engine(cell: Configuration, room: float, make_engine: MakeEngine) -> Engine:
    options = SchedulerOptions(**vars(cell.options(room)) | {"enable_kv_cache_events": True})
    return make_engine(lambda: cell.layout, options, cell.oracle(3), cell.environment)


@pytest.mark.parametrize("cell", _cells(_CHAINS), ids=str)
def test_chains_hold_what_the_engine_hits(cell: Configuration, make_engine: MakeEngine) -> None:
    """Tight pools, where tails go before what they belong to, and wide ones."""
    seed = crc32(str(cell).encode())
    follower = ChainFollower(
        _engine(cell, 2.5 if seed % 2 else 1.05, make_engine), seed, probes_per_step=2
    )
    Workload(follower.engine, cell.traffic, seed).run(80)
    assert follower.outcomes["hit"] and follower.outcomes["miss"]


@WHERE_EVENTS_ARE_ARRAYS
@pytest.mark.parametrize("cell", _cells(_DYNAMO), ids=str)
def test_dynamo_finds_what_the_engine_hits(cell: Configuration, make_engine: MakeEngine) -> None:
    """Its own subscriber, reader and radix tree, asked 300 times and more (-s prints errors)."""
    follower = DynamoFollower(_engine(cell, 1.05, make_engine), 3, probes_per_step=2)
    try:
        Workload(follower.engine, replace(cell.traffic, salted=0.0), 3).run(60)
    finally:
        follower.close()
    print(f"\n{cell}: {follower.num_removals} removals\n{follower.report()}")
    assert len(follower.errors["plain"]) >= 300
    assert follower.outcomes["exact hit"] and follower.num_removals
    assert any(follower.errors["plain"]), "nothing was to be cured"
