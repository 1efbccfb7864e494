# SPDX-License-Identifier: Apache-2.0
"""Fits a cost model to measured times, by least squares none of whose terms is negative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.cost.model import TERMS, CostModel, StepWork

# The term of each count of an observation, and its unit in ms, in the order of those counts.
_TERM_OF_COUNT = {
    "num_steps": ("step_ms", 1.0),
    "num_requests": ("request_us", 1e-3),
    "num_tokens": ("token_us", 1e-3),
    "prefill_pairs": ("prefill_pair_ns", 1e-6),
    "prefill_context": ("prefill_context_ns", 1e-6),
    "decode_rows": ("decode_row_ns", 1e-6),
    "num_arrivals": ("front_end_ms", 1.0),
}
# One point in so many is kept apart, to tell the error.
_APART = 4
# Weights come from the terms and those from the weights; after so many turns neither changes.
_REWEIGHTED = 10
# Of what was measured: a point for which the model says nothing does not decide alone.
_LEAST_SAID = 0.1


class Observation(NamedTuple):
    """A measured time.

    Attributes:
        work: What was done, in one step or several.
        duration_ms: How long it took.
        num_arrivals: Requests that came in for it, whose way to the engine is part of the time.
    """

    work: StepWork
    duration_ms: float
    num_arrivals: int = 0

    def said_ms(self, model: CostModel) -> float:
        """Return how long it takes by a model."""
        # The terms are linear: each step adds what is there without any work.
        more_steps = (self.work.num_steps - 1) * model.step_ms
        of_arrivals = self.num_arrivals * model.front_end_ms
        return model.step_duration_ms(self.work) + more_steps + of_arrivals


class FitError(NamedTuple):
    """How far a model is from points that it was not fitted to, in percent of what was measured.

    Attributes:
        num_points: So many.
        median: Of the absolute errors.
        p90: Of the absolute errors.
        worst: Of the absolute errors.
    """

    num_points: int
    median: float
    p90: float
    worst: float


class Fit(NamedTuple):
    """A cost model and its error.

    Attributes:
        model: Fitted to those points that were not kept apart.
        num_fitted: So many.
        error: On the points kept apart.
    """

    model: CostModel
    num_fitted: int
    error: FitError


def fit(observations: Sequence[Observation]) -> Fit:
    """Fit a cost model. Relative errors count, so that short steps matter as much as long ones.

    They are relative to what the model says. Relative to what was measured, short times would weigh
    more than long ones of the same step, and where times scatter the model would be below their
    mean.

    Every fourth observation is kept apart: mix those of different kinds well.

    Raises:
        BadInputError: There are too few observations, or they do not tell the terms apart.
    """
    apart = observations[_APART - 1 :: _APART]
    fitted = [each for number, each in enumerate(observations) if number % _APART != _APART - 1]
    if len(fitted) < len(TERMS) or not apart:
        raise BadInputError(
            f"{len(observations)} measurements are too few for {len(TERMS)} terms: measure longer"
        )
    model = _solve(fitted)
    return Fit(model, len(fitted), error_of(model, apart))


def error_of(model: CostModel, observations: Sequence[Observation]) -> FitError:
    """Return how far a model is from measured times."""
    measured = np.array([each.duration_ms for each in observations])
    said = np.array([each.said_ms(model) for each in observations])
    errors = 100 * np.abs(said - measured) / measured
    median, p90 = np.percentile(errors, (50, 90))
    return FitError(len(errors), float(median), float(p90), float(errors.max()))


def _solve(observations: Sequence[Observation]) -> CostModel:
    measured = np.array([each.duration_ms for each in observations])
    units = np.array([unit for _, unit in _TERM_OF_COUNT.values()])
    works = (
        np.array([(*each.work, each.num_arrivals) for each in observations], dtype=float) * units
    )
    # A server that tells of no hit, and prompts of one step each, show no context.
    no_context = not any(each.work.prefill_context for each in observations)
    if np.linalg.matrix_rank(works / _sizes(works), tol=1e-6) < works.shape[1] - no_context:
        raise BadInputError(
            "the measurements do not tell the terms of the cost model apart: vary lengths and "
            "numbers of requests more"
        )
    said = measured
    for _ in range(_REWEIGHTED):
        weighted = works / said[:, None]
        # Columns of one size: those of attention are millions of times those of steps.
        sizes = _sizes(weighted)
        terms = nnls(weighted / sizes, measured / said)[0] / sizes
        said = np.maximum(works @ terms, _LEAST_SAID * measured)
    named = zip(_TERM_OF_COUNT.values(), terms, strict=True)
    model = CostModel(**{name: float(value) for (name, _), value in named})
    return replace(model, prefill_context_ns=model.prefill_pair_ns) if no_context else model


def _sizes(columns: np.ndarray) -> np.ndarray:
    sizes = np.linalg.norm(columns, axis=0)
    return np.where(sizes, sizes, 1.0)
