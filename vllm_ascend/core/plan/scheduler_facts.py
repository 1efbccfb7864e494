# SPDX-License-Identifier: Apache-2.0
"""Carries facts of a scheduler to its coordinator, past three constructors of vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from vllm.config import KVTransferConfig, VllmConfig

from vllm_ascend.core.connectors.connector_rules import (
    KNOWS_GRANULES,
    TAKES_TAILS_ALONE,
    declared,
)
from vllm_ascend.core.plan.vllm_terms import VllmTerms, terms_in_force
from vllm_ascend.core.policy.switches import PrefixCacheConfig


@dataclass(frozen=True)
class SchedulerFacts:
    """The facts of a scheduler that its coordinator needs.

    Attributes:
        block_size: The alignment that the scheduler works with, in tokens.
        num_draft_tokens: Drafts per step, any of which may be rejected.
        num_unconfirmed_tokens: Tokens that the scheduler may count as computed although they are
            drafts of a step still in flight (async scheduling with speculation).
        num_in_flight_tokens: Tokens of steps in flight for which requests go on holding windows.
        connector: What the KV connector that may write and read blocks declares, in the words of
            :mod:`~vllm_ascend.core.connectors.connector_rules`; ``None``: there is none.
        tells_front_end: The front end chooses between data-parallel ranks by what they have cached.
        terms: What differs between releases of vLLM.
    """

    block_size: int = 1
    num_draft_tokens: int = 0
    num_unconfirmed_tokens: int = 0
    num_in_flight_tokens: int = 0
    connector: frozenset[str] | None = None
    tells_front_end: bool = False
    terms: VllmTerms = field(default_factory=terms_in_force)

    @property
    def has_connector(self) -> bool:
        """Whether blocks may be written and read by a KV connector."""
        return self.connector is not None

    def connector_takes(self, attribute: str) -> bool:
        """Whether there is a connector that declares an attribute."""
        return attribute in (self.connector or ())

    @property
    def hits_may_end_inside_blocks(self) -> bool:
        """Whether nothing outside the scheduler stands against it."""
        return self.connector is None or KNOWS_GRANULES in self.connector

    @property
    def state_may_be_sparse(self) -> bool:
        """Whether nothing outside the scheduler reads compressor state that no request reads."""
        return self.connector is None or TAKES_TAILS_ALONE in self.connector


_SCHEDULER_FACTS: ContextVar[SchedulerFacts | None] = ContextVar("scheduler_facts", default=None)


def scheduler_facts() -> SchedulerFacts:
    """Return the facts of the scheduler that is being built."""
    return _SCHEDULER_FACTS.get() or SchedulerFacts()


@contextmanager
def building_scheduler(**facts: Any) -> Iterator[None]:
    """Set facts for the scheduler that is built inside; other facts keep their values."""
    token = _SCHEDULER_FACTS.set(replace(scheduler_facts(), **facts))
    try:
        yield
    finally:
        _SCHEDULER_FACTS.reset(token)


def facts_of(
    vllm_config: VllmConfig, config: PrefixCacheConfig, terms: VllmTerms
) -> dict[str, Any]:
    """Return what the configuration tells of a scheduler: fields of :class:`SchedulerFacts`."""
    speculative_config = vllm_config.speculative_config
    num_drafts = 0 if speculative_config is None else speculative_config.num_speculative_tokens
    is_async = vllm_config.scheduler_config.async_scheduling
    return {
        "num_draft_tokens": num_drafts,
        "num_unconfirmed_tokens": num_drafts if is_async else 0,
        "num_in_flight_tokens": terms.max_in_flight_tokens(vllm_config),
        "terms": terms,
        "connector": _declared(vllm_config.kv_transfer_config, config),
    }


def _declared(
    connector: KVTransferConfig | None, config: PrefixCacheConfig
) -> frozenset[str] | None:
    """Return what the connector declares; with nothing set, vLLM says what is wrong with it."""
    if connector is None:
        return None
    try:
        return declared(connector)
    except (AttributeError, ImportError, TypeError, ValueError):
        if config.changes_caching:
            raise
        return frozenset()
