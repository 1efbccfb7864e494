# SPDX-License-Identifier: Apache-2.0
"""One episode: a case, its operations, and what came of them."""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tests.soak.case import Case, Recording
from tests.soak.draw import draw
from tests.soak.driver import Driver
from tests.soak.limits import at_most
from tests.soak.operations import Operation
from tests.soak.traffic import RandomTraffic
from vllm_ascend_evaluation.oracle import ContentViolation

# What a combination may be refused with: clear errors of vLLM or of the project.
_REFUSALS: tuple[str, ...] = ()
_LINES_OF_TRACE = 12
# Of a run; replays check after every operation.
_CHECK_EVERY = 8
MAX_EPISODE_S = 240.0
"""An episode takes a few seconds of computing; one that takes so many will never end."""


@dataclass(frozen=True)
class Failure:
    """Something went wrong.

    Attributes:
        signature: of the problem, whatever the numbers: equal for the same bug in a smaller case.
        text: for people.
    """

    signature: str
    text: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """What an exception tells."""
        message = error.problem if isinstance(error, ContentViolation) else str(error)
        first = (message.splitlines() or [""])[0]
        # Names and numbers differ between a case and a smaller one.
        pattern = re.sub(r"\br?\d+\b|0x[0-9a-f]+|[{\[(].*", "#", first)
        trace = traceback.format_exception(error)[-_LINES_OF_TRACE:]
        return cls(f"{type(error).__name__}: {pattern}", "".join(trace))


@dataclass(frozen=True)
class Result:
    """What an episode came to.

    Attributes:
        refusal: why the case could not be built.
        failure: what went wrong; with `recording` unless the case could not be built.
    """

    episode: int
    counts: Counter[str] = field(default_factory=Counter)
    feature_steps: Counter[str] = field(default_factory=Counter)
    refusal: str | None = None
    failure: Failure | None = None
    recording: Recording | None = None


def run(seed: int, episode: int) -> Result:
    """Draw a case and feed it with random traffic."""
    try:
        case = draw(seed, episode)
        driver = Driver(case, check_every=_CHECK_EVERY)
    except Exception as error:
        if isinstance(error, ValueError) and any(re.search(r, str(error)) for r in _REFUSALS):
            return Result(episode, refusal=str(error))
        return Result(episode, failure=Failure.of(error))
    traffic = RandomTraffic(driver, case.habits, case.seed)
    failure = None
    try:
        with at_most(MAX_EPISODE_S):
            traffic.run()
            driver.finish()
    except Exception as error:
        failure = Failure.of(error)
    driver.tally()
    result = Result(episode, driver.counts, driver.feature_steps, failure=failure)
    if failure is None:
        return result
    name = f"{seed}-{episode}"
    recording = Recording(name, case, tuple(traffic.operations), failure.text)
    return replace(result, recording=recording)


def replay(case: Case, operations: Sequence[Operation]) -> Failure | None:
    """Apply recorded operations to a new engine and let everything end.

    Raises:
        ValueError: the case cannot be built.
    """
    driver = Driver(case, check_every=1)
    try:
        with at_most(MAX_EPISODE_S):
            for operation in operations:
                driver.apply(operation)
            driver.finish()
    except Exception as error:
        return Failure.of(error)
    return None
