# SPDX-License-Identifier: Apache-2.0
"""What a tier below the KV cache did in a run, and the disk below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace


@dataclass(frozen=True)
class TierUse:
    """What a tier below the KV cache did in a run; that of several ranks, summed over them.

    Attributes:
        gib: The memory of one rank's tier.
        hit_tokens: Tokens of hits that it brought, those from its disk among them.
        num_loads: Loads.
        loaded_bytes: Bytes of all loads.
        load_seconds: What they took, modelled.
        stored_bytes: Bytes stored.
        num_tails: Tails among what was stored.
        num_evicted: Objects given up for others.
    """

    gib: float
    hit_tokens: int
    num_loads: int
    loaded_bytes: int
    load_seconds: float
    stored_bytes: int
    num_tails: int
    num_evicted: int

    @classmethod
    def of_many(cls, uses: Sequence[TierUse]) -> TierUse:
        """Return what the tiers of several ranks, or before and after a restart, did together.

        They have the same memory each.
        """
        whole = cls(*map(sum, zip(*map(astuple, uses), strict=True)))
        return replace(whole, gib=uses[0].gib)


@dataclass(frozen=True)
class DiskUse:
    """What a disk below a tier's memory did in a run.

    Attributes:
        gib: What its files may take.
        hit_tokens: Tokens of hits whose rows came up from it.
        written_bytes: Bytes written.
        read_bytes: Bytes that came up.
        num_evicted: Objects on it given up for others.
        num_not_written: Objects that it did not take, being too slow.
        num_failed_loads: Loads from the tier that failed, most of them for waiting too long.
    """

    gib: float
    hit_tokens: int
    written_bytes: int
    read_bytes: int
    num_evicted: int
    num_not_written: int
    num_failed_loads: int
