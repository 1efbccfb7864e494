# SPDX-License-Identifier: Apache-2.0
"""``vllm_ascend/worker/model_runner_v1.py``: pages that can be copied, and errors that say why."""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.kv_cache_interface import KVCacheConfig

from vllm_ascend.patch.features import CHECKOUT_CACHE
from vllm_ascend.patch.table import Patch, changes
from vllm_ascend.worker.block_copies import RawTensors
from vllm_ascend.worker.kv_cache_tensors import KVCacheTensorsError, allocate_pages

# vllm-ascend tells attention layers by their names.
_ATTENTION = "attn"


@changes(
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._allocate_kv_cache_tensors",
    CHECKOUT_CACHE,
)
def wrap_allocate(
    self, kv_cache_config: KVCacheConfig, *, original: Callable
) -> dict[str, RawTensors]:
    """Whole pages can only be copied in the raw tensors; names layers that do not fit."""
    try:
        return allocate_pages(self, kv_cache_config, original)
    except AssertionError as error:
        names = {
            name
            for group in kv_cache_config.kv_cache_groups
            for name in group.layer_names
            if _ATTENTION not in name
        }
        raise KVCacheTensorsError(
            f"the runner did not allocate the KV cache as planned ({error}); layers whose "
            f"names say of no kind that it knows: {sorted(names) or 'none'}"
        ) from error


PATCHES: tuple[Patch, ...] = (wrap_allocate,)
