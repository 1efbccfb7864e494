# SPDX-License-Identifier: Apache-2.0
"""Carries facts of a scheduler to its coordinator, past three constructors of vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from vllm.config import VllmConfig

from vllm_ascend.core.connectors.connector_rules import (
    KNOWS_GRANULES,
    TAKES_SPARE_TAILS,
    TAKES_TAILS_ALONE,
    TAKES_WHOLE_BLOCK_TAILS,
    declares,
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
        has_connector: Blocks may be written and read by a KV connector.
        connector_knows_granules: It copes with requests that start inside a block.
        connector_takes_tails_alone: Of windows it takes what requests need to go on at boundaries.
        connector_takes_whole_block_tails: Also at boundaries where whole blocks of all groups end.
        tells_front_end: The front end chooses between data-parallel ranks by what they have cached.
        connector_takes_spare_tails: Also at every fourth boundary.
        terms: What differs between releases of vLLM.
    """

    block_size: int = 1
    num_draft_tokens: int = 0
    num_unconfirmed_tokens: int = 0
    num_in_flight_tokens: int = 0
    has_connector: bool = False
    connector_knows_granules: bool = False
    connector_takes_tails_alone: bool = False
    connector_takes_whole_block_tails: bool = False
    tells_front_end: bool = False
    connector_takes_spare_tails: bool = False
    terms: VllmTerms = field(default_factory=terms_in_force)

    @property
    def hits_may_end_inside_blocks(self) -> bool:
        """Whether nothing outside the scheduler stands against it."""
        return self.connector_knows_granules or not self.has_connector

    @property
    def state_may_be_sparse(self) -> bool:
        """Whether nothing outside the scheduler reads compressor state that no request reads."""
        return self.connector_takes_tails_alone or not self.has_connector


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
    connector = vllm_config.kv_transfer_config
    # Asked only where it matters: the answer may have to import the connector.
    asked = connector if config.changes_caching else None
    return {
        "num_draft_tokens": num_drafts,
        "num_unconfirmed_tokens": num_drafts if is_async else 0,
        "num_in_flight_tokens": terms.max_in_flight_tokens(vllm_config),
        "terms": terms,
        "has_connector": connector is not None,
        "connector_knows_granules": declares(asked, KNOWS_GRANULES),
        "connector_takes_tails_alone": declares(asked, TAKES_TAILS_ALONE),
        "connector_takes_whole_block_tails": declares(asked, TAKES_WHOLE_BLOCK_TAILS),
        "connector_takes_spare_tails": declares(asked, TAKES_SPARE_TAILS),
    }
