# SPDX-License-Identifier: Apache-2.0
"""Which tests ``make test`` runs, and which it leaves to ``make test-all``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from zlib import crc32

import tomllib

TIERS = Path(__file__).with_name("tiers.toml")


def is_one_of(test: str, one_in: int) -> bool:
    """Return whether a case is among those that run if one in so many does, always the same."""
    return crc32(test.encode()) % one_in == 0


class QuickTier:
    """The tests that tell most per second.

    Attributes:
        left_out: Names of files and tests that are left to the other tier.
        one_case_in: Name -> of its cases, one in how many is run.
    """

    def __init__(self, left_out: Collection[str], one_case_in: Mapping[str, int]) -> None:
        self.left_out = frozenset(left_out)
        self.one_case_in = dict(one_case_in)

    @classmethod
    def read(cls) -> QuickTier:
        """Return what the table beside this file says."""
        table = tomllib.loads(TIERS.read_text(encoding="utf-8"))
        return cls(table["left_out"], table["one_case_in"])

    def runs(self, test: str) -> bool:
        """Return whether the tier has a test.

        Args:
            test: As pytest names it: ``FILE::TEST``, with its case in brackets if it has several.
        """
        names = _names(test)
        if not self.left_out.isdisjoint(names):
            return False
        one_in = next((self.one_case_in[n] for n in names if n in self.one_case_in), 1)
        return "[" not in test or is_one_of(test, one_in)


def _names(test: str) -> tuple[str, str, str]:
    """Return all names of a test, the narrowest first."""
    return test, test.partition("[")[0], test.partition("::")[0]
