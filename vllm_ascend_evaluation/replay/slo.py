# SPDX-License-Identifier: Apache-2.0
"""A service level objective: how soon tokens are promised, and to how many requests."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from vllm_ascend.command_line.bad_input import BadInputError

_LIMIT = re.compile(r"(ttft|tpot)=(\d+(?:\.\d+)?)(ms|s)")


@dataclass(frozen=True)
class Slo:
    """What is promised.

    Attributes:
        ttft_ms: Most time to first token in milliseconds.
        tpot_ms: Most time per token behind the first.
        percent: Of all requests, so many keep both.
    """

    ttft_ms: float = math.inf
    tpot_ms: float = math.inf
    percent: float = 99.0

    @classmethod
    def of(cls, text: str, percent: float) -> Slo:
        """Read what ``--slo`` says, as ``ttft=5s,tpot=80ms``; either may be missing.

        Raises:
            BadInputError: It says something else.
        """
        limits: dict[str, float] = {}
        for part in text.split(","):
            found = _LIMIT.fullmatch(part.strip())
            if found is None or found[1] in limits or not float(found[2]):
                raise BadInputError(
                    f"--slo {text}: expected ttft=TIME, tpot=TIME or both with a comma between, "
                    "TIME above 0 in s or ms, as in ttft=5s,tpot=80ms"
                )
            limits[found[1]] = float(found[2]) * (1000.0 if found[3] == "s" else 1.0)
        return cls(
            limits.get("ttft", math.inf), limits.get("tpot", math.inf), cls._checked(percent)
        )

    @staticmethod
    def _checked(percent: float) -> float:
        if not 0 < percent <= 100:
            raise BadInputError(
                f"--slo-percent {percent:g}: expected more than 0 and at most 100, of all requests"
            )
        return percent

    def is_kept(self, ttft_ms: float, tpot_ms: float) -> bool:
        """Whether a request with these times was served as promised."""
        return ttft_ms <= self.ttft_ms and tpot_ms <= self.tpot_ms

    def __str__(self) -> str:
        limits = {"TTFT": self.ttft_ms, "TPOT": self.tpot_ms}
        said = (
            f"{name} <= {_time(limit)}" for name, limit in limits.items() if math.isfinite(limit)
        )
        return f"{' and '.join(said)} for {self.percent:g} % of requests"


def _time(ms: float) -> str:
    return f"{ms / 1000:g} s" if ms >= 1000 else f"{ms:g} ms"
