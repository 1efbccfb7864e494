# SPDX-License-Identifier: Apache-2.0
"""The KV cache of a worker as rows: gathered from blocks and scattered into them.

Once per tensor and step, however many rows. Whatever a layer's tensor is shaped like, a row of it
is seen as ``[pieces, bytes]``: a layer may keep keys and values, or heads, apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from typing import Any

import torch
from vllm.v1.kv_cache_interface import KVCacheConfig

from vllm_ascend.tier.layout import GroupLayout


@dataclass(frozen=True)
class RowView:
    """One tensor as ``[num_blocks, pieces, rows, bytes]``, a view of it.

    Attributes:
        group_id: Whose rows these are.
        rows: The view.
    """

    group_id: int
    rows: torch.Tensor

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(self.rows.shape[1] * self.rows.shape[3])

    def gather(self, target: torch.Tensor, blocks: torch.Tensor, places: torch.Tensor) -> None:
        """Copy rows out.

        Args:
            target: ``[objects, rows of an object, pieces, bytes]``, may be a view with gaps.
            blocks: Block of every row.
            places: Place of every row in its block.
        """
        target.copy_(self.rows[blocks, :, places].view(target.shape))

    def scatter(
        self,
        source: torch.Tensor,
        blocks: torch.Tensor,
        places: torch.Tensor,
        chosen: torch.Tensor | None,
    ) -> None:
        """Copy rows in.

        Args:
            source: As the target of :meth:`gather`.
            blocks: Block of every row that is written.
            places: Place of every such row in its block.
            chosen: Which rows of the source these are; ``None``: all.
        """
        rows = source.reshape(-1, *source.shape[2:])
        self.rows[blocks, :, places] = rows if chosen is None else rows[chosen]


def row_views(
    kv_caches: Mapping[str, Any], kv_cache_config: KVCacheConfig, groups: Iterable[GroupLayout]
) -> list[RowView]:
    """Return every tensor of the groups' layers once, in the order of groups and layers.

    Args:
        kv_caches: Layer name -> tensor, or several.

    Raises:
        ValueError: A layer has no tensor, or one that does not consist of blocks and rows.
    """
    views: list[RowView] = []
    for group in groups:
        seen: set[tuple] = set()
        for name in kv_cache_config.kv_cache_groups[group.group_id].layer_names:
            if name not in kv_caches:
                raise ValueError(f"GranuleTierConnector: layer {name} has no KV cache tensor")
            for tensor in _tensors(kv_caches[name]):
                identity = (tensor.data_ptr(), tensor.shape, tensor.stride())
                if identity in seen:
                    continue
                seen.add(identity)
                found = _split(tensor, kv_cache_config.num_blocks, group.rows_per_block, name)
                views += [RowView(group.group_id, view) for view in found]
    return views


def signature(views: Sequence[RowView]) -> bytes:
    """Return 16 bytes that name how the bytes of objects are ordered."""
    shapes = [(v.group_id, v.rows.shape[1], v.rows.shape[3]) for v in views]
    return sha256(repr(shapes).encode()).digest()[:16]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif value is not None:
        for part in value:
            yield from _tensors(part)


def _split(
    tensor: torch.Tensor, num_blocks: int, num_rows: int, name: str
) -> Iterator[torch.Tensor]:
    """Yield a tensor as ``[num_blocks, pieces, rows, bytes]``; several times if it must be."""
    shape = list(tensor.shape)
    block_dim = next((i for i in range(min(2, len(shape))) if shape[i] == num_blocks), None)
    if block_dim is None and shape[0] % num_blocks == 0:
        # Kernels may see a block as several.
        parts = shape[0] // num_blocks
        merged = _merge_kernel_blocks(tensor, num_blocks, parts, num_rows)
        if merged is not None:
            yield from _split(merged, num_blocks, num_rows, name)
            return
    row_dim = next((i for i in range(len(shape)) if i != block_dim and shape[i] == num_rows), None)
    if block_dim is None or row_dim is None:
        raise ValueError(
            f"GranuleTierConnector: the KV cache of layer {name} has the shape {shape}, which is "
            f"not {num_blocks} blocks of {num_rows} rows"
        )
    outer = [i for i in range(row_dim) if i != block_dim]
    inner = list(range(row_dim + 1, len(shape)))
    if block_dim > row_dim:
        inner.remove(block_dim)
    ordered = tensor.permute(block_dim, *outer, row_dim, *inner)
    yield from _as_bytes(ordered, len(outer), prod(shape[i] for i in inner))


def _merge_kernel_blocks(
    tensor: torch.Tensor, num_blocks: int, parts: int, num_rows: int
) -> torch.Tensor | None:
    rows = num_rows // parts
    dim = next((i for i in range(1, tensor.dim()) if tensor.shape[i] == rows), None)
    if dim is None or rows * parts != num_rows:
        return None
    split = tensor.unflatten(0, (num_blocks, parts)).movedim(1, dim)
    shape = [*split.shape[:dim], num_rows, *split.shape[dim + 2 :]]
    try:
        return split.view(shape)
    except RuntimeError:
        return None


def _as_bytes(ordered: torch.Tensor, num_outer: int, row_items: int) -> Iterator[torch.Tensor]:
    if num_outer > 1:
        for part in ordered.unbind(1):
            yield from _as_bytes(part, num_outer - 1, row_items)
        return
    if num_outer == 0:
        ordered = ordered.unsqueeze(1)
    view = ordered.view(*ordered.shape[:3], row_items)
    yield view.view(torch.uint8)
