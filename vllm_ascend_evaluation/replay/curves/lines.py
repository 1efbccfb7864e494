# SPDX-License-Identifier: Apache-2.0
"""Hit rate against memory or load: measured lines, and what textbook policies would hit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from vllm_ascend_evaluation.replay.curves.policies import PrefixTrace, belady, knows_whether, lru
from vllm_ascend_evaluation.replay.results import ReplayReport, RunResult, WorkloadReport
from vllm_ascend_evaluation.replay.trace import Workload
from vllm_ascend_evaluation.replay.variants import ASCEND_LAYOUT

# In these bounds a block is what C4 keeps in one block: 128 rows of 4 tokens.
BOUND_BLOCK_SIZE = 128
BOUND_BLOCK_TOKENS = 512

_POLICIES: dict[str, Callable[[PrefixTrace, int], list[int]]] = {
    "LRU": lru,
    "knows what comes again": knows_whether,
    "Belady (optimal)": belady,
}


@dataclass(frozen=True)
class Line:
    """One line of the picture.

    Attributes:
        name: What it is.
        rates: KV cache memory in bytes, or number of prefixes -> hit rate in percent of prompt
            tokens.
    """

    name: str
    rates: dict[int, float]


@dataclass(frozen=True)
class Refusal:
    """A point that is missing because the engine would not start, most often for want of memory."""

    variant: str
    kv_memory_bytes: int
    reason: str


@dataclass(frozen=True)
class MemoryCurve:
    """Everything in the picture.

    Attributes:
        replay: Every run, of one workload.
        bytes_per_block: See :func:`bytes_per_block`.
        bounds: Policies that know nothing but prefix blocks of 512 tokens.
        refusals: Points that could not be measured.
    """

    replay: ReplayReport
    bytes_per_block: int | None
    bounds: tuple[Line, ...]
    refusals: tuple[Refusal, ...] = ()

    @property
    def workload(self) -> WorkloadReport:
        """The workload."""
        return self.replay.workloads[0]

    @property
    def lines(self) -> tuple[Line, ...]:
        """What was measured, a line per variant; runs that did not end are left out."""
        rates: dict[str, dict[int, float]] = {}
        for run in self.workload.runs:
            line = rates.setdefault(run.variant, {})
            if run.complete:
                line[run.kv_memory_bytes] = run.hit_rate
        return tuple(Line(name, line) for name, line in rates.items())

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            **self.replay.to_dict(),
            "bytes_per_block": self.bytes_per_block,
            "bound_block_tokens": BOUND_BLOCK_TOKENS,
            "bounds": [asdict(line) for line in self.bounds],
            "refusals": [asdict(refusal) for refusal in self.refusals],
        }


@dataclass(frozen=True)
class PrefixCurve:
    """Hit rate over the number of prefixes that are asked for in turn.

    Attributes:
        replay: Every run, a workload per number of prefixes.
        num_prefixes: Name of a workload -> its prefixes.
        num_rounds: How often each prefix is asked for.
        kv_tokens: What vLLM would log as the size of the KV cache.
    """

    replay: ReplayReport
    num_prefixes: dict[str, int]
    num_rounds: int
    kv_tokens: int

    @property
    def lines(self) -> tuple[Line, ...]:
        """A line per variant; runs that did not end are left out."""
        rates: dict[str, dict[int, float]] = {}
        for workload in self.replay.workloads:
            for run in workload.runs:
                line = rates.setdefault(run.variant, {})
                if run.complete:
                    line[self.num_prefixes[workload.workload]] = self._warm(run.hit_rate)
        return tuple(Line(name, line) for name, line in rates.items())

    @property
    def bound(self) -> float:
        """What an unlimited cache hits, whatever the length of a hit."""
        return self._warm(self.replay.workloads[0].bounds.granule_1)

    def _warm(self, rate: float) -> float:
        """Turn a rate over all rounds into one from the second on: the first cannot hit."""
        return rate * self.num_rounds / (self.num_rounds - 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            **self.replay.to_dict(),
            "kv_tokens": self.kv_tokens,
            "num_rounds": self.num_rounds,
            "unlimited_warm_rate": self.bound,
            "warm_rates": [asdict(line) for line in self.lines],
        }


def bytes_per_block(runs: Iterable[RunResult]) -> int | None:
    """Return the bytes of a block of the A3 pool at block size 128, its MTP layer included.

    Args:
        runs: The answer is theirs, whatever their block size; ``None`` if none has this layout.
    """
    sizes = (
        run.bytes_per_block * BOUND_BLOCK_SIZE // run.block_size
        for run in runs
        if run.layout == ASCEND_LAYOUT
    )
    return next(sizes, None)


def prefix_trace(workload: Workload) -> PrefixTrace:
    """Cut all prompts of a workload into the blocks of these bounds."""
    prompts = (request.prompt_token_ids for request in workload.requests())
    return PrefixTrace.of(prompts, BOUND_BLOCK_TOKENS)


def policy_rates(workload: Workload, runs: Sequence[RunResult]) -> dict[str, float]:
    """Return what textbook policies would hit with the memory of some runs.

    Args:
        workload: The prompts.
        runs: All with the same memory; of another layout than A3's there are no bounds.

    Returns:
        Policy -> hit tokens in percent of prompt tokens, see :func:`policy_lines`.
    """
    block_bytes = bytes_per_block(runs)
    if block_bytes is None:
        return {}
    memory = runs[0].kv_memory_bytes
    lines = policy_lines(prefix_trace(workload), [memory], block_bytes)
    return {line.name: line.rates[memory] for line in lines}


def with_rest_rates(workload: Workload, runs: Sequence[RunResult]) -> tuple[RunResult, ...]:
    """Return runs with what the policies would hit in the memory that live requests leave.

    Where nobody has looked at the memory, or the layout is another one than A3's, runs stay as they
    are.
    """
    block_bytes = bytes_per_block(runs)
    if block_bytes is None or not any(run.memory for run in runs):
        return tuple(runs)
    trace, known = prefix_trace(workload), []
    for run in runs:
        if run.memory is not None:
            left = int(run.kv_memory_bytes * (1 - run.memory.share("live") / 100))
            lines = policy_lines(trace, [left], block_bytes)
            rates = {line.name: line.rates[left] for line in lines}
            run = replace(run, memory=replace(run.memory, rest_rates=rates))
        known.append(run)
    return tuple(known)


def policy_lines(
    trace: PrefixTrace, memories: Sequence[int], block_bytes: int | None
) -> tuple[Line, ...]:
    """Return what textbook policies would hit with these memories.

    A capacity in blocks is the memory divided by the bytes of a block: 5,106 blocks of 512 tokens
    in 16 GiB. That flatters them: a real pool also holds blocks of the other groups, and blocks
    of running requests. Only in one thing a real cache can be ahead: its hits may end at every
    128 tokens, where these end with whole blocks of 512.

    Args:
        trace: The prompts in blocks of 512 tokens.
        memories: In bytes.
        block_bytes: See :func:`bytes_per_block`; without it there are no lines.
    """
    if block_bytes is None:
        return ()
    return tuple(
        Line(
            name,
            {memory: trace.rate(policy(trace, memory // block_bytes)) for memory in memories},
        )
        for name, policy in _POLICIES.items()
    )
