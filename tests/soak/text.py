# SPDX-License-Identifier: Apache-2.0
"""A case that fails, for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from tests.soak.case import Case, Recording
from tests.soak.operations import describe
from vllm_ascend.dry_run.scheduler import SchedulerOptions


def describe_recording(recording: Recording, path: Path) -> str:
    """The configuration, the operations, what went wrong, and how to see it again."""
    operations = describe(recording.operations)
    lines = [
        f"case {recording.name}",
        *describe_case(recording.case),
        f"{len(recording.operations)} operations, then everything ends:",
        *(f"  {number}. {text}" for number, text in enumerate(operations, 1)),
        recording.failure.rstrip() or "It does not fail.",
        f"again: python -m tests.soak --case {path}",
    ]
    return "\n".join(lines)


def describe_case(case: Case) -> Iterator[str]:
    """A line for each part of a configuration; what is as usual is left out."""
    yield f"  layout: {case.layout}"
    variables = " ".join(f"{name}={value}" for name, value in sorted(case.environment.items()))
    yield f"  environment: {variables or 'everything unset'}"
    options = ", ".join(
        f"{field.name} {value}"
        for field in fields(SchedulerOptions)
        if (value := getattr(case.options, field.name)) != field.default
    )
    yield f"  scheduler: {options}"
    if case.connection is not None:
        yield f"  connector: {case.connection}"
    if case.tier is not None:
        yield f"  tier: {case.tier}"
    yield f"  seed of the drafter: {case.seed}, drafts that are right: {case.acceptance:.0%}"
