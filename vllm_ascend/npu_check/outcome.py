# SPDX-License-Identifier: Apache-2.0
"""What became of a check, and of all of them."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class Verdict(str, Enum):
    """Of one check; of all of them, ``SKIPPED`` means that something was not checked."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Outcome:
    """What became of one check.

    Attributes:
        name: Of the check.
        shows: What would be wrong if it failed.
        verdict: How it ended.
        detail: What failed, or why it was skipped; empty if there is nothing to say.
        numbers: What was measured, whatever the verdict.
        seconds: What it took.
    """

    name: str
    shows: str
    verdict: Verdict
    detail: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class CheckFailedError(Exception):
    """What was checked does not hold; says how it is."""


@dataclass(frozen=True)
class Check:
    """A check that can be run.

    Attributes:
        name: Short.
        shows: What would be wrong if it failed.
        run: Returns what was measured; raises ``CheckFailedError``, or what a device raises.
    """

    name: str
    shows: str
    run: Callable[[], dict[str, float]]

    def outcome(self) -> Outcome:
        """Run the check."""
        start = time.perf_counter()
        verdict, detail, numbers = Verdict.PASSED, "", {}
        try:
            numbers = self.run()
        except CheckFailedError as error:
            verdict, detail = Verdict.FAILED, str(error)
        except Exception as error:  # of a device, of any kind; the other checks are to be run
            verdict, detail = Verdict.FAILED, _in_a_line(error)
        seconds = round(time.perf_counter() - start, 1)
        return Outcome(self.name, self.shows, verdict, detail, numbers, seconds)


def _in_a_line(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    message = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {message} ({Path(place.filename).name}:{place.lineno})"


def summed_up(outcomes: Iterable[Outcome]) -> Verdict:
    """Return ``FAILED`` if one failed, else ``SKIPPED`` if one was, else ``PASSED``."""
    verdicts = {outcome.verdict for outcome in outcomes}
    order = (Verdict.FAILED, Verdict.SKIPPED)
    return next((verdict for verdict in order if verdict in verdicts), Verdict.PASSED)
