# SPDX-License-Identifier: Apache-2.0
"""What a soak came to: one table, and the same as JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tests.soak.names import FEATURES

if TYPE_CHECKING:
    from tests.soak.episode import Result

# From so many steps on everything must have been met.
_COMPLETE_STEPS = 200_000
_COUNTS = (
    *("requests", "hits", "hit tokens", "preemptions", "aborts", "loads", "failed loads"),
    *(
        "loads of the tier",
        "failed loads of the tier",
        "bytes from the disk",
        "starved",
        "resets",
        "sleeps",
    ),
)


@dataclass
class Summary:
    """Totals over episodes.

    Attributes:
        refusals: reason -> episodes whose case could not be built.
        failures: the episodes that found something, with what they found.
        interrupted: whether the user stopped it.
    """

    seed: int
    seconds: float = 0.0
    episodes: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    feature_steps: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def steps(self) -> int:
        """Scheduled steps that the oracle verified."""
        return self.counts["steps"]

    @property
    def missing(self) -> list[str]:
        """Features that no step had on, if there were enough steps to tell."""
        if self.steps < _COMPLETE_STEPS:
            return []
        return [name for name in FEATURES if not self.feature_steps[name]]

    @property
    def is_good(self) -> bool:
        """Whether nothing was found and nothing was left out."""
        return not self.failures and not self.missing and self.steps > 0

    def add(self, result: Result) -> None:
        """Count an episode in."""
        self.episodes += 1
        self.counts += result.counts
        self.feature_steps += result.feature_steps
        if result.refusal is not None:
            self.refusals[result.refusal] += 1
        if result.failure is not None:
            self.failures[result.episode] = result.failure.text

    def print(self, console: Console) -> None:
        """Print it for people."""
        table = Table(title=f"soak, seed {self.seed}")
        table.add_column("what")
        table.add_column("count", justify="right")
        rate = self.steps / self.seconds if self.seconds else 0.0
        table.add_row("scheduled steps verified", f"{self.steps:,} ({rate:,.0f} per second)")
        refused = self.refusals.total()
        table.add_row("episodes", f"{self.episodes:,} ({refused} refused)")
        for name in _COUNTS:
            table.add_row(name, f"{self.counts[name]:,}")
        table.add_section()
        for name in FEATURES:
            table.add_row(f"steps with {name}", f"{self.feature_steps[name]:,}")
        table.add_section()
        table.add_row("failures", f"{len(self.failures)}", style="red" if self.failures else "")
        console.print(table)
        for reason, number in self.refusals.most_common():
            console.print(f"refused {number} times: {reason}", markup=False)
        if self.missing:
            console.print(f"no step had these on: {', '.join(self.missing)}", style="red")

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        data = {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "episodes": self.episodes,
            **self.counts,
            "feature_steps": {name: self.feature_steps[name] for name in FEATURES},
            "refusals": self.refusals,
            "failures": self.failures,
            "missing": self.missing,
            "interrupted": self.interrupted,
        }
        path.write_text(json.dumps(data, indent=1) + "\n")
