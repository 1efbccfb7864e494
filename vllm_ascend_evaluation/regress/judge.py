# SPDX-License-Identifier: Apache-2.0
"""Compares what was measured with a baseline: pure functions, one verdict per metric."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.regress.results import LOOK_UPS, Load, Measured

PASS = "pass"
REGRESSION = "REGRESSION"
NOT_COMPARED = "not compared"
# It should have been measured and could not be, now or for the baseline.
NOT_KNOWN = "not known"

POINTS = "points"
PERCENT = "%"
ERRORS = "standard errors"

# Sums of floats: a change of exactly what is allowed must pass.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Metric:
    """A judged metric.

    Attributes:
        name: As ``--tolerance`` names it.
        title: As reports name it.
        unit: Of its value.
        higher_is_better: Which direction is worse.
        tolerance: Default: how much worse it may be.
        tolerance_unit: ``points`` (of percent), ``%`` of the baseline, or ``standard errors`` of
            the difference.
        values: Its values in what was measured, one per load; none if it was not measured.
        can_compare: Whether two runs measured the same thing.
        is_due: Whether a run without a value should have one.
    """

    name: str
    title: str
    unit: str
    higher_is_better: bool
    tolerance: float
    tolerance_unit: str
    values: Callable[[Measured], tuple[float, ...]]
    can_compare: Callable[[Measured, Measured], bool] = lambda now, baseline: True
    is_due: Callable[[Measured], bool] = lambda measured: False


def _of_loads(read: Callable[[Load], float | None]) -> Callable[[Measured], tuple[float, ...]]:
    def values(measured: Measured) -> tuple[float, ...]:
        step = measured.performance
        read_ = [] if step is None else [read(load) for load in step.loads]
        return tuple(value for value in read_ if value is not None)

    return values


def _count_requests(*runs: Measured) -> bool:
    """Whether the hits of all runs were counted per request, not per look-up."""
    steps = [run.performance for run in runs if run.performance is not None]
    return all(load.cache.source != LOOK_UPS for step in steps for load in step.loads)


METRICS = (
    Metric(
        *("hit-rate", "hit rate", "% of tokens", True, 0.5, POINTS),
        lambda measured: () if measured.performance is None else measured.performance.hit_rates,
        _count_requests,
        lambda measured: measured.performance is not None,
    ),
    Metric(
        *("acceptance", "drafts accepted", "% of drafts", True, 1.0, POINTS),
        _of_loads(lambda load: load.cache.acceptance_percent),
    ),
    Metric(
        *("ttft-avg", "TTFT avg", "ms", False, 5.0, PERCENT),
        _of_loads(lambda load: load.times.ttft_avg_ms),
    ),
    Metric(
        *("ttft-p90", "TTFT P90", "ms", False, 10.0, PERCENT),
        _of_loads(lambda load: load.times.ttft_p90_ms),
    ),
    Metric(
        *("tpot-avg", "TPOT avg", "ms", False, 5.0, PERCENT),
        _of_loads(lambda load: load.times.tpot_avg_ms),
    ),
    Metric(
        *("tpot-p90", "TPOT P90", "ms", False, 10.0, PERCENT),
        _of_loads(lambda load: load.times.tpot_p90_ms),
    ),
    Metric(
        *("throughput", "throughput", "output tokens/s", True, 5.0, PERCENT),
        _of_loads(lambda load: load.times.output_tokens_per_s),
    ),
    Metric(
        *("accuracy", "accuracy", "% of questions", True, 2.0, ERRORS),
        lambda measured: () if measured.accuracy is None else (measured.accuracy.percent,),
    ),
)


@dataclass(frozen=True)
class Tolerances:
    """How much worse each metric may be, by its name; what is missing has its default."""

    given: Mapping[str, float] = field(default_factory=dict)

    def of(self, metric: Metric) -> float:
        """Return the tolerance of a metric in its unit."""
        return self.given.get(metric.name, metric.tolerance)


def parse_tolerances(texts: list[str]) -> Tolerances:
    """Read ``NAME=VALUE``, several times.

    Raises:
        BadInputError: There is no such metric, or the value is no number from 0 up.
    """
    names = [metric.name for metric in METRICS]
    given: dict[str, float] = {}
    for text in texts:
        name, _, raw = text.partition("=")
        try:
            value = float(raw)
        except ValueError:
            value = math.nan
        if name not in names or not 0 <= value < math.inf:
            raise BadInputError(
                f"--tolerance {text}: expected NAME=VALUE with a number from 0 up and a name of "
                f"{', '.join(names)}"
            )
        given[name] = value
    return Tolerances(given)


@dataclass(frozen=True)
class Figure:
    """What was measured of one metric.

    Attributes:
        values: One per load; at least one.
    """

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """What is judged."""
        return statistics.median(self.values)

    @property
    def range(self) -> float:
        """From the smallest to the largest."""
        return max(self.values) - min(self.values)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        low, high = min(self.values), max(self.values)
        return {"median": self.median, "min": low, "max": high, "loads": len(self.values)}


@dataclass(frozen=True)
class Verdict:
    """What is to be said of one metric.

    Attributes:
        metric: The metric.
        now: What was measured; ``None`` if it is not known.
        baseline: What was measured then; ``None`` if nothing is compared, as are the next two.
        change: From median to median, in :attr:`change_unit`; ``None`` in percent of nothing, too.
        allowed: The largest change for the worse that passes, with its sign.
        outcome: ``pass``, ``REGRESSION``, ``not compared`` or ``not known``.
    """

    metric: Metric
    now: Figure | None
    baseline: Figure | None = None
    change: float | None = None
    allowed: float | None = None
    outcome: str = NOT_COMPARED

    @property
    def change_unit(self) -> str:
        """``%`` of the baseline, or ``points``."""
        return PERCENT if self.metric.tolerance_unit == PERCENT else POINTS

    @property
    def noise(self) -> float | None:
        """Range of the loads of the noisier side, in :attr:`change_unit`; ``None`` of one load."""
        figures = [f for f in (self.now, self.baseline) if f is not None and len(f.values) > 1]
        if self.change_unit == POINTS:
            return max((figure.range for figure in figures), default=None)
        return max((100 * f.range / f.median for f in figures if f.median), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "metric": self.metric.name,
            "unit": self.metric.unit,
            "baseline": None if self.baseline is None else self.baseline.to_dict(),
            "now": None if self.now is None else self.now.to_dict(),
            "noise": self.noise,
            "change": self.change,
            "allowed": self.allowed,
            "change_unit": self.change_unit,
            "outcome": self.outcome,
        }


def judge(now: Measured, baseline: Measured | None, tolerances: Tolerances) -> list[Verdict]:
    """Return a verdict for every metric that was measured or should have been.

    Args:
        now: What was measured.
        baseline: What to compare with; with ``None`` nothing is compared.
        tolerances: How much worse each metric may be.
    """
    verdicts = (_verdict(metric, now, baseline, tolerances) for metric in METRICS)
    return [verdict for verdict in verdicts if verdict is not None]


def _verdict(
    metric: Metric, now: Measured, baseline: Measured | None, tolerances: Tolerances
) -> Verdict | None:
    """Return the verdict on a metric; ``None`` if it was neither measured nor due."""
    new = metric.values(now)
    is_comparable = baseline is not None and metric.can_compare(now, baseline)
    old = metric.values(baseline) if baseline is not None and is_comparable else ()
    if not new:
        before = Figure(old) if old else None
        return Verdict(metric, None, before, outcome=NOT_KNOWN) if metric.is_due(now) else None
    if not old or baseline is None:
        is_missing = baseline is not None and is_comparable and metric.is_due(baseline)
        return Verdict(metric, Figure(new), outcome=NOT_KNOWN if is_missing else NOT_COMPARED)
    tolerance = tolerances.of(metric)
    if metric.tolerance_unit == ERRORS:
        tolerance *= _accuracy_error(now, baseline)
    return _compare(metric, Figure(new), Figure(old), tolerance)


def _compare(metric: Metric, new: Figure, old: Figure, tolerance: float) -> Verdict:
    """Return the verdict on two figures; ``tolerance`` is in percent or in points."""
    now, baseline = new.median, old.median
    is_relative = metric.tolerance_unit == PERCENT
    allowed = baseline * tolerance / 100.0 if is_relative else tolerance
    worse = baseline - now if metric.higher_is_better else now - baseline
    change = now - baseline
    return Verdict(
        metric,
        new,
        old,
        change=change if not is_relative else 100.0 * change / baseline if baseline else None,
        allowed=-tolerance if metric.higher_is_better else tolerance,
        outcome=REGRESSION if worse > allowed + _ROUNDING * max(now, baseline) else PASS,
    )


def _accuracy_error(now: Measured, baseline: Measured) -> float:
    """Return the standard error of the difference of two accuracies, in points."""
    steps = [step for step in (now.accuracy, baseline.accuracy) if step is not None]
    return 100.0 * math.sqrt(
        sum(binomial_variance(step.correct, step.settings.questions) for step in steps)
    )


def binomial_variance(correct: int, questions: int) -> float:
    """Return the variance of a share of right answers, as Agresti and Caffo estimate it.

    One right and one wrong answer are added (Agresti and Caffo, The American Statistician 54(4),
    2000): the plain estimate is 0 for a model that gets all of few questions right or wrong.
    """
    share = (correct + 1) / (questions + 2)
    return share * (1.0 - share) / (questions + 2)
