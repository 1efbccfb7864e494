# SPDX-License-Identifier: Apache-2.0
"""A connector that brings any request any number of tokens: at once, late, or not at all.

What it loads are the rows that the model would have written; so whatever the oracle finds wrong is
the scheduler's doing. Blocks that it has handed on must not change until it has let them go.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.v1.request import RequestStatus

from tests.e2e.connectors.worker_hooks import EmptyWorkerHooks
from vllm_ascend.core.layout.specs import group_specs, is_windowed, read_span, tokens_per_block
from vllm_ascend_evaluation.oracle.contents import digests_of
from vllm_ascend_evaluation.oracle.digests import GARBAGE, LOST, PrefixDigests
from vllm_ascend_evaluation.oracle.groups import Kind


@dataclass
class Load:
    """Blocks that a request waits for.

    Attributes:
        digests: Of all its tokens.
        num_tokens: So many of them are to be in the cache.
        placed: Per group, (ordinal, block id).
        fails: From this token on it will not arrive; ``None``: all of it will.
        delay: Steps until it has; 0 for within this one.
    """

    request_id: str
    digests: PrefixDigests
    num_tokens: int
    placed: list[list[tuple[int, int]]]
    fails: int | None
    delay: int


@dataclass
class Orders(KVConnectorMetadata):
    """What a step's worker is to do."""

    loads: list[Load] = field(default_factory=list)
    sends: dict[str, list[list[int]]] = field(default_factory=dict)


class FakeConnector(EmptyWorkerHooks, KVConnectorBase_V1, SupportsHMA):
    """``extra_config``: ``seed``, ``failures`` (share of loads), ``unit`` (tokens), and optionally
    ``fails_in_step`` (whether loads that a step waits for may fail)."""

    knows_granules = True
    knows_rows = True

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.seed, self.failures, self.unit = extra["seed"], extra["failures"], extra["unit"]
        self.fails_in_step = extra.get("fails_in_step", True)
        self.block_tokens = [tokens_per_block(spec) for spec in group_specs(kv_cache_config)]
        self.orders = Orders()
        self.offered: dict[str, tuple[int, bool]] = {}
        self.put_off: set[str] = set()
        self.loads: list[Load] = []
        self.received: set[str] = set()
        self.sends: dict[str, tuple[int, list[list[int]], list[np.ndarray]]] = {}
        self.invalid: set[int] = set()
        self.num_loaded = self.num_failed = 0
        self.worker: Any = None

    # Scheduler

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        name = request.request_id
        rng = random.Random(crc32(f"{self.seed} {name}".encode()))
        if name in self.offered or rng.random() < 0.4:
            return 0, False
        if rng.random() < 0.3 and name not in self.put_off:
            self.put_off.add(name)
            return None, False
        available = rng.randrange(request.num_tokens)
        if rng.random() < 0.5:
            available = available // self.unit * self.unit
        brings = available - num_computed_tokens
        return (brings, rng.random() < 0.6) if brings > 0 else (0, False)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        name = request.request_id
        if not num_external_tokens:
            return
        rng = random.Random(crc32(f"{self.seed} {name} load".encode()))
        num_tokens, is_async = self._asked(request, blocks, num_external_tokens)
        self.offered[name] = num_tokens, is_async
        start = num_tokens - num_external_tokens
        fails = rng.random() < self.failures and (is_async or self.fails_in_step)
        self.orders.loads.append(
            Load(
                name,
                digests_of(
                    request,
                    cache_salt=request.cache_salt,
                    output_token_ids=request.output_token_ids,
                ),
                num_tokens,
                [
                    [
                        (ordinal, block.block_id)
                        for ordinal, block in enumerate(group)
                        if not block.is_null
                        and start // tokens <= ordinal < -(-num_tokens // tokens)
                    ]
                    for group, tokens in zip(blocks.blocks, self.block_tokens, strict=True)
                ],
                fails=rng.randrange(start, num_tokens) if fails else None,
                delay=rng.randrange(1, 5) if is_async else 0,
            )
        )

    def _asked(self, request, blocks, num_external_tokens):
        """Return what was promised: the tokens in the cache after the load, and how."""
        rng = random.Random(crc32(f"{self.seed} {request.request_id}".encode()))
        rng.random()
        rng.random()
        available = rng.randrange(request.num_tokens)
        if rng.random() < 0.5:
            available = available // self.unit * self.unit
        assert available > 0
        return available, rng.random() < 0.6

    def request_finished_all_groups(self, request, block_ids):
        held = [[block_id for block_id in group if block_id] for group in block_ids]
        if request.status != RequestStatus.FINISHED_LENGTH_CAPPED:
            return False, None
        if crc32(f"{self.seed} {request.request_id} send".encode()) % 3 or not any(held):
            return False, None
        self.orders.sends[request.request_id] = held
        return True, None

    def build_connector_meta(self, scheduler_output):
        orders, self.orders = self.orders, Orders()
        return orders

    # Worker

    def start_load_kv(self, forward_context, **kwargs):
        orders = self._get_connector_metadata()
        for request_id, tables in orders.sends.items():
            delay = crc32(f"{request_id} delay".encode()) % 4
            self.sends[request_id] = delay, tables, self._rows(tables)
        for load in orders.loads:
            ids = {block_id for placed in load.placed for _, block_id in placed}
            # Other connectors write from now on, whatever the step does.
            raced = self.worker.zeroed & ids if load.delay else ()
            assert not raced, f"{load.request_id} is loaded into blocks that are zeroed: {raced}"
            for group_id, placed in enumerate(load.placed):
                self.worker.expect(
                    load.request_id, group_id, [b for _, b in placed], runs_now=load.delay == 0
                )
        self.loads += orders.loads
        self._finish([load for load in self.loads if load.delay == 0])

    def _rows(self, tables: Sequence[Sequence[int]]) -> list[np.ndarray]:
        rows = self.worker.memory.rows
        return [rows[group_id][list(ids)].copy() for group_id, ids in enumerate(tables)]

    def _finish(self, loads: Sequence[Load]) -> None:
        for load in loads:
            self.loads.remove(load)
            ids = {block_id for placed in load.placed for _, block_id in placed}
            digests = load.digests.array
            for group_id, placed in enumerate(load.placed):
                self._write(group_id, placed, load.num_tokens, digests)
            self.num_loaded += load.fails is None
            self.worker.has_loaded(ids)
            if load.fails is not None and ids:
                self._fail(load, ids)

    def _fail(self, load: Load, ids: set[int]) -> None:
        """Lose what a load should have brought from a token on, and report its blocks."""
        assert load.fails is not None
        self.num_failed += 1
        lost = {
            (group_id, block_id): max(load.fails - ordinal * tokens, 0)
            for group_id, (placed, tokens) in enumerate(
                zip(load.placed, self.block_tokens, strict=True)
            )
            for ordinal, block_id in placed
            if (ordinal + 1) * tokens > load.fails
        }
        for (group_id, block_id), first_token in lost.items():
            rules = self.worker._groups[group_id].rules
            ratio = rules.tokens_per_block // rules.rows_per_block
            rows = slice(first_token // ratio, None)
            self.worker.memory.mark(block_id, group_id, rows, LOST)
        self.invalid |= {block_id for _, block_id in lost} or ids
        if load.delay == 0:
            self.worker.lose(load.request_id)

    def _write(self, group_id, placed, num_tokens, digests) -> None:
        rules = self.worker._groups[group_id].rules
        size, ratio = rules.rows_per_block, rules.ratio if rules.kind is Kind.FULL else 1
        for ordinal, block_id in placed:
            first = ordinal * size
            count = max(min(num_tokens // ratio - first, size), 0)
            stamps = digests[(first + 1) * ratio : (first + count) * ratio + 1 : ratio]
            self.worker.memory.rows[group_id][block_id, :count] = stamps
            if group_id in self.worker.memory.draft_rows:
                behind = 1 + rules.draft_ahead
                ahead = digests[first + behind : first + count + behind]
                plane = self.worker.memory.draft_rows[group_id][block_id]
                plane[:count] = GARBAGE
                plane[: len(ahead)] = ahead

    def get_finished(self, finished_req_ids):
        received = {load.request_id for load in self.loads if load.delay == 1}
        self._finish([load for load in self.loads if load.delay == 1])
        for load in self.loads:
            load.delay -= 1
        sent = {name for name, (delay, *_) in self.sends.items() if delay == 0}
        for name in sent:
            _, tables, before = self.sends.pop(name)
            for then, now in zip(before, self._rows(tables), strict=True):
                assert (then == now).all(), f"blocks of {name} changed while they were handed on"
        self.sends = {name: (d - 1, *rest) for name, (d, *rest) in self.sends.items()}
        return sent, received

    def get_block_ids_with_load_errors(self):
        invalid, self.invalid = self.invalid, set()
        return invalid


class WholeBlockConnector(FakeConnector):
    """One that copes neither with hits inside blocks nor with hashes of granules."""

    knows_granules = False


class TailConnector(FakeConnector):
    """One that hands on what a request needs to go on behind its end, and says so."""

    takes_tails_alone = True

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.specs = group_specs(kv_cache_config)

    def request_finished_all_groups(self, request, block_ids):
        tails = tuple(
            table[self._first_read(spec, request.num_computed_tokens) // tokens :]
            for spec, tokens, table in zip(self.specs, self.block_tokens, block_ids, strict=True)
        )
        return super().request_finished_all_groups(request, tails)

    def _first_read(self, spec, num_tokens: int) -> int:
        return read_span(spec, self.specs).start(num_tokens) if is_windowed(spec) else 0


def transfer_config(
    *,
    seed: int,
    failures: float,
    unit: int,
    policy: str = "recompute",
    knows_granules: bool = True,
    fails_in_step: bool = True,
    takes_tails_alone: bool = False,
    connector: type[FakeConnector] | None = None,
    **extra: Any,
) -> KVTransferConfig:
    """Configure one of the connectors.

    Args:
        seed: Of what it brings to whom.
        failures: Share of loads that fail.
        unit: Tokens; it often brings multiples of this.
        policy: ``kv_load_failure_policy``.
        knows_granules: Whether it copes with hits that end inside blocks.
        fails_in_step: Whether loads that a step waits for may fail as well.
        takes_tails_alone: Whether state may be sparse beside it; of one that knows granules.
        connector: A class of its own, instead of what the last two choose.
        **extra: What such a class reads of ``kv_connector_extra_config`` as well.
    """
    if connector is None:
        connector = FakeConnector if knows_granules else WholeBlockConnector
        if takes_tails_alone:
            connector = TailConnector
    return KVTransferConfig(
        kv_connector=connector.__name__,
        kv_connector_module_path=connector.__module__,
        kv_role="kv_both",
        kv_load_failure_policy=policy,
        kv_connector_extra_config={
            "seed": seed,
            "failures": failures,
            "unit": unit,
            "fails_in_step": fails_in_step,
            **extra,
        },
    )
