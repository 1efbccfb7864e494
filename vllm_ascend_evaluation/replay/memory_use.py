# SPDX-License-Identifier: Apache-2.0
"""What a pool's memory was for in a run, and what was lost for want of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class MemoryUse:
    """Blocks are means over the steps that were looked at; each is counted once.

    Attributes:
        live: Held by requests, cached or not.
        rows: Idle, of prefixes that are kept.
        kept_tails: Idle, of tails that are kept.
        marginal: Idle, of marginal tails and of rows that these alone need.
        superseded: Idle, of tails of which a deeper one has the place.
        spares: Idle, of spare tails.
        fragments: Idle, not full, with rows that a hit can copy.
        empty: Idle, with nothing that can be hit.
        num_waited: Requests that did not start in the first step behind their arrival.
        no_tail_tokens: Prompt tokens of requests that had started before, whose rows were there,
            but no tail to resume at. ``None``: a cache without ranks cannot tell.
        no_rows_tokens: All others of such that were no hits: their rows were not there any more, or
            not yet.
        rest_rates: Policy -> what it would hit in the memory that live requests leave, in percent
            of prompt tokens.
    """

    live: float = 0.0
    rows: float = 0.0
    kept_tails: float = 0.0
    marginal: float = 0.0
    superseded: float = 0.0
    spares: float = 0.0
    fragments: float = 0.0
    empty: float = 0.0
    num_waited: int = 0
    no_tail_tokens: int | None = 0
    no_rows_tokens: int = 0
    rest_rates: dict[str, float] | None = None

    def share(self, name: str) -> float:
        """Return an attribute's blocks in percent of all."""
        total = sum(getattr(self, field.name) for field in fields(self)[:NUM_PURPOSES])
        return 100.0 * getattr(self, name) / total if total else 0.0

    @classmethod
    def of_ranks(cls, uses: Sequence[MemoryUse]) -> MemoryUse:
        """Return the mean blocks of several ranks, and the sums of all else."""
        names = [field.name for field in fields(cls) if field.name != "rest_rates"]
        known = [name for name in names if getattr(uses[0], name) is not None]
        counts: dict[str, Any] = dict.fromkeys(names)
        counts |= {name: sum(getattr(use, name) for use in uses) for name in known}
        counts |= {name: counts[name] / len(uses) for name in names[:NUM_PURPOSES]}
        return cls(**counts)


NUM_PURPOSES = 8
"""The attributes that count blocks come first."""
