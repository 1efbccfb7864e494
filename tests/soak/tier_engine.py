# SPDX-License-Identifier: Apache-2.0
"""An engine of the soak with a tier below: its store is late and fails as the case says."""

from __future__ import annotations

from typing import Any
from unittest import mock

from tests.e2e.connectors.connected import ConnectedEngine
from tests.e2e.core.engine import Oracle
from tests.e2e.tier.engine_core import Core
from tests.e2e.tier.memory_client import MemoryClient, MemoryPool
from tests.e2e.tier.tier_engine import TierEngine, transfer_config
from tests.soak.case import Case, Tier
from tests.soak.disk import LateDisk
from tests.soak.engines import PatientEngine
from tests.soak.slow_store import LateStoreThread
from tests.soak.tier_ranks import Ranks, SoakTierWorker
from vllm_ascend.tier import backends, connector, layout
from vllm_ascend.tier.disk.files import DiskFiles
from vllm_ascend.tier.shared_reset import SharedReset

# What the tier's scheduler takes for the seconds of a step: some, so that pauses end.
_SECONDS_PER_STEP = 1.5
_LOAD_SECONDS = 6.0  # some steps: loads wait in vain for a disk that is late
_HOST = "host"


def pool_of(tier: Tier) -> MemoryPool:
    """The store that all engines of a case share."""
    pool = MemoryPool(tier.seed, tier.num_objects)
    pool.vanishes = pool.flips = tier.failures / 10
    return pool


class _QuickReset(SharedReset):
    """Waits for nothing that is on its way: it is removed when it has arrived."""

    def _clear(self, on_their_way: Any) -> bool:
        return self._index.clear()


class SoakTierEngine(PatientEngine, TierEngine):
    """Drives a scheduler with a tier below, as vLLM's ``EngineCore`` does."""

    def __init__(
        self, case: Case, pool: MemoryPool, folder: str, number: int, oracle: Oracle
    ) -> None:
        """Build it.

        Args:
            pool: Of backend ``mooncake``.
            folder: Of the disk.
            number: Tells the engines of a case apart.
        """
        assert case.tier is not None
        self._tier_case, self._seed = case.tier, f"{case.tier.seed} {number}"
        self._steps = 0
        tier, extra = case.tier, dict[str, Any]()
        if tier.backend == _HOST:
            extra["gib"] = tier.gib
            if tier.disk_gib:
                extra["disk"] = {"path": folder, "gib": tier.disk_gib}
        else:
            extra["mooncake"] = {"master_server_address": "memory:1"}
        transfer = transfer_config(
            backend=tier.backend,
            pool="soak",
            staging_mib=tier.staging_mib,
            async_above_mib=tier.async_above_mib,
            **extra,
        )
        # Objects hold no more tokens than a granule has.
        small_units = mock.patch.object(layout, "LEAST_UNIT_TOKENS", 1)
        connects = mock.patch.object(backends, "connect", lambda *a, **k: MemoryClient(pool))
        moves = mock.patch.object(backends, "DiskThreads", self._late_disk)
        with small_units, connects, moves:
            super().__init__(case.layout.build(), case.options, transfer, oracle)

    def _late_disk(self, files: DiskFiles, buffers: Any) -> LateDisk:
        tier = self._tier_case
        return LateDisk(files, buffers, self._seed, tier.late, tier.failures)

    @property
    def disk(self) -> LateDisk | None:
        """What moves the files below, if there are any."""
        return self.index.disk.work if self._tier_case.disk_gib else None

    def change_config(self, config: Any) -> None:
        """Set what the options have no word for."""
        config.parallel_config.tensor_parallel_size = self._tier_case.num_ranks

    def make_worker_connector(self) -> Any:
        """Return all ranks' halves, and let the scheduler's count steps instead of seconds."""
        tier, half = self._tier_case, self.tier
        thread = LateStoreThread(f"{self._seed} look-ups", tier.late)
        half._thread = thread
        half._clock = lambda: self._steps * _SECONDS_PER_STEP
        if self.disk is not None:
            self.index.disk._clock = half._clock
            half._load_seconds = _LOAD_SECONDS
        for part in (half._look_ups, half._reset):
            if part is not None:
                part._thread, part._clock = thread, half._clock
        if half._reset is not None:
            half._reset.__class__ = _QuickReset
        connectors = []
        for rank in range(tier.num_ranks):
            with mock.patch.object(connector, "_tensor_parallel_rank", lambda _, rank=rank: rank):
                made = ConnectedEngine.make_worker_connector(self)
            worker = made.worker_half
            worker.__class__, worker.shadow, worker.is_first = SoakTierWorker, self.worker, not rank
            worker.set_up(f"{self._seed} {rank}", late=tier.late, failures=tier.failures)
            connectors.append(made)
        ranks = Ranks(connectors, self.worker)
        for made, planes in zip(connectors, ranks.planes, strict=True):
            made.register_kv_caches(self.caches_of(planes))
        return ranks

    def step(self, *args: Any) -> bool:
        """One turn of the engine; see the base class."""
        self._steps += 1
        if self.disk is not None:
            self.disk.step()
        return super().step(*args)

    def sleep(self, level: int, mode: str) -> None:
        """Do what EngineCore's `sleep` does; see the base class."""
        core = Core(self)
        paused = core.pause_scheduler(mode=mode, clear_cache=level >= 1)
        while core.turn():
            pass
        core.turn()
        assert paused is None or paused.done(), "the engine is not paused"
        if paused is not None:
            paused.result()
        if level >= 1:
            self.scheduler.reset_encoder_cache()
            self.lose_memory()

    def lose_memory(self) -> None:
        """Forget what every row holds; see the oracle's worker."""
        self.worker.lose_memory()
        self.worker.connector.lose_memory()

    def kill(self) -> None:
        """End where it is; only what has a name on the disk is left."""
        if self.disk is not None:
            self.disk.kill()

    def settle(self) -> None:
        """Let everything be stored that was ordered, and check that nothing is remembered."""
        if self.tier._look_ups is not None:
            self.tier._thread.late_calls.be_quick()
        for worker in self.worker.connector.workers:
            worker.be_well()
        if self.disk is not None:
            self.disk.be_well()
        for number in range(3):  # reports come with steps
            self.add(f"end {number}", [number], 1)
            self.run()
        half = self.tier
        assert half.is_idle(), f"loads {list(half._loads)} or stores are still under way"
        left = half._stores._failed_loads, half._hits, half._failed, half._stores._spares
        assert not any(left), f"the tier remembers {left} after the end"
        for worker in self.worker.connector.workers:
            worker.check_idle()
        if self._tier_case.backend == _HOST:
            self.index.check_integrity()
            if self.disk is not None:
                left = self.index._reading, self.index.disk._pending, half._waiting
                assert not any(left), f"the disk remembers {left} after the end"
            assert not self.stores_lost_rows(), "rows that rest on a lost load are stored"
