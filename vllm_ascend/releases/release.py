# SPDX-License-Identifier: Apache-2.0
"""What a supported release is: which patch targets it has, and what it calls things."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:  # the overlay and the doctor read releases where there is no vLLM
    from vllm.config import VllmConfig
    from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheSpec
    from vllm.v1.request import Request

from vllm_ascend.patch.table import Digests, Override, Patch


class Release(ABC):
    """A pair of vLLM and vllm-ascend.

    Attributes:
        vllm: The version of vLLM, without a local part.
        vllm_ascend: The versions of vllm-ascend that go with it, as operators call them.
        takes_overlay: Whether the overlay fits a checkout of that vllm-ascend.
        why_no_overlay: If it does not, what is missing, in a sentence.
        replaced: Modules of that vllm-ascend that ours take the place of, by their paths in the
            package.
        left_out: Files of ours that stay out of such a checkout -> why.
        refused_connectors: Class of a KV connector of its that cannot be used with DeepSeek-V4 ->
            why.
        hooks: File of that vllm-ascend -> the module of ours that it must import, by which the
            patches are installed.
        digests: Module -> name in it -> the source digests that a patched original may have.
        native: Target -> why nothing has to be patched there: the release has it itself.
        absent: Target -> why nothing can be patched there: the release has no such thing.
    """

    vllm: ClassVar[str]
    vllm_ascend: ClassVar[str]
    digests: ClassVar[Mapping[str, Mapping[str, Digests]]]
    takes_overlay: ClassVar[bool]
    why_no_overlay: ClassVar[str] = ""
    replaced: ClassVar[frozenset[str]] = frozenset()
    left_out: ClassVar[Mapping[str, str]] = {}
    hooks: ClassVar[Mapping[str, str]] = {}
    refused_connectors: ClassVar[Mapping[str, str]] = {}
    native: ClassVar[Mapping[str, str]] = {}
    absent: ClassVar[Mapping[str, str]] = {}

    def table(self, patches: Iterable[Patch]) -> tuple[Patch, ...]:
        """Return the patches that this release takes, each with the digests of its original.

        An original that neither the release nor the patch names has none: the patch fits nothing.
        """
        taken = [p for p in patches if p.target not in self.native and p.target not in self.absent]
        return tuple(
            replace(patch, upstream_sha256=self.digests_of(patch.target) or patch.upstream_sha256)
            if isinstance(patch, Override)
            else patch
            for patch in taken
        )

    def digests_of(self, target: str) -> tuple[str, ...]:
        """Return the digests that the original of ``"module:name"`` may have; none: unknown."""
        module, _, name = target.partition(":")
        digests = self.digests.get(module, {}).get(name, ())
        return (digests,) if isinstance(digests, str) else digests

    @abstractmethod
    def chooses_manager(self, spec: KVCacheSpec) -> bool:
        """Whether vLLM's own factory knows a manager for a spec."""

    @abstractmethod
    def manager_class(self, spec: KVCacheSpec) -> type[SingleTypeKVCacheManager] | None:
        """Return vLLM's manager for the class of a spec, or for the nearest base of it."""

    @abstractmethod
    def manager_arguments(self, alignment: int) -> dict[str, Any]:
        """Return what managers take beyond what they take in every release.

        Args:
            alignment: Hits are multiples of it, in tokens.
        """

    @abstractmethod
    def uses_second_model_runner(self, vllm_config: VllmConfig) -> bool:
        """Whether vLLM's second model runner will serve; in later releases that is a default."""

    @abstractmethod
    def discard_next_output(self, request: Request) -> None:
        """Let what the step in flight samples for a request count for nothing."""

    def max_in_flight_tokens(self, vllm_config: VllmConfig) -> int:
        """Return the most tokens of steps in flight for which a request goes on holding windows."""
        return 0

    def in_flight_tokens(self, request: Request) -> int:
        """Return how many of a request's computed tokens are those of steps still in flight."""
        return 0
