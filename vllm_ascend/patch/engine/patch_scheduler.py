# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/core/sched/scheduler.py``: what it works with, and what is put over it."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from vllm.logger import init_logger
from vllm.v1.core.sched.scheduler import Scheduler

from vllm_ascend.core.admission.waiting_order import waiting_order_for
from vllm_ascend.core.connectors.connector_rules import (
    BRINGS_TAILS,
    LOADS_BEHIND_ZEROING,
    ConnectorQuery,
    bind_kv_cache_manager,
    declared,
    least_gain,
)
from vllm_ascend.core.layout.specs import group_specs
from vllm_ascend.core.plan.scheduler_facts import building_scheduler, facts_of
from vllm_ascend.core.scheduler import CachingScheduler, our_coordinator, with_caching
from vllm_ascend.patch.engine.patch_kv_cache_coordinator import serves
from vllm_ascend.patch.features import COORDINATOR, PARTIAL_HITS
from vllm_ascend.patch.table import Add, Patch, changes, overrides
from vllm_ascend.prefix_cache_config import load_config
from vllm_ascend.releases import running_release

_logger = init_logger("vllm.plugins.vllm_ascend_backport")

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_OUTPUT = "vllm.v1.core.sched.output:SchedulerOutput"


@changes(f"{_SCHEDULER}.__init__", COORDINATOR)
def wrap_init(self: Scheduler, *args, original: Callable, **kwargs) -> None:
    """The KV cache manager is not told of drafts, connectors or (0.20.2) scheduler_block_size.

    With this project's coordinator a scheduler becomes a :class:`CachingScheduler`, whoever chose
    its class. That is known only here: it depends on the model's caches and the connector.
    """
    arguments = inspect.signature(original).bind(self, *args, **kwargs).arguments
    config = load_config()
    with building_scheduler(
        block_size=arguments["block_size"],
        # vLLM asks for the finished requests exactly where its front end balances ranks.
        tells_front_end=bool(config.dp_routing and arguments.get("include_finished_set")),
        **facts_of(arguments["vllm_config"], config, running_release()),
    ):
        if serves(group_specs(arguments["kv_cache_config"])):
            # Routers and ranks know blocks by names of the tokens in them.
            running_release().hash_own_tokens_alone(arguments["vllm_config"])
        original(self, *args, **kwargs)
    coordinator = our_coordinator(self)
    bind_kv_cache_manager(self.connector, self.kv_cache_manager)
    if coordinator is None:
        if config.admission == "cached":
            why = "vLLM's own cache is in force"
            _logger.info("VLLM_ASCEND_ADMISSION=cached has no effect: %s", why)
        return
    if config.admission == "cached":
        coordinator.waiting_order = waiting_order_for(self)
    with_caching(self)
    manager = self.kv_cache_manager
    if drafts := running_release().draft_event_metadata(manager.num_kv_cache_groups):
        manager.kv_cache_event_metadata += drafts
    if self.connector is not None:
        transfer = arguments["vllm_config"].kv_transfer_config
        if LOADS_BEHIND_ZEROING in declared(transfer):
            running_release().zero_what_is_loaded(self)
        query = ConnectorQuery(
            self.connector.get_num_new_matched_tokens,
            least_gain(transfer),
            brings_tails=BRINGS_TAILS in declared(transfer),
        )
        coordinator.lookup.connector = query
        self.connector.get_num_new_matched_tokens = query.get_num_new_matched_tokens


PATCHES: tuple[Patch, ...] = (
    wrap_init,
    *overrides(CachingScheduler, _SCHEDULER, COORDINATOR),
    # A default on the class: dataclasses.replace drops what is only on the instance.
    Add(
        target=f"{_OUTPUT}.kv_cache_block_copies",
        replacement=None,
        **PARTIAL_HITS,
        why="Names the pages to copy before the step.",
    ),
)
