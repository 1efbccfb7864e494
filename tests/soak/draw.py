# SPDX-License-Identifier: Apache-2.0
"""Random cases: layouts, pools, switches, ways of scheduling and traffic. Seeded."""

from __future__ import annotations

import random
from dataclasses import replace
from math import ceil, lcm
from zlib import crc32

from vllm.v1.core.sched.scheduler import Scheduler

from tests.e2e.core.configurations import (
    DSV4,
    EVICTION,
    MIN_DROP,
    PARTIAL,
    PIN,
    RETENTION,
    SPARE,
    SPARSE,
    blocks_of_longest_request,
)
from tests.soak.case import Case, Connection, Habits
from tests.soak.engines import environment
from tests.soak.features import PROFILE
from tests.soak.names import DSV4_ROWS, DSV4_STOCK, FLASH_A3, FLASH_GPU, HYBRID
from tests.soak.promises import is_ours, without_vllm_defects
from tests.soak.recipes import Layer, LayoutRecipe
from tests.soak.tier_draw import with_tier
from vllm_ascend.core.admission.request_footprint import RequestFootprint
from vllm_ascend.core.checks.drafts import DSPARK
from vllm_ascend.core.layout.specs import group_specs, tokens_per_block
from vllm_ascend.core.policy.units import GroupId
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler
from vllm_ascend.releases import running_release

_FAMILIES = {HYBRID: 8, DSV4_STOCK: 5, DSV4_ROWS: 12, FLASH_A3: 0.25, FLASH_GPU: 0.5}
# Overlapping compressors are known by their window of 8, so no other one may have it.
_RATIOS = ((4, 16), (4, 16), (4,), (16,), (4, 32), (4, 16, 32), (2, 4), (4, 128), (16, 4))
# What requests hold at most must not grow beyond what a short episode can fill.
_MAX_ALIGNMENT = 512
_PROBE_BLOCKS = 1000


def draw(seed: int, episode: int) -> Case:
    """The case of an episode: the same for ever, whatever else runs.

    Raises:
        ValueError: the product or vLLM refuses the combination that was drawn.
    """
    name = f"{seed}-{episode}"
    drawn = _Draw(random.Random(name))
    case = drawn.case(crc32(name.encode()))
    return with_tier(case, drawn.probe, random.Random(f"{name} tier"))


class _Draw:
    probe: Scheduler  # of the layout that was drawn

    def __init__(self, rng: random.Random) -> None:
        self._random = rng

    def case(self, seed: int) -> Case:
        """Everything of an episode.

        Raises:
            ValueError: the combination is refused.
        """
        layout = self.layout()
        takes_part = layout.kinds.isdisjoint({"mamba", "chunked"})
        options = self.options(layout, may_draft=takes_part)
        switches = self.switches(layout)
        # The interval depends on the alignment in force, which the scheduler knows.
        known = {name: "0" if value == "N" else value for name, value in switches.items()}
        with environment(known):
            self.probe = probe = build_scheduler(layout.build(), options)
        connects = takes_part and options.enable_prefix_caching and self.chance(0.25)
        unit = self.unit(probe)
        connection = self.connection(unit, seed) if connects else None
        if connection is not None and not connection.knows_granules:
            unit = self.whole_blocks(probe)
        if switches.get(RETENTION) == "N":
            switches[RETENTION] = str(unit * self.pick(1, 1, 2, 3, 8))
        habits = self.habits(layout, options, probe, connection)
        case = Case(
            layout=layout,
            options=self.sized(options, habits, probe),
            habits=habits,
            environment=switches,
            connection=connection,
            acceptance=self.pick(0.1, 0.6, 0.9),
            seed=seed,
        )
        return without_vllm_defects(case, probe)

    def chance(self, probability: float) -> bool:
        """Whether something that is this probable happens."""
        return self._random.random() < probability

    def pick(self, *values):
        """Any of them."""
        return self._random.choice(values)

    def layout(self) -> LayoutRecipe:
        """Any family, any sizes."""
        family = self._random.choices([*_FAMILIES], [*_FAMILIES.values()])[0]
        if family == FLASH_A3:
            return LayoutRecipe(family, self.pick(32, 32, 64, 128), mtp=self.chance(0.5))
        if family == FLASH_GPU:
            return LayoutRecipe(family, 256, mtp=self.chance(0.5))
        while True:
            layout = self.hybrid() if family == HYBRID else self.dsv4(family)
            sizes = [
                layer.block_size * (layer.ratio if family == DSV4_ROWS and layer.ratio else 1)
                for layer in layout.layers
            ]
            if lcm(*sizes) <= _MAX_ALIGNMENT:
                return layout

    def hybrid(self) -> LayoutRecipe:
        """Full attention and any number of other kinds."""
        size = self.pick(2, 4, 4, 8, 16)
        layers = [Layer("full", size, count=self.pick(1, 1, 2))] if self.chance(0.93) else []
        others = self._random.choices(
            [("sliding",), ("sliding", "sliding"), ("sliding",) * 3, ("chunked",), ("mamba",), ()],
            [8, 4, 1, 1.5, 1.5, 2],
        )[0]
        for kind in others:
            block = size if kind != "sliding" or self.chance(0.7) else self.pick(2, 4, 8, 16)
            window = self._random.randrange(2, 5 * block + 2)
            if kind == "chunked":
                window = block * self.pick(1, 2, 4)
            window = 0 if kind == "mamba" else window
            layers.append(Layer(kind, block, window, count=self.pick(1, 2, 3)))
        layers = layers or [Layer("sliding", size, self._random.randrange(2, 4 * size))]
        self._random.shuffle(layers)
        # vLLM takes a model with blocks of a single size only with that size as `--block-size`.
        sizes = {layer.block_size for layer in layers}
        return LayoutRecipe(HYBRID, sizes.pop() if len(sizes) == 1 else size, tuple(layers))

    def dsv4(self, family: str) -> LayoutRecipe:
        """DeepSeek-V4's shape with other ratios, blocks and windows."""
        ratios = self.pick(*_RATIOS)
        if family == DSV4_ROWS:
            size = self.pick(1, 2, 4, 4, 8)
            block = self.pick(size, size, 2 * size, 4)
        else:
            size = lcm(*ratios) * self.pick(1, 1, 2)
            block = self.pick(4, 8, 16)
        compressed = [
            Layer(
                "compressed",
                size,
                ratio=ratio,
                state_block_size=self.pick(1, 2, 4, 8),
                count=self.pick(1, 1, 2),
            )
            for ratio in ratios
        ]
        window = Layer("window", block, self._random.randrange(2, 6 * block + 2))
        return LayoutRecipe(family, size, (window, *compressed), mtp=self.chance(0.4))

    def options(self, layout: LayoutRecipe, *, may_draft: bool) -> SchedulerOptions:
        """A way of scheduling; the pool comes later."""
        has_draft_layer = layout.mtp or layout.family == HYBRID
        drafts = may_draft and has_draft_layer and self.chance(0.8 if layout.mtp else 0.3)
        # Other models' DSpark is left to vLLM.
        may_be_dspark = drafts and layout.family != HYBRID and running_release().has_dspark
        is_dspark = may_be_dspark and self.chance(0.5)
        counts = (1, 3, 7) if is_dspark else (1, 1, 2, 3, 5)
        return SchedulerOptions(
            num_blocks=_PROBE_BLOCKS,
            max_num_seqs=self.pick(1, 2, 4, 4, 6, 10),
            num_speculative_tokens=self.pick(*counts) if drafts else 0,
            draft_method=DSPARK if is_dspark else "mtp",
            async_scheduling=self.chance(0.35),
            enable_kv_cache_events=self.chance(0.15),
            enable_prefix_caching=self.chance(0.97),
            policy=self.pick("fcfs", "fcfs", "priority"),
        )

    def switches(self, layout: LayoutRecipe) -> dict[str, str]:
        """The project's variables; an interval N is filled in later."""
        is_dsv4 = layout.family != HYBRID
        counts_rows = layout.family in (DSV4_ROWS, FLASH_A3)
        has_windows = is_dsv4 or "sliding" in layout.kinds
        switches: dict[str, str] = {}
        if counts_rows or self.chance(0.1):
            switches[DSV4] = "1"
        if self.chance(0.12):
            return switches
        if self.chance(0.15):
            switches[PROFILE] = "best"
        # What means nothing to a model must have no effect on it.
        if self.chance(0.5 if is_dsv4 else 0.1):
            switches[PARTIAL] = self.pick("1", "1", "1", "0")
        if self.chance(0.45 if counts_rows else 0.1):
            switches[SPARSE] = self.pick("1", "1", "1", "0")
        if self.chance(0.4):
            switches[SPARE] = self.pick("1", "1", "1", "0")
        # Without windows both are refused, which other tests are for.
        if has_windows and self.chance(0.65):
            switches[RETENTION] = self.pick("0", "0", "auto", "N", "N")
        if has_windows and self.chance(0.25):
            switches |= {PIN: "1", MIN_DROP: self.pick("0", "1", "2", "4", "16")}
        if self.chance(0.35):
            switches[EVICTION] = self.pick("protect", "protect", "lru")
        return switches

    def unit(self, probe: Scheduler) -> int:
        """The alignment in force, in tokens."""
        coordinator = probe.kv_cache_manager.coordinator
        if is_ours(probe):
            return coordinator.lcm_block_size
        return self.whole_blocks(probe)

    def whole_blocks(self, probe: Scheduler) -> int:
        """The least number of tokens with which a block of every group ends."""
        return lcm(*map(tokens_per_block, group_specs(probe.kv_cache_config)))

    def connection(self, unit: int, seed: int) -> Connection:
        """A connector of some temperament."""
        return Connection(
            seed=seed,
            failures=self.pick(0.0, 0.2, 0.5),
            unit=unit,
            policy=self.pick("recompute", "recompute", "fail"),
            knows_granules=self.chance(0.7),
        )

    def habits(
        self,
        layout: LayoutRecipe,
        options: SchedulerOptions,
        probe: Scheduler,
        connection: Connection | None,
    ) -> Habits:
        """Traffic that suits the sizes of the layout."""
        unit = self.unit(probe)
        whole = self.whole_blocks(probe)
        is_flash = layout.family in (FLASH_A3, FLASH_GPU)
        longest = int(whole * self._random.uniform(1.0, 2.0 if is_flash else 5.0))
        if not is_flash:
            longest = min(max(longest, 40), 1000)
        calm = connection is None and not options.async_scheduling
        pools = not options.num_speculative_tokens and self.chance(0.06)
        # A session that waits for input holds its blocks, so nothing can be reset under it.
        with_sessions = self.pick(0.2, 0.6) if self.chance(0.25) and not pools else 0.0
        share = self._random.random
        return Habits(
            unit_tokens=min(unit, longest),
            max_prompt_tokens=longest,
            max_output_tokens=self.pick(3, 12, 40, 120),
            num_families=self.pick(1, 2, 3, 5),
            max_alive=options.max_num_seqs + self.pick(1, 3, 6),
            arrival=self.pick(0.1, 0.3, 0.6, 0.9),
            abort=self.pick(0.0, 0.02, 0.08),
            abort_in_flight=self.pick(0.0, 0.02, 0.08),
            idle_reset=self.pick(0.0, 0.004, 0.02),
            # vLLM refuses one while requests wait for a connector, and loses tokens in flight
            # (test_vllm_defects.py).
            busy_reset=self.pick(0.0, 0.002, 0.02) if calm and not with_sessions else 0.0,
            salted=self.pick(0.0, 0.1),
            with_lora=self.pick(0.0, 0.1),
            with_images=share() * 0.6 if self.chance(0.35) else 0.0,
            with_embeds=share() if self.chance(0.15) else 0.0,
            with_prompt_logprobs=self.pick(0.0, 0.05, 0.3),
            with_sessions=with_sessions,
            sleep=self.pick(0.0, 0.01, 0.03),
            sleep_modes=_sleep_modes(options, connection, with_sessions=bool(with_sessions)),
            pools=pools,
            num_steps=60 if is_flash else self._random.randrange(80, 400),
        )

    def sized(
        self, options: SchedulerOptions, habits: Habits, probe: Scheduler
    ) -> SchedulerOptions:
        """Steps and a pool that fit the traffic."""
        longest, drafts = habits.max_prompt_tokens, options.num_speculative_tokens
        blocks = [spec.block_size for spec in group_specs(probe.kv_cache_config)]
        # vLLM wants a token of every request, and Mamba whole blocks.
        least = max(options.max_num_seqs * (1 + drafts), 2 * max(blocks), 8)
        budget = max(least, int(longest * self.pick(0.05, 0.15, 0.3, 0.6, 1.2)))
        options = replace(
            options,
            max_num_batched_tokens=budget,
            max_model_len=longest + habits.max_output_tokens + 2 * drafts + 8,
        )
        # Drafts take room beside a step's tokens, twice with one more step in flight.
        in_flight = drafts * (1 + options.async_scheduling)
        # Later releases hold a window until the steps in flight have run.
        held = running_release().max_in_flight_tokens(probe.vllm_config)
        in_flight += budget * (held // probe.vllm_config.scheduler_config.max_num_batched_tokens)
        need = blocks_of_longest_request(
            probe.kv_cache_config, replace(options, max_num_batched_tokens=budget + in_flight)
        )
        # No engine starts with less than what it lets a request in with.
        need = max(need, _held_at_most(options, probe))
        room = self.pick(1.02, 1.1, 1.3, 1.7, 2.5, 4.0, 7.0)
        return replace(
            options,
            num_blocks=1 + ceil(need * room),
            # A model configuration takes long to build, so few lengths are used.
            max_model_len=1 << options.max_model_len.bit_length(),
        )


def _held_at_most(options: SchedulerOptions, probe: Scheduler) -> int:
    """The blocks that a request is let in with where any switch is on; 0 where vLLM counts."""
    plan = getattr(probe.kv_cache_manager.coordinator, "plan", None)
    if plan is None or plan.is_stock:
        return 0
    sizes = {name: getattr(options, name) for name in ("max_num_batched_tokens", "max_model_len")}
    footprint = RequestFootprint(replace(plan, **sizes))
    return sum(footprint.blocks(GroupId(i)) or 0 for i in range(len(plan.specs)))


def _sleep_modes(
    options: SchedulerOptions, connection: Connection | None, *, with_sessions: bool
) -> tuple[str, ...]:
    """What vLLM's engine survives."""
    modes = ("0 keep", "0 wait", "0 abort")
    if connection is not None or with_sessions:
        return modes  # memory that a connector loads into or a session holds cannot be given up
    # A reset that preempts loses tokens of asynchronous scheduling (test_vllm_defects.py).
    keep = () if options.async_scheduling else ("1 keep",)
    return (*modes, *keep, "1 wait", "1 abort")
