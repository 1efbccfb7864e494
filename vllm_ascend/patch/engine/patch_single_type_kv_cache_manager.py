# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/core/single_type_kv_cache_manager.py``: retention, and managers by kind of spec."""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
from vllm.v1.kv_cache_interface import KVCacheSpec
from vllm.v1.request import Request

from vllm_ascend.core import group_managers as managers
from vllm_ascend.core.layout.specs import counts_rows
from vllm_ascend.patch.features import BLOCK_MASK, RETENTION, ROW_LAYOUT
from vllm_ascend.patch.table import Add, Patch, Wrap, changes
from vllm_ascend.releases import running_release

_MODULE = "vllm.v1.core.single_type_kv_cache_manager"
_BASE = f"{_MODULE}:SingleTypeKVCacheManager"
_WINDOW = f"{_MODULE}:SlidingWindowManager"


def _wrap_cache_blocks(manager: str, why: str, *, is_thinned_out: bool = False) -> Wrap:
    """Return the patch by which a manager's ``cache_blocks`` takes retention's arguments."""

    def wrap(
        self: SingleTypeKVCacheManager,
        request: Request,
        num_tokens: int,
        retention_interval: int | None = None,
        alignment_tokens: int | None = None,
        *,
        original: Callable,
    ) -> None:
        """Enter what ``num_tokens`` tokens fill; with an alignment, only what can serve a hit.

        Retention thins out no Mamba states, and encoder states are refused, as in vLLM. See
        :func:`~vllm_ascend.core.single_type_kv_cache_manager.cache_reachable_blocks`.
        """
        if alignment_tokens is None or not is_thinned_out:
            original(self, request, num_tokens)
        else:
            managers.cache_reachable_blocks(
                self, request, num_tokens, retention_interval, alignment_tokens
            )

    target = f"{_MODULE}:{manager}.cache_blocks"
    evidence = f"{target}(retention_interval)"
    return changes(target, RETENTION, superseded_by=evidence, why=why)(wrap)


@changes(
    f"{_MODULE}:get_manager_for_kv_cache_spec",
    ROW_LAYOUT,
    aliases=("vllm.v1.core.kv_cache_coordinator:get_manager_for_kv_cache_spec",),
)
def wrap_get_manager_for_kv_cache_spec(
    kv_cache_spec: KVCacheSpec, *args, original: Callable, **kwargs
) -> SingleTypeKVCacheManager:
    """vLLM looks managers up by exact class; Ascend's specs are subclasses.

    Let vLLM choose for the specs it knows, resolve all others by what they are.

    A spec that counts rows is never vLLM's, even if somebody has entered its class in vLLM's
    map, as vllm-ascend's recompute scheduler does.
    """
    known = running_release().chooses_manager(kv_cache_spec)
    is_vllms = known and not counts_rows(kv_cache_spec)
    choose = original if is_vllms else managers.get_manager_for_kv_cache_spec
    return choose(kv_cache_spec, *args, **kwargs)


PATCHES: tuple[Patch, ...] = (
    Add(
        target=f"{_BASE}.reachable_block_mask",
        replacement=classmethod(managers.reachable_block_mask),
        **BLOCK_MASK,
        why="Managers say which of their blocks can serve a hit.",
        superseded_by=f"{_BASE}.reachable_block_mask",
    ),
    _wrap_cache_blocks(
        "SingleTypeKVCacheManager",
        "Enters only blocks that can serve a hit at a kept boundary.",
        is_thinned_out=True,
    ),
    _wrap_cache_blocks("MambaManager", "Takes the base method's arguments."),
    _wrap_cache_blocks("CrossAttentionManager", "Takes the base method's arguments."),
    Add(
        target=f"{_WINDOW}._contiguous_blocks_for_hit",
        replacement=classmethod(managers.sliding_window_contiguous_blocks_for_hit),
        **BLOCK_MASK,
        why="Look-up and mask must agree on a window's blocks.",
        superseded_by=f"{_WINDOW}._contiguous_blocks_for_hit",
    ),
    Add(
        target=f"{_WINDOW}.reachable_block_mask",
        replacement=classmethod(managers.sliding_window_reachable_block_mask),
        **RETENTION,
        why="A window needs only its tail before a kept boundary.",
        superseded_by=f"{_WINDOW}.reachable_block_mask",
    ),
    wrap_get_manager_for_kv_cache_spec,
)
