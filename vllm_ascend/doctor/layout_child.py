# SPDX-License-Identifier: Apache-2.0
"""What would be in force for a model: a real scheduler is built for it, without a model.

The process calls :func:`main` with a :class:`LayoutRequest` in JSON and the answer's file.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.doctor.findings import GroupRow, LayoutFacts
from vllm_ascend.doctor.model_config import DSV4, max_model_len_of, read_model

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

    from vllm_ascend.core.plan.cache_plan import CachePlan
    from vllm_ascend.dry_run.layouts import KVLayout

# Enough for any three requests of the probe one after another; no memory stands behind them.
_NUM_BLOCKS = 1 << 15
_GIB = 1 << 30
_WITHOUT_PATCHES = "DeepSeek-V4's layout needs the patches, and they are not active in this process"


@dataclass(frozen=True)
class LayoutRequest:
    """What is asked.

    Attributes:
        model: A ``config.json`` or the folder that holds it.
        block_size: ``--block-size``, if given.
        max_model_len: ``--max-model-len``, if given.
        num_speculative_tokens: Drafts per step.
        draft_method: How they are drafted, if there are any.
        max_num_batched_tokens: Tokens per step.
        kv_transfer_config: ``--kv-transfer-config``, if given.
        installs_patches: Install this package's patches, which serving does not have (yet).
    """

    model: str
    block_size: int | None = None
    max_model_len: int | None = None
    num_speculative_tokens: int = 0
    draft_method: str = "mtp"
    max_num_batched_tokens: int = 8192
    kv_transfer_config: dict[str, Any] | None = None
    installs_patches: bool = False


def main(request: str, answer_file: str) -> None:
    """Write the facts, ``{"bad_input": ...}`` or ``{"conflict": ...}``."""
    asked = LayoutRequest(**json.loads(request))
    answer: dict[str, Any]
    try:
        answer = {"facts": asdict(layout_facts(asked))}
    except BadInputError as error:
        answer = {"bad_input": str(error)}
    except ValueError as error:
        answer = {"conflict": str(error)}
    Path(answer_file).write_text(json.dumps(answer))


def layout_facts(asked: LayoutRequest) -> LayoutFacts:
    """Return what would be in force.

    Raises:
        BadInputError: The model's configuration cannot be read, or is of an unknown kind.
        ValueError: An engine would refuse these settings; the message is its own.
    """
    importlib.import_module("vllm.plugins").load_general_plugins()
    if asked.installs_patches:
        importlib.import_module("vllm_ascend.patch.platform")
    from vllm_ascend.core.checks.startup_report import capacity_tokens
    from vllm_ascend.core.layout.specs import group_specs
    from vllm_ascend.doctor.hits import PrefixProbe
    from vllm_ascend.doctor.model_layout import model_layout
    from vllm_ascend.dry_run.layouts import DRAFT_LAYERS

    path = Path(asked.model)
    fields = read_model(path)
    max_model_len = asked.max_model_len or max_model_len_of(fields)
    num_draft_layers = (
        DRAFT_LAYERS.get(asked.draft_method, 1) if asked.num_speculative_tokens else 0
    )
    layout = model_layout(path, fields, asked.block_size, num_draft_layers=num_draft_layers)
    if fields["model_type"] == DSV4 and not _patches_are_active():
        raise ValueError(_WITHOUT_PATCHES)
    scheduler = _scheduler(layout, asked, max_model_len)
    kv_cache_config = scheduler.kv_cache_manager.kv_cache_config
    specs = group_specs(kv_cache_config)
    plan = _plan(scheduler, specs, max_model_len)
    tokens, request = PrefixProbe(scheduler).smallest_prefix(
        plan.granule, max(plan.alignment, plan.whole_block_tokens), max_model_len
    )
    bytes_per_block = sum(t.size for t in kv_cache_config.kv_cache_tensors) // _NUM_BLOCKS
    return LayoutFacts(
        model=layout.name,
        coordinator=_coordinator_name(scheduler),
        block_size=layout.block_size,
        groups=_group_rows(layout, kv_cache_config),
        granule=plan.granule,
        alignment=plan.alignment,
        smallest_prefix=tokens,
        hits_from_request=request,
        retention_interval=plan.interval,
        bytes_per_block=bytes_per_block,
        tokens_per_gib=int(
            capacity_tokens(specs, _NUM_BLOCKS) * (_GIB / prod((bytes_per_block, _NUM_BLOCKS)))
        ),
        max_model_len=max_model_len,
        warnings=(*_warnings(scheduler, plan), *_tier_warnings(asked, scheduler)),
        weights=None if asked.kv_transfer_config is None else _weights(path),
    )


def _weights(model: Path) -> str | None:
    """Return the name of a model's files; ``None``: its weights are not here."""
    from vllm_ascend.kv_transfer.weights_fingerprint import NoWeightsError, fingerprint

    try:
        return fingerprint(model)
    except (NoWeightsError, OSError):
        return None


def _patches_are_active() -> bool:
    return any(name.startswith("vllm_ascend.patch.engine.patch_") for name in sys.modules)


def _scheduler(layout: KVLayout, asked: LayoutRequest, max_model_len: int) -> Scheduler:
    """Build the scheduler; with a KV connector, the same one again beside an idle connector."""
    from vllm.config import KVTransferConfig
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.structured_output import StructuredOutputManager

    from vllm_ascend.doctor.idle_connector import STAND_INS
    from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler

    options = SchedulerOptions(
        num_blocks=_NUM_BLOCKS,
        max_num_batched_tokens=asked.max_num_batched_tokens,
        max_model_len=max_model_len,
        num_speculative_tokens=asked.num_speculative_tokens,
        draft_method=asked.draft_method,
    )
    scheduler = build_scheduler(layout, options)
    if asked.kv_transfer_config is None:
        return scheduler
    _check_connector(asked, layout)
    vllm_config, kv_cache_config = scheduler.vllm_config, scheduler.kv_cache_config
    stand_in = STAND_INS[_what_connector_declares(asked)]
    vllm_config.kv_transfer_config = KVTransferConfig(
        kv_connector=stand_in.__name__,
        kv_connector_module_path=stand_in.__module__,
        kv_role=asked.kv_transfer_config.get("kv_role", "kv_both"),
    )
    sizes = kv_cache_utils.resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    return type(scheduler)(
        vllm_config=vllm_config,
        kv_cache_config=kv_cache_config,
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=sizes[0],
        hash_block_size=sizes[1],
        log_stats=True,
    )


def _check_connector(asked: LayoutRequest, layout: KVLayout) -> None:
    """Check a KV connector as serving does.

    Raises:
        ValueError: It cannot be used with this layout.
    """
    from vllm.config import KVTransferConfig

    from vllm_ascend.core.connectors.connector_rules import check_row_layout, refuse_ascend_store
    from vllm_ascend.core.layout.specs import counts_rows

    config = KVTransferConfig(**(asked.kv_transfer_config or {}))
    if layout.name == DSV4:
        refuse_ascend_store(config, "--kv-transfer-config")
    # Where serving has no patches yet, it may be vllm-ascend's, whose plugins are not loaded here.
    if asked.installs_patches or not any(map(counts_rows, layout.specs.values())):
        return
    check_row_layout(config, "--kv-transfer-config", hybrid_is_off=False)


def _what_connector_declares(asked: LayoutRequest) -> tuple[bool, bool]:
    """Return whether the configured connector knows granules, and whether it takes tails alone.

    Raises:
        ValueError: There is no such connector, or the configuration is invalid.
    """
    from vllm.config import KVTransferConfig

    from vllm_ascend.core.connectors.connector_rules import (
        KNOWS_GRANULES,
        TAKES_TAILS_ALONE,
        declared,
    )

    try:
        config = KVTransferConfig(**(asked.kv_transfer_config or {}))
        told = declared(config)
        return KNOWS_GRANULES in told, TAKES_TAILS_ALONE in told
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        if asked.installs_patches:
            return False, False  # it may be vllm-ascend's, whose plugins are not loaded here
        raise ValueError(f"--kv-transfer-config: {error}") from error


def _coordinator_name(scheduler: Scheduler) -> str:
    """Return the name of the coordinator's class. Ours has one name, with any switch on or none."""
    from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator

    coordinator = scheduler.kv_cache_manager.coordinator
    is_ours = isinstance(coordinator, AscendHybridKVCacheCoordinator)
    return (AscendHybridKVCacheCoordinator if is_ours else type(coordinator)).__name__


def _plan(scheduler: Scheduler, specs: Sequence[KVCacheSpec], max_model_len: int) -> CachePlan:
    """Return what is in force; with vLLM's own coordinator, what it does in our words."""
    from vllm_ascend.core.plan.cache_plan import plan_cache
    from vllm_ascend.core.plan.scheduler_facts import SchedulerFacts
    from vllm_ascend.prefix_cache_config import load_config

    coordinator = scheduler.kv_cache_manager.coordinator
    if hasattr(coordinator, "plan"):
        return coordinator.plan
    transfer = scheduler.vllm_config.kv_transfer_config
    plan = plan_cache(
        specs,
        load_config(),
        SchedulerFacts(connector=None if transfer is None else frozenset()),
        max_model_len=max_model_len,
        max_num_batched_tokens=scheduler.scheduler_config.max_num_batched_tokens,
        enable_caching=False,
    )
    return replace(plan, interval=None)


def _warnings(scheduler: Scheduler, plan: CachePlan) -> tuple[str, ...]:
    from vllm_ascend.core.checks import startup_report

    ours = hasattr(scheduler.kv_cache_manager.coordinator, "plan")
    if not ours and plan.config.profile == "best":
        return ()  # meant for every model; this one has nothing that it could change
    return tuple(startup_report.warnings(plan))


def _tier_warnings(asked: LayoutRequest, scheduler: Scheduler) -> tuple[str, ...]:
    from vllm.config import KVTransferConfig

    from vllm_ascend.doctor.tier import check_tier

    if asked.kv_transfer_config is None or asked.installs_patches:
        return ()  # it may be vllm-ascend's connector, whose plugins are not loaded here
    config = KVTransferConfig(**asked.kv_transfer_config)
    return tuple(check_tier(config, scheduler.kv_cache_config, scheduler.vllm_config))


def _group_rows(layout: KVLayout, kv_cache_config: KVCacheConfig) -> tuple[GroupRow, ...]:
    """Return the kinds of caches, each once; a group's layers may differ in the bytes of a row."""
    from vllm_ascend.core.layout.specs import kind_in_words, rows_per_block, tokens_per_block

    num_layers: Counter[tuple] = Counter()
    groups: defaultdict[tuple, set[int]] = defaultdict(set)
    for group_id, group in enumerate(kv_cache_config.kv_cache_groups):
        for name in group.layer_names:
            # The layer's own spec: a scheduler sees one for the whole group.
            spec = layout.specs[name]
            kind = kind_in_words(spec) + (", indexer" if ".indexer." in name else "")
            rows, tokens = rows_per_block(spec), tokens_per_block(spec)
            key = (kind, rows, tokens, spec.page_size_bytes)
            num_layers[key] += 1
            groups[key].add(group_id)
    return tuple(
        GroupRow(kind, len(groups[kind, rows, tokens, page]), count, rows, tokens, page)
        for (kind, rows, tokens, page), count in num_layers.items()
    )
