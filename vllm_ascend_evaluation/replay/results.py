# SPDX-License-Identifier: Apache-2.0
"""What a replay found out: frozen records, the only thing that reports see."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from vllm_ascend_evaluation.replay.memory_use import MemoryUse
from vllm_ascend_evaluation.replay.tier_use import DiskUse, TierUse

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Bounds:
    """Hit rates of a cache that never evicts, in percent of all prompt tokens.

    Attributes:
        granule_1: Hits of any length.
        granule_128: Hits that are multiples of 128 tokens.
        aligned: Alignment in tokens -> rate of hits that are multiples of it.
    """

    granule_1: float
    granule_128: float
    aligned: dict[int, float]


@dataclass(frozen=True)
class Sample:
    """The state of a run after one of its steps; the last one is the state at its end.

    Attributes:
        step: Scheduler steps so far.
        num_requests: Requests scheduled so far.
        prompt_tokens: Their prompt tokens.
        hit_tokens: Their hit tokens.
        used_blocks: Blocks of live requests.
        cached_blocks: Idle blocks with a hash.
        scratch_blocks: Idle blocks without a hash.
    """

    step: int
    num_requests: int
    prompt_tokens: int
    hit_tokens: int
    used_blocks: int
    cached_blocks: int
    scratch_blocks: int


@dataclass(frozen=True)
class LengthBucket:
    """Requests whose prompts have ``[min_tokens, max_tokens)`` tokens."""

    min_tokens: int
    max_tokens: int
    num_requests: int
    prompt_tokens: int
    hit_tokens: int


class HitRates:
    """Rates that follow from a run's counts.

    Attributes:
        num_requests: Requests.
        num_requests_hit: Those with a hit.
        prompt_tokens: Their prompt tokens.
        hit_tokens: Those of them that were hits.
    """

    num_requests: int
    num_requests_hit: int
    prompt_tokens: int
    hit_tokens: int

    @property
    def hit_rate(self) -> float:
        """Hit tokens in percent of prompt tokens."""
        return 100.0 * self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def request_hit_rate(self) -> float:
        """Requests with a hit in percent of all."""
        return 100.0 * self.num_requests_hit / self.num_requests if self.num_requests else 0.0

    def rates_in_json(self) -> Mapping[str, float | None]:
        """Return the rates as reports name them."""
        return {
            "hit_rate_percent": round(self.hit_rate, 4),
            "request_hit_rate_percent": round(self.request_hit_rate, 4),
        }


def length_buckets(
    requests: Iterable[tuple[int, int]], edges: Sequence[int]
) -> tuple[LengthBucket, ...]:
    """Sort requests by the length of their prompts; buckets without any are left out.

    Args:
        requests: (prompt tokens, hit tokens) of every request.
        edges: Ascending bounds of the buckets, in tokens.
    """
    counts = list(requests)
    buckets = []
    for low, high in itertools.pairwise(edges):
        inside = [(prompt, hits) for prompt, hits in counts if low <= prompt < high]
        if inside:
            prompts, hits = zip(*inside, strict=True)
            buckets.append(LengthBucket(low, high, len(inside), sum(prompts), sum(hits)))
    return tuple(buckets)


@dataclass(frozen=True)
class Percentiles:
    """What half, 90 % and 99 % of some times do not exceed, in the unit of the field."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True)
class DataParallelResult:
    """What became of requests over several data-parallel ranks.

    Attributes:
        num_ranks: Ranks.
        routing: Who chose: ``vllm`` or ``cache``.
        num_requests: Requests by rank.
        prompt_tokens: Their prompt tokens, by rank.
        computed_tokens: Those of them that were no hits.
        live_imbalance: Most live requests of a rank over the mean of all, on average of all steps.
        choice_us: Time of a choice, hashing included.
        num_predicted: Requests whose hit was what the choice by cache expected.
        num_sessions: Sessions, where the workload has any.
        num_moves: Turns that went to another rank than the one before in their session.
    """

    num_ranks: int
    routing: str
    num_requests: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    computed_tokens: tuple[int, ...]
    live_imbalance: float
    choice_us: Percentiles
    num_predicted: int
    num_sessions: int = 0
    num_moves: int = 0

    @property
    def work_imbalance(self) -> float:
        """Most computed tokens of a rank over the mean of all."""
        return max(self.computed_tokens) * self.num_ranks / max(sum(self.computed_tokens), 1)

    @property
    def hit_rates(self) -> tuple[float, ...]:
        """Hit tokens in percent of prompt tokens, by rank."""
        counts = zip(self.computed_tokens, self.prompt_tokens, strict=True)
        return tuple(100 * (1 - left / tokens) if tokens else 0.0 for left, tokens in counts)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DataParallelResult:
        """Return what :func:`dataclasses.asdict` made a dictionary of."""
        values = dict(data)
        for by_rank in ("num_requests", "prompt_tokens", "computed_tokens"):
            values[by_rank] = tuple(data[by_rank])
        values["choice_us"] = Percentiles(**data["choice_us"])
        return cls(**values)


@dataclass(frozen=True)
class RunResult(HitRates):
    """One workload on one variant.

    Attributes:
        variant: Name of the variant.
        settings: The environment variables that made it.
        workload: Name of the workload.
        layout: Name of the KV cache layout.
        block_size: ``--block-size`` in force.
        num_speculative_tokens: Draft tokens per step, 0 for no drafting.
        alignment_tokens: Hits are multiples of this.
        kv_memory_bytes: KV cache memory of the rank.
        num_blocks: Blocks in the pool.
        bytes_per_block: Bytes of a block of the pool, in all tensors together.
        num_requests: Requests scheduled at least once.
        num_requests_hit: Requests whose first scheduling had a hit.
        prompt_tokens: Prompt tokens of those requests.
        hit_tokens: Tokens that were hits at the first scheduling.
        prompt_work: What all prompt tokens cost, as
            :func:`~vllm_ascend_evaluation.replay.prefill_work.prefill_work` counts it.
        hit_work: What the hit tokens would have.
        num_preemptions: Preemptions.
        peak_used_blocks: Most blocks in use at once.
        num_cached_blocks_evicted: Cached blocks that were handed out anew.
        num_steps: Scheduler steps.
        seconds: Wall-clock time of the run.
        schedule_us: Time of ``schedule()``.
        add_request_us: Time to hash a prompt and enqueue it.
        modelled_ttft_ms: Time to first token by the cost model; ``None`` without one.
        samples: Over time.
        buckets: By prompt length.
        complete: ``False`` if the run was interrupted.
        violations: What ``check_integrity`` or the content oracle found; empty is good.
        verified: Whether the content oracle watched the run.
        description: What the variant is, in words.
        data_parallel: Of several data-parallel ranks; all other numbers are then summed over them,
            but for blocks and memory, which are one rank's.
        tier: What a tier below the KV cache did; ``None``: there was none.
        disk: What a disk below the tier did; ``None``: there was none.
        draft_method: How drafts are made.
        modelled_ttft_hit_ms: As ``modelled_ttft_ms``, of requests that hit half of their prompts or
            more; ``None`` also if there are none.
        modelled_ttft_cold_ms: The same of all others.
        modelled_tpot_ms: Time per token behind the first, of answers that have one.
        modelled_seconds: Time of the whole run by the cost model.
        arrivals_per_second: Requests that came in a second; ``None`` in a closed loop.
        kept_percent: Requests that were served as an SLO promises; ``None`` without one.
        memory: Where memory went; ``None``: nobody asked.
    """

    variant: str
    settings: dict[str, str]
    workload: str
    layout: str
    block_size: int
    num_speculative_tokens: int
    alignment_tokens: int
    kv_memory_bytes: int
    num_blocks: int
    bytes_per_block: int
    num_requests: int
    num_requests_hit: int
    prompt_tokens: int
    hit_tokens: int
    prompt_work: float
    hit_work: float
    num_preemptions: int
    peak_used_blocks: int
    num_cached_blocks_evicted: int
    num_steps: int
    seconds: float
    schedule_us: Percentiles
    add_request_us: Percentiles
    modelled_ttft_ms: Percentiles | None
    samples: tuple[Sample, ...]
    buckets: tuple[LengthBucket, ...]
    complete: bool
    violations: tuple[str, ...]
    verified: bool
    description: str = ""
    data_parallel: DataParallelResult | None = None
    tier: TierUse | None = None
    draft_method: str = "mtp"
    modelled_ttft_hit_ms: Percentiles | None = None
    modelled_ttft_cold_ms: Percentiles | None = None
    modelled_tpot_ms: Percentiles | None = None
    modelled_seconds: float | None = None
    arrivals_per_second: float | None = None
    kept_percent: float | None = None
    memory: MemoryUse | None = None
    disk: DiskUse | None = None

    @property
    def drafts(self) -> str:
        """Method and draft tokens per step, as ``--drafts`` takes them; nothing without drafts."""
        return f"{self.draft_method}:{self.num_speculative_tokens}" * bool(
            self.num_speculative_tokens
        )

    @property
    def saved_work(self) -> float:
        """What hits save of the arithmetic of prefill, in percent."""
        return 100.0 * self.hit_work / self.prompt_work if self.prompt_work else 0.0

    def rates_in_json(self) -> Mapping[str, float | None]:
        """Return the rates as reports name them."""
        return {**super().rates_in_json(), "saved_work_percent": round(self.saved_work, 4)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunResult:
        """Return what :func:`dataclasses.asdict` made a dictionary of."""
        values = {field.name: data[field.name] for field in fields(cls)}
        values["schedule_us"] = Percentiles(**data["schedule_us"])
        values["add_request_us"] = Percentiles(**data["add_request_us"])
        for kind in ("ttft", "ttft_hit", "ttft_cold", "tpot"):
            times = data[f"modelled_{kind}_ms"]
            values[f"modelled_{kind}_ms"] = None if times is None else Percentiles(**times)
        values["memory"] = None if data["memory"] is None else MemoryUse(**data["memory"])
        values["samples"] = tuple(Sample(**sample) for sample in data["samples"])
        values["buckets"] = tuple(LengthBucket(**bucket) for bucket in data["buckets"])
        values["violations"] = tuple(data["violations"])
        ranks = data["data_parallel"]
        values["data_parallel"] = None if ranks is None else DataParallelResult.from_dict(ranks)
        values["tier"] = None if data["tier"] is None else TierUse(**data["tier"])
        values["disk"] = None if data["disk"] is None else DiskUse(**data["disk"])
        return cls(**values)


@dataclass(frozen=True)
class WorkloadReport:
    """One workload: its bounds, and a run per variant.

    Attributes:
        description: The workload's shape in words.
        digest: SHA-256 prefix over all prompts and output lengths.
        policy_rates: Textbook policy -> what it would hit with the memory of the runs, in percent
            of prompt tokens; empty if nobody asked for it.
        num_left_out: Requests that were not replayed because they are too long.
    """

    workload: str
    description: str
    digest: str
    bounds: Bounds
    runs: tuple[RunResult, ...]
    policy_rates: dict[str, float] = field(default_factory=dict)
    num_left_out: int = 0


@dataclass(frozen=True)
class ReplayReport:
    """Everything that one command replayed.

    Attributes:
        command: The command line.
        seed: Seed of the generated prompts.
        vllm_version: The vLLM that ran.
        cost_model: Parameters of the cost model, empty without one; what follows from them is
            modelled, not measured.
        complete: ``False`` if it was interrupted.
        failures: Runs that died without a result: what they said last.
    """

    command: str
    seed: int
    vllm_version: str
    cost_model: dict[str, float]
    workloads: tuple[WorkloadReport, ...]
    complete: bool
    failures: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, with derived rates beside the counts they come from."""
        data = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        for workload, report in zip(data["workloads"], self.workloads, strict=True):
            for run, result in zip(workload["runs"], report.runs, strict=True):
                run.update(result.rates_in_json())
        return data

    def to_dict_of_many(self) -> dict[str, Any]:
        """Return the JSON form of hundreds of runs, none of which anybody plots by itself."""
        data = self.to_dict()
        for run in (run for workload in data["workloads"] for run in workload["runs"]):
            del run["samples"], run["buckets"]
        return data

    @property
    def violations(self) -> list[str]:
        """Every violation of every run, with its run in front."""
        return [
            f"{run.workload} on {run.variant}: {violation}"
            for report in self.workloads
            for run in report.runs
            for violation in run.violations
        ]
