# SPDX-License-Identifier: Apache-2.0
"""What was measured, round by round, and the medians of it."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

from benchmarks.microscope.cases import Case
from benchmarks.microscope.forks import ForkServer, Samples
from benchmarks.microscope.sides import Side

Said = Callable[[str], None]


@dataclass
class Figures:
    """The samples of every round.

    Attributes:
        machine: What they were measured on, and how busy it was.
        samples: Side -> a round's samples each.
    """

    machine: dict[str, str]
    samples: dict[str, list[Samples]] = field(default_factory=dict)

    def ms(self, side: str, case: Case) -> float:
        """Return the median over the rounds, in milliseconds."""
        return statistics.median(round_[case.name]["ms"] for round_ in self.samples[side])

    def ratio(self, side: str, base: str, case: Case) -> float:
        """Return the median of the ratios within a round: the machine's speed drifts."""
        return statistics.median(
            own[case.name]["ms"] / other[case.name]["ms"]
            for own, other in zip(self.samples[side], self.samples[base], strict=True)
        )

    def fact(self, side: str, case: Case, name: str) -> int:
        """Return something that is the same in every round: tokens hit, bytes of keys."""
        return int(self.samples[side][0][case.name][name])

    def knows(self, side: str, case: Case) -> bool:
        """Whether the case was measured on the side."""
        return all(case.name in round_ for round_ in self.samples.get(side, [{}]))

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Figures:
        """Read what ``write`` wrote."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def measure(
    sides: Sequence[Side], cases: Sequence[Case], num_rounds: int, said: Said = lambda _: None
) -> Iterator[Figures]:
    """Measure every case on every side; yield the figures so far behind every round.

    A round has a process of its own, because a process keeps the memory layout that it happened to
    get, and within it the sides take turns.

    Args:
        said: Told what is measured next.

    Raises:
        ChildError: A case failed.
    """
    figures = Figures(_machine(), {side.key: [] for side in sides})
    busy = [os.getloadavg()[0]]
    for number in range(num_rounds):
        said(f"round {number + 1} of {num_rounds}: importing vLLM")
        with ForkServer() as server:
            turn = take_turn(
                server,
                sides if number % 2 == 0 else sides[::-1],
                cases,
                lambda what, number=number: said(f"round {number + 1} of {num_rounds}: {what}"),
            )
        for key, samples in turn.items():
            figures.samples[key].append(samples)
        busy.append(os.getloadavg()[0])
        figures.machine["load average"] = f"{min(busy):.1f} to {max(busy):.1f}"
        yield figures


def take_turn(
    server: ForkServer, sides: Sequence[Side], cases: Iterable[Case], said: Said = lambda _: None
) -> dict[str, Samples]:
    """Measure every case once on every side, one side right behind the other; return by side."""
    turn: dict[str, Samples] = {side.key: {} for side in sides}
    for batch in _batches(cases):
        for side in sides:
            said(f"{side.title}, {', '.join(dict.fromkeys(case.size for case in batch))}")
            turn[side.key].update(server.measure(side, batch))
    return turn


def _batches(cases: Iterable[Case]) -> Iterator[list[Case]]:
    """Yield cases that take about as long, so that the sides take turns every few seconds."""

    def weight(case: Case) -> tuple[str, int]:
        return case.file, case.num_tokens * max(case.num_running, 1)

    for _, batch in groupby(sorted(cases, key=weight), weight):
        yield list(batch)


def _machine() -> dict[str, str]:
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text().splitlines() if cpu_info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
        "Python": platform.python_version(),
        "vLLM": version("vllm"),
    }
