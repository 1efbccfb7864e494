# SPDX-License-Identifier: Apache-2.0
"""How likely something is used again, by how long ago it was used: a life table.

Ages fall into bins that grow geometrically. What was reused ends its life in the bin of its age;
what still waits, or was forgotten waiting, is *censored* there: it says that nothing happened
before. From these counts follow the chance of reuse in each bin (Kaplan and Meier, JASA 53, 1958,
over bins), and what it is worth to hold a block of some age: the best ratio, over all horizons, of
expected reuses to the expected time that it takes memory (the index of Gittins, J. R. Stat. Soc. B
41, 1979). Of blocks with different indices the one with the least is given up first.

Example: nobody of age 4 to 8 has come back, half of those of age 8 to 9 have. At age 4 a block is
worth 0.5 reuses over 4.75 units of time, 0.105 a unit; at 8 it is worth 0.667.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class AgeBins:
    """Bins of ages: the first is ``[0, unit)``, each edge behind is ``2 ** 0.5`` times as old."""

    def __init__(self, unit: int, longest: int) -> None:
        """Cover ages up to ``longest``; what is older falls into the last bin."""
        edges = [float(max(unit, 1))]
        while edges[-1] < longest:
            edges.append(edges[-1] * 2**0.5)
        # Each once: of the smallest units several edges are the same.
        self._edges = list(dict.fromkeys(map(round, edges)))
        self.starts = [0, *self._edges]

    def __len__(self) -> int:
        return len(self.starts)

    def bin(self, age: int) -> int:
        """Return the bin of an age."""
        return bisect_right(self._edges, age)


class LifeTable:
    """Counts of one class, by bin of age."""

    def __init__(self, num_bins: int) -> None:
        self.reused = [0.0] * num_bins
        self.forgotten = [0.0] * num_bins

    def fade(self, factor: float) -> None:
        """Let what was counted so far weigh less."""
        self.reused = [count * factor for count in self.reused]
        self.forgotten = [count * factor for count in self.forgotten]

    def hazards(self, waiting: Sequence[float], *, prior: float) -> list[float]:
        """Return for every bin the chance that what enters it is reused within.

        Args:
            waiting: Who waits now, by bin of age.
            prior: Lives without a reuse that are added to every bin: few lives prove little.
        """
        hazards = [0.0] * len(self.reused)
        behind = 0.0
        for i in reversed(range(len(hazards))):
            censored = self.forgotten[i] + waiting[i]
            # Those censored in a bin were at risk for half of it (the actuarial estimate).
            at_risk = behind + self.reused[i] + censored / 2 + prior
            hazards[i] = self.reused[i] / at_risk if at_risk else 0.0
            behind += self.reused[i] + censored
        return hazards


def gittins_indices(hazards: Sequence[float], starts: Sequence[int]) -> list[float]:
    """Return for every bin what a block is worth that enters it, in reuses per unit of time.

    The last bin has no end, and nothing is expected there.

    Args:
        hazards: By bin the chance of reuse within it.
        starts: By bin the age at which it starts.
    """
    num_bins = len(hazards)
    indices = [0.0] * num_bins
    for first in range(num_bins - 1):
        alive, reuses, time, best = 1.0, 0.0, 0.0, 0.0
        for i in range(first, num_bins - 1):
            hazard = hazards[i]
            # A reuse within the bin comes half-way through it on average.
            time += alive * (starts[i + 1] - starts[i]) * (1 - hazard / 2)
            reuses += alive * hazard
            alive *= 1 - hazard
            best = max(best, reuses / time)
        indices[first] = best
    return indices
