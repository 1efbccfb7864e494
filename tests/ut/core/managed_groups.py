# SPDX-License-Identifier: Apache-2.0
"""Managers of single groups, over small pools."""

import torch
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.kv_cache_interface import KVCacheSpec, MLAAttentionSpec, SlidingWindowSpec

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.ut.core.helpers import make_request
from vllm_ascend.core.group_managers import get_manager_for_kv_cache_spec
from vllm_ascend.core.layout.dsv4_specs import compressed_spec
from vllm_ascend.releases import running_release

SHAPE = dict(num_kv_heads=1, head_size=8, dtype=torch.bfloat16)
# Both store 4 rows for 16 tokens; vLLM's spec says so in tokens, Ascend's in rows.
ROWS = compressed_spec(4, 4, **SHAPE)
TOKENS = MLAAttentionSpec(block_size=16, **{running_release().ratio_field: 4}, **SHAPE)
WINDOW = SlidingWindowSpec(block_size=4, sliding_window=8, **SHAPE)
H = 4


def make_pool(num_blocks: int = 32) -> BlockPool:
    return BlockPool(num_blocks, True, H)


def make_manager(spec: KVCacheSpec, pool: BlockPool | None = None, **kwargs):
    return get_manager_for_kv_cache_spec(
        spec, block_pool=pool or make_pool(), enable_caching=True, kv_cache_group_id=0, **kwargs
    )


def request(name: str, token_ids: list[int]):
    return make_request(name, token_ids, get_request_block_hasher(H, sha256))
