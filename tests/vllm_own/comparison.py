# SPDX-License-Identifier: Apache-2.0
"""What became of vLLM's own tests with the patches, beside what becomes of them without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Test -> "passed", "failed" or "skipped".
Outcomes = Mapping[str, str]


@dataclass(frozen=True)
class Difference:
    """A test that comes out otherwise with a switch, and why.

    Attributes:
        test: Its name; one that stands for all its cases has no brackets.
        becomes: What it is with the switch.
        why: The reason, in a sentence.
    """

    test: str
    becomes: str
    why: str

    def explains(self, test: str, outcome: str) -> bool:
        """Whether it says of a test that it comes out so."""
        return self.becomes == outcome and self.test in (test, test.partition("[")[0])


def unexplained(without: Outcomes, with_: Outcomes, known: Sequence[Difference]) -> list[str]:
    """Return what differs and is not known, and what is known and does not differ, in words."""
    changed = {
        test: (without.get(test, "missing"), with_.get(test, "missing"))
        for test in sorted(without.keys() | with_.keys())
        if without.get(test) != with_.get(test)
    }
    other = [
        f"{test}: {before} without the patches, {after} with them"
        for test, (before, after) in changed.items()
        if not any(row.explains(test, after) for row in known)
    ]
    stale = [
        f"{row.test}: the table says that it is {row.becomes}, and nothing differs"
        for row in known
        if not any(row.explains(test, after) for test, (_, after) in changed.items())
    ]
    return other + stale
