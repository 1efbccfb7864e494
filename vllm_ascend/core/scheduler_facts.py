# SPDX-License-Identifier: Apache-2.0
"""What a coordinator must know of its scheduler; vLLM's three constructors between do not tell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from vllm.config import VllmConfig

from vllm_ascend.core.connectors.connector_rules import knows_granules
from vllm_ascend.prefix_cache_config import PrefixCacheConfig
from vllm_ascend.releases import running_release


@dataclass(frozen=True)
class SchedulerFacts:
    """What a coordinator must know of its scheduler.

    Attributes:
        block_size: The alignment that the scheduler works with, in tokens.
        num_draft_tokens: Drafts per step, any of which may be rejected.
        num_unconfirmed_tokens: Tokens that the scheduler may count as computed although they are
            drafts of a step still in flight (async scheduling with speculation).
        num_in_flight_tokens: Tokens of steps in flight for which requests go on holding windows.
        has_connector: Blocks may be written and read by a KV connector.
        connector_knows_granules: It copes with requests that start inside a block.
    """

    block_size: int = 1
    num_draft_tokens: int = 0
    num_unconfirmed_tokens: int = 0
    num_in_flight_tokens: int = 0
    has_connector: bool = False
    connector_knows_granules: bool = False

    @property
    def hits_may_end_inside_blocks(self) -> bool:
        """Whether nothing outside the scheduler stands against it."""
        return self.connector_knows_granules or not self.has_connector


_SCHEDULER_FACTS: ContextVar[SchedulerFacts] = ContextVar(
    "scheduler_facts",
    default=SchedulerFacts(),  # noqa: B039 - it is frozen
)


def scheduler_facts() -> SchedulerFacts:
    """Return what is known of the scheduler that is being built."""
    return _SCHEDULER_FACTS.get()


@contextmanager
def building_scheduler(**facts: Any) -> Iterator[None]:
    """Say what is known of the scheduler built inside; other facts keep their values."""
    token = _SCHEDULER_FACTS.set(replace(_SCHEDULER_FACTS.get(), **facts))
    try:
        yield
    finally:
        _SCHEDULER_FACTS.reset(token)


def facts_of(vllm_config: VllmConfig, config: PrefixCacheConfig) -> dict[str, Any]:
    """Return what the configuration tells of a scheduler: fields of :class:`SchedulerFacts`."""
    speculative_config = vllm_config.speculative_config
    num_drafts = 0 if speculative_config is None else speculative_config.num_speculative_tokens
    is_async = vllm_config.scheduler_config.async_scheduling
    return {
        "num_draft_tokens": num_drafts,
        "num_unconfirmed_tokens": num_drafts if is_async else 0,
        "num_in_flight_tokens": running_release().max_in_flight_tokens(vllm_config),
        "has_connector": vllm_config.kv_transfer_config is not None,
        # Asked only where it matters: the answer may have to import the connector.
        "connector_knows_granules": (
            config.changes_caching and knows_granules(vllm_config.kv_transfer_config)
        ),
    }
