# SPDX-License-Identifier: Apache-2.0
"""A tier below the KV cache in a replay: the real scheduler's half, and workers without bytes.

What is ordered is done when the step ends; loads take the time that their bytes take. A replay that
verifies moves the oracle's stamps.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm.config import KVTransferConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput

from vllm_ascend.dry_run.worker import Worker
from vllm_ascend.tier.memory_over_disk import MemoryOverDisk
from vllm_ascend.tier.orders import Load, Orders, Report, Run
from vllm_ascend.tier.registration import CONNECTOR
from vllm_ascend_evaluation.replay.runs.disk import ReplayTierConnector, cannot_be_loaded
from vllm_ascend_evaluation.replay.runs.job import Job
from vllm_ascend_evaluation.replay.tier_use import DiskUse, TierUse

_GIB = 1 << 30


def transfer_config(job: Job) -> KVTransferConfig:
    """Return the configuration of a job's tier."""
    over_disk = {
        "kv_connector": ReplayTierConnector.__name__,
        "kv_connector_module_path": ReplayTierConnector.__module__,
    }
    return KVTransferConfig(
        **({"kv_connector": CONNECTOR} if job.disk_gib is None else over_disk),
        kv_role="kv_both",
        kv_connector_extra_config={"backend": "host", "gib": job.tier_gib},
    )


class TierReplayWorker:
    """Executes steps with another worker, and says of every load and store that it is done.

    Attributes:
        counts: What the scheduler's half has counted; over a disk nobody else takes it.
        step_load_ms: What the loads of the last step take, in milliseconds.
    """

    def __init__(self, scheduler: Scheduler, worker: Worker, job: Job) -> None:
        """Take the worker that samples."""
        assert scheduler.connector is not None, "the job has a tier"
        self._worker = worker
        self._layout, self._index = scheduler.connector.layout, scheduler.connector.index
        self.counts = scheduler.connector.scheduler_half.counts
        assert job.tier_gib is not None, "the job has a tier"
        self._gib, self._bytes_per_ms = job.tier_gib, job.tier_gib_per_second * _GIB / 1e3
        self.step_load_ms = 0.0
        self._loads: list[tuple[int, int]] = []  # tokens, bytes
        self._stored_bytes = self._num_tails = 0

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Execute a step."""
        result = self._worker.execute(output)
        orders = output.kv_connector_metadata
        assert isinstance(orders, Orders)
        failed = [load for load in orders.loads if self._fails(load)]
        loads = [(load.num_tokens, self._bytes_of(load.runs)) for load in orders.loads]
        self.step_load_ms = sum(size for _, size in loads) / self._bytes_per_ms
        self._loads += loads
        self._stored_bytes += self._bytes_of(orders.stores)
        self._num_tails += sum(run.is_tail for run in orders.stores)
        result.kv_connector_output = KVConnectorOutput(
            finished_recving={load.request_id for load in orders.loads if load.is_async} or None,
            invalid_block_ids=set().union(*(load.block_ids for load in failed)),
            kv_connector_worker_meta=Report(
                stored={key: 1 for run in orders.stores for key in run.keys},
                ended={load.load_id: 1 for load in orders.loads},
            ),
        )
        return result

    def _fails(self, load: Load) -> bool:
        return isinstance(self._index, MemoryOverDisk) and cannot_be_loaded(load, self._index)

    def _bytes_of(self, runs: Sequence[Run]) -> int:
        sizes = self._layout.unit_bytes, self._layout.tail_bytes
        return sum(len(run.keys) * sizes[run.is_tail] for run in runs)

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """Return drafts for the requests of the last step."""
        return self._worker.take_draft_token_ids()

    def use(self) -> TierUse:
        """Return what the tier did."""
        num_bytes = sum(size for _, size in self._loads)
        return TierUse(
            gib=self._gib,
            hit_tokens=sum(tokens for tokens, _ in self._loads),
            num_loads=len(self._loads),
            loaded_bytes=num_bytes,
            load_seconds=num_bytes / self._bytes_per_ms / 1e3,
            stored_bytes=self._stored_bytes,
            num_tails=self._num_tails,
            num_evicted=sum(self._index.num_evicted.values()),
        )


def disk_use(workers: Sequence[Worker]) -> DiskUse:
    """Return what a disk did under all engines that were above it, by their workers."""
    disk = ReplayTierConnector.disk
    counts = [worker.counts for worker in workers if isinstance(worker, TierReplayWorker)]
    return DiskUse(
        gib=disk.gib,
        hit_tokens=disk.num_rows_read * disk.unit,
        written_bytes=sum(of.disk_written_bytes for of in counts),
        read_bytes=sum(of.disk_read_bytes for of in counts),
        num_evicted=sum(of.disk_evicted for of in counts),
        num_not_written=sum(of.disk_not_written for of in counts),
        num_failed_loads=sum(of.failed_loads for of in counts),
    )
