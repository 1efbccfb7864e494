# SPDX-License-Identifier: Apache-2.0
"""What a coordinator must know of its scheduler; vLLM 0.20.2's constructors do not pass it on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class SchedulerFacts:
    """What a coordinator must know of its scheduler.

    Attributes:
        block_size: The alignment that the scheduler works with, in tokens.
        num_draft_tokens: Drafts per step, any of which may be rejected.
        num_unconfirmed_tokens: Tokens that the scheduler may count as computed although they are
            drafts of a step still in flight (async scheduling with speculation).
        has_connector: Blocks may be written by a KV connector, outside the compute stream.
    """

    block_size: int = 1
    num_draft_tokens: int = 0
    num_unconfirmed_tokens: int = 0
    has_connector: bool = False


_SCHEDULER_FACTS: ContextVar[SchedulerFacts] = ContextVar(
    "scheduler_facts",
    default=SchedulerFacts(),  # noqa: B039 - it is frozen
)


def scheduler_facts() -> SchedulerFacts:
    """Return what is known of the scheduler that is being built."""
    return _SCHEDULER_FACTS.get()


@contextmanager
def coordinators_told(**facts: Any) -> Iterator[None]:
    """Tell the coordinators that are built inside about their scheduler.

    Args:
        facts: Fields of :class:`SchedulerFacts`; the others keep their values.
    """
    token = _SCHEDULER_FACTS.set(replace(_SCHEDULER_FACTS.get(), **facts))
    try:
        yield
    finally:
        _SCHEDULER_FACTS.reset(token)
