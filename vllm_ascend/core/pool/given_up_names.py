# SPDX-License-Identifier: Apache-2.0
"""Names of blocks that were cached until recently."""

from __future__ import annotations

from collections import OrderedDict

from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId


class GivenUpNames:
    """Names of one group's blocks that were given up. The oldest are forgotten first."""

    def __init__(self, suffix: bytes, capacity: int) -> None:
        """Remember up to ``capacity`` names; the group's keys end in ``suffix``."""
        self._suffix = suffix
        self._capacity = capacity
        # Not a dict: the first key of one that lost many is searched for from the start.
        self._names: OrderedDict[BlockHashWithGroupId, None] = OrderedDict()

    def __contains__(self, name: BlockHashWithGroupId) -> bool:
        return name in self._names

    def add(self, name: BlockHashWithGroupId) -> None:
        """Remember a name, if it is one of the group."""
        if not name.endswith(self._suffix):
            return
        self._names[name] = None
        self._names.move_to_end(name)
        if len(self._names) > self._capacity:
            self._names.popitem(last=False)

    def clear(self) -> None:
        """Forget all names."""
        self._names.clear()
