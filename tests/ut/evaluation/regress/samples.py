# SPDX-License-Identifier: Apache-2.0
"""Results as values, with what a test wants to be different."""

from dataclasses import replace

from vllm_ascend.server_access.server import Target
from vllm_ascend_evaluation.regress.hit_counts import OUR_HITS
from vllm_ascend_evaluation.regress.results import (
    Accuracy,
    AccuracySettings,
    CacheUse,
    Load,
    Measured,
    Performance,
    PerformanceSettings,
    Times,
)

TARGET = Target(
    "http://127.0.0.1:8000", "tiny", "0.20.2", "/models/tiny", "2026-11-22T03:24:35.130+00:00"
)
LOAD = PerformanceSettings("vllm", 1000, 8, 4, 12, 90)
ASKING = AccuracySettings("vllm", 198, "0123456789abcdef", 100, 0.0, 4)
TIMES = Times(12, 12_000, 96, 2.0, 200.0, 400.0, 30.0, 35.0, 48.0)
WHEN = "2026-01-02T03:04:05+00:00"


def performance(*, hits: int = 9000, **times: float) -> Performance:
    """Return a performance step of one load of 12,000 prompt tokens."""
    return performance_of({"hits": hits, **times})


def performance_of(*loads: dict[str, float]) -> Performance:
    """Return a performance step of several loads, each with what is different in it."""
    return Performance(LOAD, tuple(load_with(**load) for load in loads), WHEN)


def load_with(*, hits: int = 9000, **times: float) -> Load:
    """Return a load of 12,000 prompt tokens."""
    return Load(replace(TIMES, **times), CacheUse(12_000, hits, {"c": 2.0}, OUR_HITS))


def accuracy(correct: int = 170, questions: int = 198) -> Accuracy:
    """Return an accuracy step."""
    return Accuracy(replace(ASKING, questions=questions), correct, 0, 0, WHEN)


def measured(**steps: object) -> Measured:
    """Return finished steps."""
    return Measured(TARGET, **steps)
