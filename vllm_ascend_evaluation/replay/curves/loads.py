# SPDX-License-Identifier: Apache-2.0
"""What was found at each load, and the goodput: the highest at which a promise is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_ascend_evaluation.replay.results import ReplayReport, RunResult
from vllm_ascend_evaluation.replay.slo import Slo


@dataclass(frozen=True)
class Load:
    """A run at one speed.

    Attributes:
        speed: Requests came so many times as fast as their timestamps say.
        run: What was found.
    """

    speed: float
    run: RunResult

    @property
    def rate(self) -> float:
        """Requests that came in a second."""
        assert self.run.arrivals_per_second is not None, "loads are counted by timestamps"
        return self.run.arrivals_per_second

    def keeps(self, slo: Slo) -> bool:
        """Whether enough requests were served as promised."""
        assert self.run.kept_percent is not None, "the run was told what is promised"
        return self.run.kept_percent >= slo.percent


@dataclass(frozen=True)
class GoodputReport:
    """What came of all runs.

    Attributes:
        replay: Every run, of one workload.
        slo: What is promised.
        loads: Variant -> its runs, by rising speed; one that did not end is left out.
    """

    replay: ReplayReport
    slo: Slo
    loads: Mapping[str, tuple[Load, ...]]

    def best(self, variant: str) -> Load | None:
        """Return the highest load at which a variant keeps the promise; ``None``: at none."""
        return next((load for load in self.loads[variant][::-1] if load.keeps(self.slo)), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: all runs, and a line per load."""
        data = self.replay.to_dict_of_many()
        data["slo"] = str(self.slo)
        data["goodput"] = {
            variant: None if (best := self.best(variant)) is None else best.rate
            for variant in self.loads
        }
        data["loads"] = [
            {
                "variant": variant,
                "speed": load.speed,
                "requests_per_second": load.rate,
                "kept_percent": load.run.kept_percent,
                "ttft_ms": vars(load.run.modelled_ttft_ms),
                "tpot_ms": vars(load.run.modelled_tpot_ms),
                "hit_rate_percent": round(load.run.hit_rate, 4),
            }
            for variant, loads in self.loads.items()
            for load in loads
        ]
        return data
