# SPDX-License-Identifier: Apache-2.0
"""What an object of the tier holds: rows of every group, in tokens and bytes, and its name.

The unit is a granule, or as many as make up :data:`LEAST_UNIT_TOKENS`. Nothing here depends on the
rows per block, so engines with other block sizes find each other's objects.

DeepSeek-V4-Flash, a unit of 128 tokens and the tail of a boundary ``b``::

    C4    rows [32 u, 32 u + 32)  of 21 layers and their indexer keys
    C128  row  u                  of 20 layers
    window     tokens [b - 128, b)
    C4 state   tokens [b - 4, b)
    C128 state none: at a boundary no window is open
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from math import lcm
from typing import Any

from vllm.config import VllmConfig
from vllm.utils.math_utils import cdiv
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    UniformTypeKVCacheSpecs,
)

from vllm_ascend.core.layout.groups import find_draft_groups
from vllm_ascend.core.layout.specs import (
    compress_ratio,
    granule_tokens,
    group_specs,
    is_downward_closed,
    is_windowed,
    kind_in_words,
    read_span,
    rows_per_block,
)
from vllm_ascend.core.policy.boundaries import align_down
from vllm_ascend.kv_transfer.model_identity import ModelIdentity, model_identity
from vllm_ascend.releases import running_release

# Objects of fewer tokens are too many and too small for any store.
LEAST_UNIT_TOKENS = 128
# Of objects; a layout of other bytes under the same names has another.
_FORMAT = 2

ROWS, TAIL = b"r", b"t"
"""First byte of a key: rows of a unit, or the tail of a boundary. The hash follows."""


@dataclass(frozen=True)
class GroupLayout:
    """One group's part of an object.

    Attributes:
        group_id: The group.
        tokens_per_row: Its compression ratio.
        rows_per_block: Rows that a block stores.
        row_bytes: Bytes of a row over all its layers, at most: a padded row may count whole.
        tail_rows: Of a windowed group: rows of a tail at all but the first boundaries.
    """

    group_id: int
    tokens_per_row: int
    rows_per_block: int
    row_bytes: int
    tail_rows: int = 0


@dataclass(frozen=True)
class TierLayout:
    """What objects hold.

    Attributes:
        unit: Tokens of an object with rows; hits end at its multiples.
        hash_tokens: Tokens per request hash.
        rows: Groups that keep the rows of all tokens.
        tails: Groups of which a tail is kept.
        rows_look_ahead: Draft layers among the former: the last row depends on the next token, so
            the object is named by the unit behind it.
        tail_looks_ahead: The same of the latter.
        is_replicated: Ranks of tensor parallelism hold the same bytes.
        digest: Names the layout and what computes its rows; 16 hexadecimal digits.
        weights: What computes them, for logs.
    """

    unit: int
    hash_tokens: int
    rows: tuple[GroupLayout, ...]
    tails: tuple[GroupLayout, ...]
    rows_look_ahead: bool
    tail_looks_ahead: bool
    is_replicated: bool
    digest: str
    weights: str = ""

    @cached_property
    def unit_bytes(self) -> int:
        """Bytes of the rows of a unit at most, over all layers of a rank."""
        return sum(self.unit // g.tokens_per_row * g.row_bytes for g in self.rows)

    @cached_property
    def tail_bytes(self) -> int:
        """Bytes of a tail at most, over all layers of a rank."""
        return sum(group.tail_rows * group.row_bytes for group in self.tails)

    @cached_property
    def tokens_for_a_tail(self) -> int:
        """So many tokens' rows take the memory of a tail."""
        return cdiv(self.tail_bytes * self.unit, max(self.unit_bytes, 1))

    def name(self, hashes: Sequence[BlockHash], end: int, *, looks_ahead: bool) -> bytes | None:
        """Return the hash that names what ends at a token; ``None``: it is not known yet."""
        index = (end + (self.unit if looks_ahead else 0)) // self.hash_tokens - 1
        return hashes[index] if index < len(hashes) else None

    def row_key(self, hashes: Sequence[BlockHash], unit: int) -> bytes | None:
        """Return the key of a unit's rows; ``None``: it cannot be named yet."""
        name = self.name(hashes, (unit + 1) * self.unit, looks_ahead=self.rows_look_ahead)
        return None if name is None else ROWS + name

    def row_keys(self, hashes: Sequence[BlockHash], start: int, end: int) -> list[bytes]:
        """Return the keys of the rows of the units [start, end), all of which can be named."""
        step = self.unit // self.hash_tokens
        first = (start + 1 + self.rows_look_ahead) * step - 1
        return [ROWS + name for name in hashes[first : first + (end - start) * step : step]]

    def tail_key(self, hashes: Sequence[BlockHash], boundary: int) -> bytes | None:
        """Return the key of a boundary's tail; ``None``: it cannot be named yet."""
        name = self.name(hashes, boundary, looks_ahead=self.tail_looks_ahead)
        return None if name is None else TAIL + name

    def hit_keys(self, hashes: Sequence[BlockHash], start: int, end: int) -> list[bytes]:
        """Return the keys of what a hit of the units [start, end) loads: rows, then its tail."""
        keys = self.row_keys(hashes, start, end)
        tail = self.tail_key(hashes, end * self.unit) if self.tails else None
        return keys if tail is None else [*keys, tail]

    def num_named_units(self, num_hashes: int) -> int:
        """Return how many units can be named with so many hashes."""
        named = num_hashes * self.hash_tokens // self.unit
        return max(named - self.rows_look_ahead, 0)


def describe(kv_cache_config: KVCacheConfig, vllm_config: VllmConfig, pool: str) -> TierLayout:
    """Return the layout of an engine; the same in its scheduler and in its workers.

    Args:
        pool: Only engines with one pool share objects. With a name, also those whose weights
            nobody can tell.

    Raises:
        ValueError: The model has a kind of cache that the tier cannot hold.
    """
    specs = group_specs(kv_cache_config)
    for spec in specs:
        if not (is_downward_closed(spec) or is_windowed(spec)):
            raise ValueError(
                f"GranuleTierConnector cannot hold a KV cache group of {kind_in_words(spec)}: "
                "it holds full and compressed attention and sliding windows. Leave it out"
            )
    parallel = vllm_config.parallel_config
    context = parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size
    if context * parallel.pipeline_parallel_size != 1:
        raise ValueError(
            "GranuleTierConnector does not support context or pipeline parallelism: leave it out"
        )
    draft_groups = _draft_groups(kv_cache_config, vllm_config)
    # Looked up on its module: it is one of the patched functions.
    _, hash_tokens = kv_cache_utils.resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    rows = [i for i, spec in enumerate(specs) if is_downward_closed(spec)]
    windows = [i for i, spec in enumerate(specs) if is_windowed(spec)]
    groups = [_group(i, kv_cache_config) for i in rows]
    granule = lcm(granule_tokens(specs), hash_tokens, *(g.tokens_per_row for g in groups))
    layout = TierLayout(
        unit=cdiv(LEAST_UNIT_TOKENS, granule) * granule,
        hash_tokens=hash_tokens,
        rows=tuple(groups),
        tails=(),
        rows_look_ahead=not draft_groups.isdisjoint(rows),
        tail_looks_ahead=not draft_groups.isdisjoint(windows),
        is_replicated=all(isinstance(s, MLAAttentionSpec | SlidingWindowMLASpec) for s in specs),
        digest="",
    )
    tails = [_tail_group(layout.unit, i, specs, kv_cache_config) for i in windows]
    layout = replace(layout, tails=tuple(group for group in tails if group.tail_rows))
    identity = model_identity(vllm_config)
    return replace(
        layout,
        digest=_digest(layout, specs, vllm_config, identity, pool),
        weights=str(identity),
    )


def _draft_groups(kv_cache_config: KVCacheConfig, vllm_config: VllmConfig) -> Set[int]:
    speculative = vllm_config.speculative_config
    use_eagle = speculative is not None and speculative.use_eagle()
    if use_eagle and running_release().has_dspark:
        # Rows of block drafts depend on no token behind their own, see core/checks/drafts.py.
        use_eagle = speculative.use_eagle_block_drop()
    return find_draft_groups(kv_cache_config, None, use_eagle=use_eagle)


def _group(group_id: int, kv_cache_config: KVCacheConfig) -> GroupLayout:
    group = kv_cache_config.kv_cache_groups[group_id]
    specs = [group.kv_cache_spec] * len(group.layer_names)
    if isinstance(group.kv_cache_spec, UniformTypeKVCacheSpecs):
        specs = list(group.kv_cache_spec.kv_cache_specs.values())
    first, num_rows = specs[0], rows_per_block(specs[0])
    if any(rows_per_block(spec) != num_rows for spec in specs):
        raise ValueError(
            "GranuleTierConnector cannot hold a KV cache group whose layers have rows of several "
            "ratios, as vLLM's own layout of DeepSeek-V4 has: leave it out"
        )
    # A scheduler is shown the first layer's spec alone, so workers must not read the others'.
    pages = running_release().page_bytes(kv_cache_config)
    own_page = pages[group.layer_names[0]]
    block_bytes = [
        _block_bytes(first) if pages[name] == own_page else pages[name]
        for name in group.layer_names
    ]
    row_bytes = sum(size // num_rows for size in block_bytes)
    return GroupLayout(group_id, compress_ratio(first), num_rows, row_bytes)


def _block_bytes(spec: Any) -> int:
    """Return the bytes of a layer's block, padding left out."""
    if getattr(spec, "page_size_padded", None) is not None:
        spec = replace(spec, page_size_padded=None)
    return spec.page_size_bytes


def _tail_group(
    unit: int, group_id: int, specs: Sequence[KVCacheSpec], config: KVCacheConfig
) -> GroupLayout:
    spec, group = specs[group_id], _group(group_id, config)
    span = read_span(spec, specs)
    # Far enough that no tail reaches over the first token.
    far = (spec.sliding_window // unit + 2) * unit
    start = span.start(far)
    if span.step == 1:
        # A sliding window begins with a unit, and so with a block: a block that is entered in the
        # cache must hold all of its rows.
        start = align_down(start, unit)
    return replace(group, tail_rows=cdiv(far - start, group.tokens_per_row))


def _digest(
    layout: TierLayout,
    specs: Sequence[KVCacheSpec],
    vllm_config: VllmConfig,
    identity: ModelIdentity,
    pool: str,
) -> str:
    parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
    ranks = 1 if layout.is_replicated else parallel.tensor_parallel_size
    parts = (
        _FORMAT,
        pool,
        # Weights that nobody can name are this engine's alone, unless somebody named the pool.
        identity.weights or pool or _engine(vllm_config),
        (identity.drafts, identity.settings, identity.versions),
        str(vllm_config.model_config.dtype),
        cache.cache_dtype,
        cache.prefix_caching_hash_algo,
        (layout.unit, layout.hash_tokens, layout.rows_look_ahead, layout.tail_looks_ahead),
        [(kind_in_words(spec), compress_ratio(spec)) for spec in specs],
        [(g.group_id, g.row_bytes, g.tail_rows) for g in (*layout.rows, *layout.tails)],
        ranks,
    )
    return sha256(repr(parts).encode()).hexdigest()[:16]


def _engine(vllm_config: VllmConfig) -> tuple[str, str]:
    """Return what no other engine has, and all processes of this one do."""
    transfer = vllm_config.kv_transfer_config
    return vllm_config.instance_id, str(transfer and transfer.engine_id)
