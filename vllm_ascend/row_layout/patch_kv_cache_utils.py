# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/core/kv_cache_utils.py``: groups and tensors of layouts that count rows."""

from __future__ import annotations

from vllm_ascend.core.layout import kv_cache_groups as ascend_layout
from vllm_ascend.patch.engine.patch_kv_cache_utils import (
    for_ascend_layouts,
    plan_tensors,
    specs_of,
)
from vllm_ascend.patch.table import Patch

PATCHES: tuple[Patch, ...] = (
    for_ascend_layouts(
        "group_and_unify_kv_cache_specs",
        ascend_layout.group_specs_by_kind,
        lambda specs: specs.values(),
        "C4 and C128 blocks cover unequal tokens and need groups of their own.",
    ),
    for_ascend_layouts(
        "_get_kv_cache_groups_uniform_groups",
        ascend_layout.split_into_groups,
        lambda grouped_specs: grouped_specs,
        "vLLM expects one compressed group in front; Ascend has one per ratio.",
    ),
    for_ascend_layouts(
        "_get_kv_cache_config_deepseek_v4",
        plan_tensors,
        lambda vllm_config, groups, available_memory: specs_of(groups),
        "Plans tensors over all groups' page sizes, none that no layer uses.",
    ),
)
