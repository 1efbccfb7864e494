# SPDX-License-Identifier: Apache-2.0
"""A case: everything that decides an episode, as plain data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.core.workload import Traffic
from tests.soak.operations import Operation, from_data, to_data
from tests.soak.recipes import Layer, LayoutRecipe
from vllm_ascend.dry_run.scheduler import SchedulerOptions


@dataclass(frozen=True)
class Habits(Traffic):
    """What requests look like beyond plain prompts, and what operators do, per engine step.

    Attributes:
        with_images: share of prompts that hold a multimodal item.
        with_embeds: share of prompts that come as embeddings.
        with_prompt_logprobs: share of requests that must not read the cache.
        with_sessions: share of requests that are streaming sessions.
        sleep: how often the engine is put to sleep.
        sleep_modes: `level mode` pairs that may be asked for.
        pools: all requests ask for embeddings instead of answers.
        tier_reset: how often the tier is emptied with the prefix cache.
        lost_memory: how often the prefix cache is emptied and its memory lost, if nothing runs.
        other_engine: how often what follows happens to another engine of the case.
        new_engine: how often an engine ends where it is, and another one starts in its place.
        num_steps: steps of the episode, not counting those in which the last requests end.
    """

    with_images: float = 0.0
    with_embeds: float = 0.0
    with_prompt_logprobs: float = 0.05
    with_sessions: float = 0.0
    sleep: float = 0.0
    sleep_modes: tuple[str, ...] = ()
    pools: bool = False
    tier_reset: float = 0.0
    lost_memory: float = 0.0
    other_engine: float = 0.0
    new_engine: float = 0.0
    num_steps: int = 200


@dataclass(frozen=True)
class Connection:
    """A KV connector that loads at once, late, or not at all.

    Attributes:
        seed: of what it brings to whom.
        failures: share of loads that fail.
        fails_in_step: loads that a step waits for may fail as well.
        unit: tokens; it often brings multiples of this.
        policy: `kv_load_failure_policy`.
        knows_granules: whether it copes with hits that end inside blocks.
    """

    seed: int
    failures: float
    unit: int
    policy: str
    knows_granules: bool
    fails_in_step: bool = True


@dataclass(frozen=True)
class Tier:
    """A tier below, whose store is in this process.

    Attributes:
        seed: of what is late and what fails.
        backend: `host`, or `mooncake`, which all engines share.
        gib: host memory of `host`.
        disk_gib: what a disk below the memory of `host` holds; 0: there is none.
        num_objects: what the shared store holds at most.
        num_engines: engines that share it, or the folder of the disk.
        num_ranks: of tensor parallelism, each with a worker of its own.
        staging_mib: size of a buffer.
        async_above_mib: larger loads are waited for while others run.
        late: share of calls of the store that take some steps.
        failures: share of calls that fail, of loads that are given up, of objects that change.
    """

    seed: int
    backend: str
    gib: float = 0.01
    disk_gib: float = 0.0
    num_objects: int = 1 << 30
    num_engines: int = 1
    num_ranks: int = 1
    staging_mib: float = 1.0
    async_above_mib: float = 64.0
    late: float = 0.0
    failures: float = 0.0


@dataclass(frozen=True)
class Case:
    """Everything but the operations.

    Attributes:
        environment: the project's variables.
        encoder_tokens: what the encoder computes per step, and what its cache holds.
        seed: of the drafter's luck and of the traffic.
    """

    layout: LayoutRecipe
    options: SchedulerOptions
    habits: Habits
    environment: dict[str, str] = field(default_factory=dict)
    connection: Connection | None = None
    tier: Tier | None = None
    encoder_tokens: int = 64
    acceptance: float = 0.6
    seed: int = 0

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Case:
        """The case that `asdict` made it from, through JSON."""
        values = dict(data)
        layout = dict(values.pop("layout"))
        layers = tuple(Layer(**layer) for layer in layout.pop("layers"))
        habits = dict(values.pop("habits"))
        habits["sleep_modes"] = tuple(habits["sleep_modes"])
        connection, tier = values.pop("connection"), values.pop("tier", None)
        return cls(
            layout=LayoutRecipe(layers=layers, **layout),
            options=SchedulerOptions(**values.pop("options")),
            habits=Habits(**habits),
            connection=connection and Connection(**connection),
            tier=tier and Tier(**tier),
            **values,
        )


@dataclass(frozen=True)
class Recording:
    """An episode that can be replayed.

    Attributes:
        name: `SEED-EPISODE`.
        failure: what went wrong, if anything did.
    """

    name: str
    case: Case
    operations: tuple[Operation, ...]
    failure: str = ""

    def save(self, path: Path) -> None:
        """Write it as JSON, an operation per line."""
        operations = ",\n".join(f"  {json.dumps(to_data(op))}" for op in self.operations)
        head = {"name": self.name, "failure": self.failure, "case": asdict(self.case)}
        text = json.dumps(head, indent=1)
        path.write_text(f'{text[:-2]},\n "operations": [\n{operations}\n ]\n}}\n')

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read what `save` wrote.

        Raises:
            ValueError: the file is no recording.
        """
        try:
            data = json.loads(path.read_text())
            operations = _operations(data["operations"])
            return cls(data["name"], Case.from_data(data["case"]), operations, data["failure"])
        except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is no recording of the soak: {error!r}") from error


def _operations(data: Sequence[dict[str, Any]]) -> tuple[Operation, ...]:
    return tuple(map(from_data, data))
