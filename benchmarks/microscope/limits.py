# SPDX-License-Identifier: Apache-2.0
"""How slow what may be, and a check that noise cannot fail.

A ratio is above its limit only if every repeat says so: three that agree are no accident.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from benchmarks.microscope.cases import Case
from benchmarks.microscope.forks import Samples

REPEATS = 5
_K = 1024


@dataclass(frozen=True)
class Limit:
    """What a side may take at most, relative to another.

    Attributes:
        why: What the limit rests on.
    """

    case: Case
    side: str
    base: str
    at_most: float
    why: str


# Turns on a busy machine differ by up to a tenth.
_UNSET = "With nothing switched on nobody may feel that the patches are there."
_HASHES = "One hash per granule instead of 16; both copy the prompt."
_PREFIX = "The full match goes block by block, the last block by bisection, and one tail is tried."
_FOUND = "A hit of 8,064 tokens costs what finding nothing costs, within what a machine varies."
_CHUNK = "What a chunk adds is all that is looked at, and spare tails are entered as well."
_BLOCKS = "State that nobody reads takes no block, but each spare tail takes one for a step."
_FREED = "Tails are ranked when a prompt ends; a long prompt holds far fewer blocks."
_STEP = "Until a boundary, a running request costs a comparison."

_UNSET_CASES = (
    *(Case(name, 8 * _K) for name in ("add_request", "look_up_full", "allocate", "cache", "free")),
    *(Case(name, 128 * _K) for name in ("add_request", "look_up_full", "cache", "free")),
    Case("schedule", 8 * _K, 1),
    Case("schedule", 8 * _K, 64),
    Case("schedule", _K, 256),
)
_BEST = (
    (Case("add_request", 8 * _K), 0.25, _HASHES),
    (Case("add_request", 128 * _K), 0.25, _HASHES),
    (Case("look_up_full", 8 * _K), 1.25, _FOUND),
    (Case("look_up_full", 128 * _K), 0.25, _PREFIX),
    (Case("look_up_middle", 128 * _K), 0.25, _PREFIX),
    (Case("allocate", 8 * _K), 1.20, _BLOCKS),
    (Case("cache", 8 * _K), 0.50, _CHUNK),
    (Case("cache", 128 * _K), 0.20, _CHUNK),
    (Case("free", 8 * _K), 3.00, _FREED),
    (Case("free", 128 * _K), 0.85, _FREED),
    (Case("schedule", 8 * _K, 1), 0.85, _STEP),
    (Case("schedule", 8 * _K, 64), 0.65, _STEP),
    (Case("schedule", _K, 256), 0.65, _STEP),
)
LIMITS = (
    *(Limit(case, "unset", "stock", 1.15, _UNSET) for case in _UNSET_CASES),
    *(Limit(case, "best-128", "upstream-128", *rest) for case, *rest in _BEST),
)


@dataclass(frozen=True)
class Verdict:
    """What came out for a limit.

    Attributes:
        ratios: One per repeat that was made.
    """

    limit: Limit
    ratios: tuple[float, ...]

    @property
    def is_kept(self) -> bool:
        """Whether some repeat stayed within the limit."""
        return min(self.ratios) <= self.limit.at_most


Measure = Callable[[Collection[str], Collection[Case]], Mapping[str, Samples]]
"""(sides, cases) -> the samples of each side."""


def check(limits: Iterable[Limit], measure: Measure) -> list[Verdict]:
    """Measure until each ratio has been within its limit once, or ``REPEATS`` times.

    Returns:
        A verdict per limit, in their order.
    """
    ratios: dict[Limit, list[float]] = {limit: [] for limit in limits}
    open_limits = list(ratios)
    for _ in range(REPEATS):
        for samples, limit in _measured(open_limits, measure):
            own, base = (samples[side][limit.case.name] for side in (limit.side, limit.base))
            ratios[limit].append(own["ms"] / base["ms"])
        open_limits = [limit for limit in open_limits if ratios[limit][-1] > limit.at_most]
        if not open_limits:
            break
    return [Verdict(limit, tuple(measured)) for limit, measured in ratios.items()]


def _measured(
    limits: Iterable[Limit], measure: Measure
) -> Iterable[tuple[Mapping[str, Samples], Limit]]:
    """Yield each limit with the samples of its two sides; sides compared are measured together."""
    limits = list(limits)
    for pair in dict.fromkeys((limit.base, limit.side) for limit in limits):
        own = [limit for limit in limits if (limit.base, limit.side) == pair]
        samples = measure(pair, [limit.case for limit in own])
        yield from ((samples, limit) for limit in own)
