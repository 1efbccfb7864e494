# SPDX-License-Identifier: Apache-2.0
"""A KV cache manager with this project's coordinator: who looks up, and block copies out.

As a scheduler is, so its manager is given this class over its own when it has been built. Where the
coordinator is vLLM's own, the manager stays vLLM's own.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from vllm.v1.request import Request

from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
else:
    KVCacheManager = object  # without slots: of the same layout


class CachingKVCacheManager(KVCacheManager):
    """What a KV cache manager does beside vLLM's own."""

    coordinator: AscendHybridKVCacheCoordinator

    def get_computed_blocks(self, request: Request, *args: Any, **kwargs: Any) -> tuple:
        """A request must remember where it leaves a cached prefix."""
        with self.coordinator.looking_up(request):
            return super().get_computed_blocks(request, *args, **kwargs)

    def take_kv_cache_block_copies(self) -> Any:
        """A hit inside a block needs a private copy before the step.

        Return the copies that the step just scheduled must make first, as vLLM's scheduler expects
        them. Each is returned once. Their sources stay referenced until the next step is scheduled;
        with a KV connector until the step's output is back.
        """
        copies = self.coordinator.take_block_copies()
        return self.coordinator.plan.terms.copies_told(copies)


@cache
def put_over(theirs: Any, ours: Any) -> Any:
    """Return a class of vLLM's or vllm-ascend's with ours over it, under its own name."""
    if issubclass(theirs, ours):
        return theirs
    own = {"__module__": theirs.__module__, "__qualname__": theirs.__qualname__}
    return type(theirs)(theirs.__name__, (ours, theirs), own)
