# SPDX-License-Identifier: Apache-2.0
"""vLLM's interface in front of the tier's two halves; see ``docs/tier.md``."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

import torch
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_events import KVCacheEvent
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
from vllm.platforms import current_platform
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from vllm_ascend.core.connectors.connector_rules import Answer
from vllm_ascend.core.events.cache_news import CacheNewsQueue
from vllm_ascend.tier.backends import SchedulerBackend, for_scheduler, for_worker, in_words
from vllm_ascend.tier.kv_events import TierEvents, TwoLevelEvents
from vllm_ascend.tier.layout import describe
from vllm_ascend.tier.memory_over_disk import MemoryOverDisk
from vllm_ascend.tier.orders import Orders, Report
from vllm_ascend.tier.progress import Tables
from vllm_ascend.tier.prometheus import TierPromMetrics
from vllm_ascend.tier.scheduler_side import TierScheduler
from vllm_ascend.tier.settings import check_nodes, read_settings
from vllm_ascend.tier.statistics import TierStats
from vllm_ascend.tier.telling import TierTeller
from vllm_ascend.tier.worker_side import NUM_BUFFERS, TierWorker

logger = logging.getLogger("vllm.vllm_ascend.tier")

_MIB = 1 << 20
_OTHER_NAMES = (
    "tier: this worker names rows %s, its scheduler %s, so none of them is loaded: the model's "
    "files or the options here differ from those of the scheduler's node (weights here: %s)"
)


class GranuleTierConnector(KVConnectorBase_V1, SupportsHMA):
    """A tier below the device's KV cache, with hits at every kept boundary.

    Attributes:
        layout: What objects hold.
        scheduler_half: The scheduler's half; ``None`` in workers.
        worker_half: A worker's half; ``None`` in the scheduler.
    """

    knows_granules = knows_rows = takes_tails_alone = takes_spare_tails = True
    is_a_cache = needs_coordinator = loads_behind_zeroing = True

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        """Set up one half.

        Raises:
            ValueError: A setting is not allowed, or the model has a cache that cannot be held.
            MooncakeError: The store cannot be reached.
        """
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        assert transfer is not None, "who builds a connector has its configuration"
        self._settings = read_settings(transfer.kv_connector_extra_config)
        check_nodes(self._settings, vllm_config.parallel_config.nnodes_within_dp)
        self.layout = describe(kv_cache_config, vllm_config, self._settings.pool)
        self._tiered_kv_cache_config = kv_cache_config
        events = vllm_config.kv_events_config
        self._has_told_of_names = False
        self._has_kv_events = events is not None and events.enable_kv_cache_events
        self._news: CacheNewsQueue | None = None
        self._events: TierEvents | None = None
        self.scheduler_half: TierScheduler | None = None
        self.worker_half: TierWorker | None = None
        num_ranks = vllm_config.parallel_config.tensor_parallel_size
        num_parts = 1 if self.layout.is_replicated else num_ranks
        if role == KVConnectorRole.SCHEDULER:
            self._backend = self._open_backend(num_parts)
            words = in_words(self._settings, self.layout, self._backend.index, num_parts)
            logger.info("tier: %s; weights: %s", words, self.layout.weights)
            self.scheduler_half = self._make_scheduler_half(num_parts, num_ranks)
        else:
            rank = _tensor_parallel_rank(num_ranks)
            part = 0 if self.layout.is_replicated else rank
            self.worker_half = TierWorker(
                self.layout,
                for_worker(self._settings, self.layout, part, num_parts),
                staging_bytes=int(self._settings.staging_mib * _MIB),
                load_seconds=self._settings.load_seconds,
                rank=rank,
                num_ranks=num_ranks,
            )

    @classmethod
    def device_bytes(cls, transfer: KVTransferConfig) -> int:
        """Return what a worker's buffers take of its device, in bytes.

        Raises:
            ValueError: A setting is not allowed.
        """
        if current_platform.is_cpu():
            return 0  # device and host are one
        settings = read_settings(transfer.kv_connector_extra_config)
        return NUM_BUFFERS * int(settings.staging_mib * _MIB)

    # The scheduler's half

    def _open_backend(self, num_parts: int) -> SchedulerBackend:
        """Return the scheduler's half of the backend; a replay has one of its own."""
        return for_scheduler(self._settings, self.layout, num_parts)

    def _make_scheduler_half(self, num_parts: int, num_ranks: int) -> TierScheduler:
        return TierScheduler(
            self.layout,
            self._backend.index,
            staging_bytes=int(self._settings.staging_mib * _MIB),
            async_above_bytes=int(self._settings.async_above_mib * _MIB),
            num_parts=num_parts,
            num_workers=num_ranks,
            load_seconds=self._settings.load_seconds,
            clock=self._clock,
        )

    def _clock(self) -> float:
        return time.monotonic()

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Read the blocks of requests where the KV cache manager has them.

        vLLM 0.30.0 calls it; in the other releases our patch of the scheduler does.
        """
        assert self.scheduler_half is not None, "only schedulers have a KV cache manager"
        coordinator = kv_cache_manager.coordinator
        managers = coordinator.single_type_managers

        def tables(request_id: str) -> Tables:
            return [manager.req_to_blocks.get(request_id, ()) for manager in managers]

        self.scheduler_half.read_tables(tables)
        self.scheduler_half.know_cache(coordinator)
        log = getattr(kv_cache_manager.block_pool, "event_log", None)
        self._news = None if log is None else log.news
        has_disk = isinstance(self.index, MemoryOverDisk)
        if self._news is not None:
            teller = TierTeller(
                self.layout, self._news, is_shared=self.index.is_remote, shares_disk=has_disk
            )
            self.scheduler_half.tell_found(teller.found)
        if self._has_kv_events:
            if has_disk:
                self._events = TwoLevelEvents(self.layout)
            else:
                self._events = TierEvents(self.layout, is_remote=self.index.is_remote)
            self.scheduler_half.tell_found(self._events.found)

    @property
    def index(self) -> Any:
        """The scheduler's half of the backend."""
        return self._backend.index

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        """Return no group: of those returned, later releases of vLLM zero no block that is loaded.

        Ours are zeroed: loads come behind that, and leave rows alone that may hold NaN, the bytes
        of another group's rows.
        """
        return ()

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Answer:
        """Return what the tier brings; see vLLM's base class."""
        assert self.scheduler_half is not None
        return self.scheduler_half.look_up(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: Request, blocks: Any, num_external_tokens: int
    ) -> None:
        """Order what was promised; see vLLM's base class."""
        assert self.scheduler_half is not None
        self.scheduler_half.admitted(request, blocks.blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Orders:
        """Return what the workers are to do; see vLLM's base class."""
        assert self.scheduler_half is not None
        orders = self.scheduler_half.orders(scheduler_output.num_scheduled_tokens)
        orders.memory = self._backend.address
        orders.digest = self.layout.digest
        return orders

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Take in what the workers have done; see vLLM's base class."""
        assert self.scheduler_half is not None
        self._take_gone()  # before the same objects may be stored anew
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, Report):
            self.scheduler_half.reported(report, set(connector_output.invalid_block_ids or ()))

    def loading_block_ids(self) -> set[int]:
        """Return the blocks that are being loaded: what of them cannot be is computed."""
        assert self.scheduler_half is not None
        return self.scheduler_half.loading_block_ids()

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Let go of a request; its blocks are not needed any more."""
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Let go of a request; its blocks are not needed any more."""
        assert self.scheduler_half is not None
        self.scheduler_half.ended(request)
        return False, None

    def take_events(self) -> Iterable[KVCacheEvent]:
        """Return the tier's KV events, if they are on. vLLM asks after every step, so evictions are
        counted here."""
        self._take_gone()
        return () if self._events is None else self._events.take()

    def _take_gone(self) -> None:
        assert self.scheduler_half is not None
        gone = self.index.take_gone()
        self.scheduler_half.counts.evicted += gone.num_evicted
        if self._news is not None:
            self._news.drop_from_tier(gone.keys)
        if self._events is not None:
            self._events.gone(gone)

    def reset_cache(self) -> bool:
        """Forget everything that is stored."""
        assert self.scheduler_half is not None
        self.scheduler_half.reset()
        self._take_gone()
        return True

    # A worker's half

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Take the tensors of the KV cache; see vLLM's base class."""
        assert self.worker_half is not None
        self.worker_half.register(kv_caches, self._tiered_kv_cache_config)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Load what the step waits for; see vLLM's base class."""
        assert self.worker_half is not None
        orders = self._get_connector_metadata()
        assert isinstance(orders, Orders)
        if orders.digest != self.layout.digest and not self._has_told_of_names:
            self._has_told_of_names = True
            logger.error(_OTHER_NAMES, self.layout.digest, orders.digest, self.layout.weights)
        self.worker_half.start(orders)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Everything was loaded before the first layer."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Everything is stored behind the last layer."""

    def wait_for_save(self) -> None:
        """Gather what the step stores; see vLLM's base class."""
        assert self.worker_half is not None
        self.worker_half.end()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Return the requests that were loaded; see vLLM's base class."""
        assert self.worker_half is not None
        return None, self.worker_half.finished() or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks that could not be loaded."""
        assert self.worker_half is not None
        return self.worker_half.take_invalid()

    def build_connector_worker_meta(self) -> Report | None:
        """Return what was done; see vLLM's base class."""
        assert self.worker_half is not None
        return self.worker_half.take_report()

    # Both

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """Return what was counted since the last call."""
        half = self.scheduler_half or self.worker_half
        assert half is not None
        data = half.counts.as_data()
        half.counts.clear()
        # Also without anything: vLLM asks the scheduler's half only if a worker has told something.
        return TierStats(data=data)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats:
        """Return statistics of another process."""
        return TierStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> TierPromMetrics:
        """Register the tier's metrics; see vLLM's base class."""
        return TierPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """Let go of everything."""
        if self.worker_half is not None:
            self.worker_half.close()
        if self.scheduler_half is not None:
            self.scheduler_half.close()


def _tensor_parallel_rank(num_ranks: int) -> int:
    if num_ranks == 1:
        return 0
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    return get_tensor_model_parallel_rank()
