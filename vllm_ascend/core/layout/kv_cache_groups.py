# SPDX-License-Identifier: Apache-2.0
"""Groups, pages and tensors for layouts whose compressed blocks count rows (DeepSeek-V4 on Ascend).

All groups draw block ids from one pool. A tensor is shared by at most one layer of every group,
all with pages of one size; page i of it belongs to block id i. So a block's bytes are one page of
every tensor, and the memory of the pool is the sum over tensors, not over layers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from vllm.config import VllmConfig
from vllm.utils.math_utils import cdiv
from vllm.v1.kv_cache_interface import (
    KVCacheGroupSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    UniformTypeKVCacheSpecs,
)

from vllm_ascend.core.layout.dsv4_layout import C4_RATIO
from vllm_ascend.core.layout.specs import (
    AscendMLATokenSpec,
    compress_ratio,
    counts_rows,
    unpack_uniform,
)


def has_row_layout(specs: Iterable[KVCacheSpec]) -> bool:
    """Whether any of the specs, packed or not, is a compressed one that counts rows."""
    return any(counts_rows(spec) for spec in specs)


def is_ascend_layout(specs: Iterable[KVCacheSpec]) -> bool:
    """Whether groups of these specs, packed or not, are laid out as vllm-ascend does."""
    unpacked = [unpack_uniform(spec) for spec in specs]
    return any(counts_rows(s) or isinstance(s, AscendMLATokenSpec) for s in unpacked)


def group_specs_by_kind(kv_cache_spec: Mapping[str, KVCacheSpec]) -> list[UniformTypeKVCacheSpecs]:
    """Put layers, given by name, that need the same token slots together.

    One kind per compression ratio, ratio 4 first (its pages and layer count shape the pool), then
    one per kind of window, in the order of the layers.

    Raises:
        ValueError: Some layer is of neither kind.
    """
    compressed: defaultdict[int, dict[str, KVCacheSpec]] = defaultdict(dict)
    windowed: defaultdict[tuple[int, int], dict[str, KVCacheSpec]] = defaultdict(dict)
    for name, spec in kv_cache_spec.items():
        if isinstance(spec, SlidingWindowMLASpec):
            windowed[spec.block_size, spec.sliding_window][name] = spec
        elif isinstance(spec, MLAAttentionSpec):
            compressed[compress_ratio(spec)][name] = spec
        else:
            raise ValueError(f"layer {name}: {type(spec).__name__} has no place in this layout")
    ratios = sorted(compressed, key=lambda ratio: (ratio != C4_RATIO, ratio))
    kinds = [compressed[ratio] for ratio in ratios] + list(windowed.values())
    return [_uniform(specs) for specs in kinds]


def split_into_groups(kinds: Sequence[UniformTypeKVCacheSpecs]) -> list[KVCacheGroupSpec]:
    """Make KV cache groups of about equally many layers, all with pages of the pool's sizes.

    Compressed kinds stay whole. Windowed kinds with many layers are split, so that they share
    tensors with the compressed layers instead of asking for more; their pages are padded to the
    nearest page size of any compressed group.
    """
    num_layers = [max(Counter(_page_bytes(kind)).values()) for kind in kinds]
    layers_per_group = least_padding(num_layers)
    compressed = [
        kind
        for kind in kinds
        if all(isinstance(spec, MLAAttentionSpec) for spec in kind.kv_cache_specs.values())
    ]
    page_sizes = sorted({size for kind in compressed for size in _page_bytes(kind)})
    parts: list[dict[str, KVCacheSpec]] = []
    for kind in kinds:
        specs = kind.kv_cache_specs
        if kind in compressed:
            parts.append(specs)
        else:
            padded = {name: _pad_page(spec, page_sizes) for name, spec in specs.items()}
            parts += _split_windowed(padded, layers_per_group)
    return [KVCacheGroupSpec(list(specs), _uniform(specs)) for specs in parts]


def least_padding(num_layers: Sequence[int]) -> int:
    """Return the layers per group that leave the fewest places empty; of equals, the most.

    Args:
        num_layers: Of each kind, positive. The first stays whole, and no group is smaller.

    Source: vLLM 0.20.2 ``_approximate_gcd``.
    """

    def num_empty(size: int) -> int:
        return sum(-count % size for count in num_layers)

    sizes = range(max(num_layers), num_layers[0] - 1, -1)
    return min(sizes, key=num_empty)


def plan_tensors(groups: Sequence[KVCacheGroupSpec]) -> list[tuple[int, tuple[str, ...]]]:
    """Lay the groups' layers over shared tensors: of each the bytes of a page, and its layers.

    The k-th layer of a page size in every group shares the k-th tensor of that size, over all
    groups. Draft (MTP) layers get tensors of their own, as the NPU model runner expects.
    """
    shared: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    drafts: list[tuple[int, tuple[str, ...]]] = []
    for group in groups:
        used: Counter[int] = Counter()
        for name in group.layer_names:
            page_bytes = group.kv_cache_spec.kv_cache_specs[name].page_size_bytes
            if "mtp" in name:
                drafts.append((page_bytes, (name,)))
            else:
                shared[used[page_bytes], page_bytes].append(name)
                used[page_bytes] += 1
    by_slot = [(page_bytes, tuple(names)) for (_, page_bytes), names in sorted(shared.items())]
    return by_slot + drafts


def bytes_per_block(groups: Sequence[KVCacheGroupSpec]) -> int:
    """Return the bytes of one page in every tensor."""
    return sum(page_bytes for page_bytes, _ in plan_tensors(groups))


def max_memory_usage_bytes(vllm_config: VllmConfig, groups: Sequence[KVCacheGroupSpec]) -> int:
    """Return the bytes that one request of the longest length takes from the pool."""
    num_blocks = sum(group.kv_cache_spec.max_memory_usage_pages(vllm_config) for group in groups)
    return num_blocks * bytes_per_block(groups)


def _page_bytes(kind: UniformTypeKVCacheSpecs) -> list[int]:
    return [spec.page_size_bytes for spec in kind.kv_cache_specs.values()]


def _uniform(specs: Mapping[str, KVCacheSpec]) -> UniformTypeKVCacheSpecs:
    uniform = UniformTypeKVCacheSpecs.from_specs(dict(specs))
    assert uniform is not None, f"layers {list(specs)} need different token slots"
    return uniform


def _pad_page(spec: KVCacheSpec, page_sizes: Sequence[int]) -> KVCacheSpec:
    """Pad a spec's page to the next of some ascending sizes; larger pages stay as they are."""
    own = spec.page_size_bytes
    size = next((size for size in page_sizes if size >= own), own)
    return spec if size == own else replace(spec, page_size_padded=size)


def _split_windowed(
    specs: Mapping[str, KVCacheSpec], layers_per_group: int
) -> list[dict[str, KVCacheSpec]]:
    """Deal the layers of every page size out to as few groups as hold them, evenly."""
    by_size: defaultdict[int, list[str]] = defaultdict(list)
    for name, spec in specs.items():
        by_size[spec.page_size_bytes].append(name)
    num_groups = max(cdiv(len(names), layers_per_group) for names in by_size.values())
    part_of = {name: i % num_groups for names in by_size.values() for i, name in enumerate(names)}
    return [
        {name: spec for name, spec in specs.items() if part_of[name] == part}
        for part in range(num_groups)
    ]
