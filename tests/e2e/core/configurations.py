# SPDX-License-Identifier: Apache-2.0
"""The grid of what is proven: layouts, ways of scheduling and the project's switches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil
from typing import TypeVar

from vllm.v1.kv_cache_interface import KVCacheConfig, MambaSpec, SlidingWindowSpec

from tests.e2e.core import layouts
from tests.e2e.core.workload import Traffic
from vllm_ascend.core.checks.drafts import DSPARK
from vllm_ascend.dry_run.layouts import KVLayout, dsv4_flash_a3, dsv4_flash_gpu
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler
from vllm_ascend.releases import running_release
from vllm_ascend_evaluation.oracle import OracleOptions
from vllm_ascend_evaluation.oracle.groups import rules_of

DSV4 = "VLLM_ASCEND_APPLY_DSV4_PATCH"
PROFILE = "VLLM_ASCEND_PREFIX_CACHE_PROFILE"
PARTIAL = "VLLM_ASCEND_DSV4_PARTIAL_HITS"
SPARSE = "VLLM_ASCEND_DSV4_SPARSE_STATE"
SPARE = "VLLM_ASCEND_SPARE_TAILS"
EVICTION = "VLLM_ASCEND_EVICTION"
ADMISSION = "VLLM_ASCEND_ADMISSION"
PIN = "VLLM_PIN_SWA_TOKENS"
MIN_DROP = "VLLM_PIN_MIN_DROP_SIZE"
RETENTION = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"

# One layer of every kind is enough: a group's block table does not depend on its layers.
FEW_LAYERS = (0, 4, 128)


@dataclass(frozen=True, eq=False)
class Case:
    """A layout and the traffic that suits its sizes.

    Attributes:
        make: number of speculative tokens -> layout.
        retention_interval: an interval that is a multiple of the alignment, in tokens.
        max_num_seqs: enough of them outgrow the tightest pool and preempt each other.
        environment: switches that the layout needs.
        share: of the steps of the suite, relative to other cases.
    """

    name: str
    make: Callable[[int], KVLayout]
    traffic: Traffic
    max_num_batched_tokens: int
    retention_interval: int | None = None
    max_num_seqs: int = 4
    environment: Mapping[str, str] = field(default_factory=dict)
    share: float = 1.0

    @property
    def is_compressed(self) -> bool:
        """Whether some rows stand for several tokens."""
        return self.name.startswith("dsv4")

    @property
    def counts_rows(self) -> bool:
        """Whether it is Ascend's layout."""
        return DSV4 in self.environment


def _a3(rows: int) -> Case:
    """DeepSeek-V4-Flash's own sizes; alignment 128 * rows tokens."""
    alignment = 128 * rows
    return Case(
        f"dsv4-a3-{rows}",
        lambda k: dsv4_flash_a3(rows, num_draft_layers=min(k, 1), compress_ratios=FEW_LAYERS),
        Traffic(
            unit_tokens=alignment // 4,
            max_prompt_tokens=3 * alignment,
            max_output_tokens=150,
            max_alive=7,
        ),
        max_num_batched_tokens=alignment // 2,
        retention_interval=2 * alignment,
        max_num_seqs=5,
        environment={DSV4: "1"},
        share={32: 0.25, 64: 0.12, 128: 0.06}[rows],
    )


CASES: tuple[Case, ...] = (
    Case("full", lambda k: layouts.full_only(), Traffic(4, 60, 40), 24, share=0.5),
    Case("gemma", lambda k: layouts.gemma_like(4, 9), Traffic(4, 60, 40), 24, 16),
    Case("gemma-wide", lambda k: layouts.gemma_like(8, 16), Traffic(8, 100, 60), 40, 32),
    Case("chunked-local", lambda k: layouts.chunked_local(), Traffic(4, 60, 40), 24, share=0.5),
    Case("mamba", lambda k: layouts.mamba_hybrid(16, k), Traffic(16, 120, 60), 48),
    Case(
        "dsv4-stock",
        lambda k: layouts.dsv4_stock_tiny(mtp=k > 0),
        Traffic(32, 220, 120, max_alive=14),
        48,
        64,
        max_num_seqs=10,
    ),
    Case(
        "dsv4-gpu",
        lambda k: dsv4_flash_gpu(num_draft_layers=min(k, 1), compress_ratios=FEW_LAYERS),
        Traffic(256, 1500, 150, max_alive=10),
        512,
        512,
        max_num_seqs=8,
        share=0.3,
    ),
    Case(
        "dsv4-rows",
        lambda k: layouts.dsv4_rows_tiny(mtp=k > 0),
        Traffic(16, 300, 120, max_alive=14),
        80,
        128,
        max_num_seqs=10,
        environment={DSV4: "1"},
        share=2.0,
    ),
    _a3(32),
    _a3(64),
    _a3(128),
)


@dataclass(frozen=True, eq=False)
class Mode:
    """A way of scheduling."""

    name: str
    options: Mapping[str, object]

    @property
    def num_speculative_tokens(self) -> int:
        """Drafts per step."""
        return int(self.options.get("num_speculative_tokens", 0))  # type: ignore[call-overload]

    @property
    def is_dspark(self) -> bool:
        """Whether the drafts are DSpark's, whose rows depend on their own tokens alone."""
        return self.options.get("draft_method") == DSPARK

    @property
    def is_async(self) -> bool:
        """Whether a step is scheduled before the last one's output is known."""
        return bool(self.options.get("async_scheduling"))


MODES: tuple[Mode, ...] = (
    Mode("plain", {}),
    Mode("priority", {"policy": "priority"}),
    Mode("mtp1", {"num_speculative_tokens": 1}),
    Mode("mtp3", {"num_speculative_tokens": 3}),
    Mode("async", {"async_scheduling": True}),
    Mode("async-mtp", {"async_scheduling": True, "num_speculative_tokens": 2}),
    Mode("dspark1", {"draft_method": DSPARK, "num_speculative_tokens": 1}),
    Mode("dspark3", {"draft_method": DSPARK, "num_speculative_tokens": 3}),
    Mode(
        "async-dspark7",
        {"draft_method": DSPARK, "async_scheduling": True, "num_speculative_tokens": 7},
    ),
)


@dataclass(frozen=True)
class Switches:
    """A set of the project's switches.

    Attributes:
        retention: None leaves it unset; "N" is the case's own interval.
        partial: hits end inside compressed blocks.
        sparse: compressor state has null blocks where nobody reads.
        spare: boundaries that nothing asks to keep are cached as well.
        protect: prompts that return are given up last.
        min_drop: blocks that a window drops at once to be pinned; 0 pins nothing.
        admission: those with the most cached are let in first.
    """

    name: str
    retention: str | None = None
    partial: bool = False
    sparse: bool = False
    spare: bool = False
    protect: bool = False
    min_drop: int = 0
    admission: bool = False

    def environment(self, interval: int | None) -> dict[str, str]:
        """The switches, as environment variables."""
        retention = str(interval) if self.retention == "N" else self.retention
        flags = {
            PARTIAL: self.partial,
            SPARSE: self.sparse,
            SPARE: self.spare,
        }
        environment = {name: "1" for name, on in flags.items() if on}
        if self.protect:
            environment[EVICTION] = "protect"
        if self.admission:
            environment[ADMISSION] = "cached"
        if self.min_drop:
            environment |= {PIN: "1", MIN_DROP: str(self.min_drop)}
        return environment if retention is None else {**environment, RETENTION: retention}

    def suits(self, case: Case) -> bool:
        """Whether every switch means something for the case."""
        needs_windows = self.retention is not None or self.min_drop or self.protect
        if needs_windows and case.retention_interval is None:
            return False
        return (case.is_compressed or not self.partial) and (case.counts_rows or not self.sparse)


SWITCHES = (
    Switches("retention-unset"),
    Switches("retention-0", "0"),
    Switches("retention-N", "N"),
    Switches("spare-0", "0", spare=True),
    Switches("partial", partial=True),
    Switches("partial-0", "0", partial=True),
    Switches("sparse-N", "N", sparse=True),
    Switches("partial-sparse", partial=True, sparse=True),
    Switches("partial-sparse-0", "0", partial=True, sparse=True),
    Switches("best", "N", partial=True, sparse=True, spare=True, protect=True),
    Switches("best-of-stock", "N", partial=True, spare=True, protect=True),
    Switches("pin", min_drop=2),
    Switches("pin-0", "0", min_drop=1),
    Switches("pin-best", "N", partial=True, sparse=True, spare=True, protect=True, min_drop=2),
    Switches("protect", protect=True),
    Switches("best-lru", "N", partial=True, sparse=True, spare=True),
    Switches("admission", "N", partial=True, sparse=True, spare=True, protect=True, admission=True),
)


_Part = TypeVar("_Part", Case, Mode, Switches)


def _named(parts: Iterable[_Part], name: str) -> _Part:
    (part,) = (part for part in parts if part.name == name)
    return part


@dataclass(frozen=True, eq=False)
class Configuration:
    """One cell of the grid."""

    case: Case
    mode: Mode
    switches: Switches

    @classmethod
    def named(cls, case: str, mode: str, switches: str) -> Configuration:
        """Return the cell whose parts have these names."""
        return cls(_named(CASES, case), _named(MODES, mode), _named(SWITCHES, switches))

    def __str__(self) -> str:
        return f"{self.case.name}-{self.mode.name}-{self.switches.name}"

    @property
    def environment(self) -> dict[str, str]:
        """The switches, as environment variables."""
        return {
            **self.case.environment,
            **self.switches.environment(self.case.retention_interval),
        }

    @property
    def layout(self) -> KVLayout:
        """The KV cache specs."""
        return self.case.make(self.mode.num_speculative_tokens)

    @property
    def traffic(self) -> Traffic:
        """What is sent."""
        if self.mode.is_async:
            # vLLM 0.20.2 loses a token of every request that it preempts this way while a step
            # is in flight, whatever the cache does.
            return replace(self.case.traffic, busy_reset=0.0)
        return self.case.traffic

    def oracle(self, seed: int) -> OracleOptions:
        """How strict the proof is: stock vLLM is exact for the model, not for all kernels."""
        strict = bool(self.environment)
        return OracleOptions(
            seed=seed,
            strict_state=self.switches != SWITCHES[0],
            strict_draft=strict,
        )

    def options(self, room: float) -> SchedulerOptions:
        """Scheduler options with a pool that holds `room` requests of the longest kind."""
        traffic = self.case.traffic
        max_tokens = traffic.max_prompt_tokens + traffic.max_output_tokens
        common = {
            "max_num_seqs": self.case.max_num_seqs,
            "max_num_batched_tokens": self.case.max_num_batched_tokens,
            "max_model_len": max_tokens + 8,
            **self.mode.options,
        }
        need = _blocks_of_longest_request(self, tuple(sorted(common.items())))
        return SchedulerOptions(num_blocks=1 + ceil(need * room), **common)  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def _blocks_of_longest_request(
    configuration: Configuration, common: tuple[tuple[str, object], ...]
) -> int:
    options = SchedulerOptions(num_blocks=1000, **dict(common))  # type: ignore[arg-type]
    scheduler = build_scheduler(configuration.layout, options)
    in_flight = running_release().max_in_flight_tokens(scheduler.vllm_config)
    # Windows hold drafts as well, also those of a step in flight.
    drafts = options.num_speculative_tokens * (1 + options.async_scheduling)
    step_tokens = options.max_num_batched_tokens + in_flight + drafts
    return blocks_of_longest_request(
        scheduler.kv_cache_config, replace(options, max_num_batched_tokens=step_tokens)
    )


def blocks_of_longest_request(kv_cache_config: KVCacheConfig, options: SchedulerOptions) -> int:
    """What a request of the greatest length holds at most, over all groups.

    Args:
        options: Their tokens of a step are all that are in flight.
    """
    blocks = 0
    for group in kv_cache_config.kv_cache_groups:
        spec = group.kv_cache_spec
        if isinstance(spec, SlidingWindowSpec):
            blocks += spec.max_admission_blocks_per_request(
                options.max_num_batched_tokens, options.max_model_len
            )
        elif isinstance(spec, MambaSpec):
            blocks += 3 + spec.num_speculative_blocks
        else:
            blocks += ceil(options.max_model_len / rules_of(spec).tokens_per_block)
    return blocks


def is_exact(configuration: Configuration) -> bool:
    """Whether exactness is promised: what the project switches on, and stock where it is right.

    See test_vllm_defects.py for where vLLM 0.20.2 is not.
    """
    case, mode = configuration.case, configuration.mode
    if mode.is_dspark and not (case.is_compressed and _serves_dspark(configuration)):
        return False
    if case.name == "chunked-local":
        return mode.num_speculative_tokens == 0  # vLLM refuses the combination.
    if case.name == "mamba":
        return mode.num_speculative_tokens == 0
    is_stock = not configuration.environment
    drafts = mode.num_speculative_tokens > 0
    if is_stock and drafts and case.name.startswith("dsv4") and not running_release().counts_rows:
        return False  # vLLM enters the last block of a prompt before it is full.
    drafts_in_flight = mode.is_async and drafts
    return not (is_stock and drafts_in_flight and case.name != "full")


def _serves_dspark(configuration: Configuration) -> bool:
    """Whether the release has DSpark, and the project decides what a hit keeps for it."""
    return running_release().has_dspark and bool(
        configuration.switches.environment(configuration.case.retention_interval)
    )


def grid() -> list[Configuration]:
    """Every configuration that makes sense."""
    cells = []
    for case in CASES:
        for mode in MODES:
            for switches in SWITCHES:
                cell = Configuration(case, mode, switches)
                if switches.suits(case) and is_exact(cell):
                    cells.append(cell)
    return cells
