# SPDX-License-Identifier: Apache-2.0
"""What Ascend's KV cache specs have in common, whoever defines them."""

from __future__ import annotations

from copy import copy

from typing_extensions import Self


class StoredInRows:
    """The common part of Ascend's specs: a mixin, because each has a base class of vLLM's own."""

    block_size: int

    @property
    def storage_block_size(self) -> int:
        """Rows per block."""
        return self.block_size

    @classmethod
    def merge(cls, specs: list[Self]) -> Self:
        """Return the one spec of a group, every field kept (``compress_ratio`` too).

        Raises:
            AssertionError: The layers of the group are not stored alike.
        """
        first = specs[0]
        assert all(spec == first for spec in specs[1:]), (
            "All attention layers in the same KV cache group must have the same spec: "
            f"{[spec for spec in specs if spec != first][:1]} differs from {first}."
        )
        return copy(first)
