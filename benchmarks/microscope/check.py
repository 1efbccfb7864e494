# SPDX-License-Identifier: Apache-2.0
"""Fails if a ratio is above its limit in five repeats that agree::

python -m benchmarks.microscope.check
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.microscope.cases import Case
from benchmarks.microscope.figures import take_turn
from benchmarks.microscope.forks import ForkServer, Samples
from benchmarks.microscope.limits import LIMITS, Limit, Verdict, check
from benchmarks.microscope.sides import SIDES, Side


def check_here(limits: Iterable[Limit], sides: Mapping[str, Side] = SIDES) -> list[Verdict]:
    """Check limits on this machine.

    Raises:
        ChildError: A case failed.
    """
    with ForkServer() as server:

        def measure(keys: Collection[str], cases: Collection[Case]) -> Mapping[str, Samples]:
            return take_turn(server, [sides[key] for key in keys], cases)

        return check(limits, measure)


def show(verdicts: Iterable[Verdict], console: Console) -> None:
    """Print a row per limit."""
    table = Table("case", "ratio of", "at most", "measured", box=SIMPLE_HEAD)
    for verdict in verdicts:
        limit = verdict.limit
        table.add_row(
            f"{limit.case.operation} {limit.case.size}",
            f"{limit.side} / {limit.base}",
            f"{limit.at_most:.2f}",
            ", ".join(f"{ratio:.2f}" for ratio in verdict.ratios),
            style="" if verdict.is_kept else "bold red",
        )
    console.print(table)


def main() -> int:
    """Check every limit; return the exit status."""
    console = Console()
    start = time.monotonic()
    verdicts = check_here(LIMITS)
    show(verdicts, console)
    broken = [verdict for verdict in verdicts if not verdict.is_kept]
    for verdict in broken:
        limit = verdict.limit
        case = f"{limit.case.operation} {limit.case.size}"
        console.print(f"above its limit, five times of five: {case}. {limit.why}", style="red")
    seconds = time.monotonic() - start
    console.print(f"{len(verdicts) - len(broken)} of {len(verdicts)} limits kept, {seconds:.0f} s")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
