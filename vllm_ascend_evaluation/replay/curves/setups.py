# SPDX-License-Identifier: Apache-2.0
"""Ranks and tiers that are compared side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from vllm_ascend_evaluation.replay.runs.job import CACHE_ROUTING, VLLM_ROUTING, Job


@dataclass(frozen=True)
class Setup:
    """Ranks, who chooses between them, and what is below each.

    Attributes:
        num_ranks: Data-parallel ranks behind one front end.
        dp_routing: ``vllm`` or ``cache``.
        tier_gib: Of each rank; ``None``: no tier.
    """

    num_ranks: int = 1
    dp_routing: str = VLLM_ROUTING
    tier_gib: float | None = None

    def __str__(self) -> str:
        chosen = " by cache" if self.dp_routing == CACHE_ROUTING else ""
        ranks = f"{self.num_ranks} ranks{chosen}" if self.num_ranks > 1 else "1 rank"
        return ranks if self.tier_gib is None else f"{ranks}, tier {self.tier_gib:g} GiB"


def setups_of(
    ranks: Sequence[int], routings: Sequence[str], tiers_gib: Sequence[float]
) -> list[Setup]:
    """Return every combination once; one rank has nobody to choose, whatever is asked for others.

    Args:
        ranks: Numbers of ranks.
        routings: ``vllm``, ``cache`` or both.
        tiers_gib: Memory of tiers, 0 for none.
    """

    def all_of() -> Iterator[Setup]:
        is_about_several = any(number > 1 for number in ranks)
        for number, routing, gib in product(ranks, routings, tiers_gib):
            chosen = VLLM_ROUTING if number == 1 and is_about_several else routing
            yield Setup(number, chosen, gib or None)

    return list(dict.fromkeys(all_of()))


def jobs_of(job: Job, setups: Sequence[Setup]) -> list[Job]:
    """Return a variant's run for each setup, named after it where there are several.

    Raises:
        BadInputError: A setup cannot be.
    """
    jobs = []
    for setup in setups:
        name = f"{job.variant}, {setup}" if len(setups) > 1 else job.variant
        of_setup = replace(job, variant=name, **vars(setup))
        of_setup.check()
        environment = job.environment | of_setup.environment_of_ranks
        jobs.append(replace(of_setup, environment=environment))
    return jobs
