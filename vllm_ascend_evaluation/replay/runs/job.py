# SPDX-License-Identifier: Apache-2.0
"""One run as data, small enough to hand to a process of its own."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.cost.model import CostModel
from vllm_ascend_evaluation.replay.slo import Slo
from vllm_ascend_evaluation.replay.sources import WorkloadSource

CLOSED_LOOP = "closed"
DEFAULT_TIER_GIB_PER_SECOND = 20.0
DEFAULT_DISK_GIB_PER_SECOND = 2.0
TIMESTAMPS = "timestamps"
VLLM_ROUTING = "vllm"
CACHE_ROUTING = "cache"
# How drafts are made, by vLLM's names.
DRAFT_METHODS = ("mtp", "dspark")


@dataclass(frozen=True)
class RunSettings:
    """How an engine is started and fed, whatever the variant and the workload are.

    Attributes:
        layout: A name of ``variants``, or the path of a Hugging Face config.
        max_num_seqs: As of ``vllm serve``.
        max_num_batched_tokens: As of ``vllm serve``.
        max_model_len: As of ``vllm serve``, in tokens.
        verify: Let the content oracle watch.
        block_size: ``--block-size``.
        num_speculative_tokens: Draft tokens per step, 0 for no drafting.
        kv_memory_bytes: KV cache memory of the rank.
        arrivals: ``closed`` (loop) or ``timestamps``.
        cost_model: Modelled step times; needed for timestamps.
        kv_tokens: If given, decides about the memory: what vLLM, without patches, would log as the
            size of the KV cache in tokens.
        num_ranks: Data-parallel ranks behind one front end, each with this memory.
        dp_routing: Who chooses between them: ``vllm`` or ``cache``.
        tier_gib: Host memory of each rank's tier below its KV cache in GiB; ``None``: there is
            none.
        draft_method: How drafts are made: ``mtp`` or ``dspark``.
        tier_gib_per_second: How fast it is loaded from, for the modelled clock and the report.
        speed: Requests arrive so many times as fast as their timestamps say.
        slo: What is promised to requests, if how many are served so is to be counted.
        watches_memory: Look where memory goes.
        disk_gib: What a disk below the tier holds in GiB; ``None``: there is none.
        disk_gib_per_second: How fast it is read and written.
        restart_at: Before this request the engine ends, once all earlier ones have been answered,
            and starts anew; counted from 0, ``None``: it does not.
    """

    layout: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    verify: bool
    block_size: int = 128
    num_speculative_tokens: int = 0
    kv_memory_bytes: int = 0
    arrivals: str = CLOSED_LOOP
    cost_model: CostModel | None = None
    kv_tokens: int | None = None
    num_ranks: int = 1
    dp_routing: str = VLLM_ROUTING
    tier_gib: float | None = None
    tier_gib_per_second: float = DEFAULT_TIER_GIB_PER_SECOND
    draft_method: str = "mtp"
    speed: float = 1.0
    slo: Slo | None = None
    watches_memory: bool = False
    disk_gib: float | None = None
    disk_gib_per_second: float = DEFAULT_DISK_GIB_PER_SECOND
    restart_at: int | None = None

    @property
    def environment_of_ranks(self) -> dict[str, str]:
        """What every rank and the front end need set."""
        by_cache = self.num_ranks > 1 and self.dp_routing == CACHE_ROUTING
        return {"VLLM_ASCEND_DP_ROUTING": "cache"} if by_cache else {}

    def check(self) -> None:
        """Check that the limits fit each other.

        Raises:
            BadInputError: They do not; names the options.
        """
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise BadInputError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens}: expected at least "
                f"--max-num-seqs ({self.max_num_seqs})"
            )
        if self.dp_routing not in (VLLM_ROUTING, CACHE_ROUTING):
            raise BadInputError(f"--dp-routing {self.dp_routing}: allowed are vllm and cache")
        if self.num_ranks == 1 and self.dp_routing == CACHE_ROUTING:
            raise BadInputError("--dp-routing cache: needs --data-parallel of at least 2")
        if self.disk_gib is not None and self.tier_gib is None:
            raise BadInputError(
                f"--disk-gib {self.disk_gib:g}: needs --tier-gib, which is above it"
            )
        if self.disk_gib is None and self.disk_gib_per_second != DEFAULT_DISK_GIB_PER_SECOND:
            raise BadInputError(
                f"--disk-gib-per-second {self.disk_gib_per_second:g}: needs --disk-gib"
            )
        if self.restart_at is not None and (self.num_ranks > 1 or self.watches_memory):
            raise BadInputError("--restart-at goes without --data-parallel and --memory-use")


@dataclass(frozen=True, kw_only=True)
class Job(RunSettings):
    """One workload on one variant.

    Attributes:
        variant: Name of the variant.
        patched: Install the patches.
        environment: The project's variables of the child process.
        workload: Where the requests come from.
        description: What the variant is, in words.
    """

    variant: str
    patched: bool
    environment: dict[str, str]
    workload: WorkloadSource
    description: str = ""

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return what :meth:`to_json` wrote."""
        data = json.loads(text)
        data["workload"] = WorkloadSource(**data["workload"])
        if data["cost_model"] is not None:
            data["cost_model"] = CostModel(**data["cost_model"])
        if data["slo"] is not None:
            data["slo"] = Slo(**data["slo"])
        return cls(**data)
