# SPDX-License-Identifier: Apache-2.0
"""What a supported release is: which patch targets it has, and what it calls things."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:  # the overlay and the doctor read releases where there is no vLLM
    from vllm.config import CacheConfig, VllmConfig
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec, KVCacheTensor
    from vllm.v1.request import Request

from vllm_ascend.patch.table import Digests, Override, Patch, Wrap


class NeededSetting(NamedTuple):
    """The only value that a setting of a KV connector may have, and what would happen else."""

    value: bool | int  # also what is taken where it is not set
    why: str


class Release(ABC):
    """A pair of vLLM and vllm-ascend.

    Methods with a body say what holds in most releases.

    Attributes:
        vllm: The version of vLLM, without a local part.
        vllm_ascend: The versions of vllm-ascend that go with it, as operators call them.
        takes_overlay: Whether the overlay fits a checkout of that vllm-ascend.
        why_no_overlay: If it does not, what is missing, in a sentence.
        replaced: Modules of that vllm-ascend that ours take the place of, by their paths in the
            package.
        left_out: Files of ours that stay out of such a checkout -> why.
        needed_settings: Class of a KV connector of its -> key of its extra configuration -> what
            it must be with DeepSeek-V4.
        hooks: File of that vllm-ascend -> the module of ours that it must import, by which the
            patches are installed.
        digests: Module -> name in it -> the source digests that a patched original may have.
        native: Target -> why nothing has to be patched there: the release has it itself, or
            another patch of the table does it.
        absent: Target, or alias of one -> why nothing can be patched there: the release has no such
            thing.
        counts_rows: Whether ``block_size`` of vllm-ascend's compressed specs counts stored rows;
            else it counts the tokens that they stand for, as in vLLM's own.
        reserves_null_block: Whether vLLM's start-up check sets a block aside for the null block.
        ratio_field: The field of vLLM's compressed specs with the tokens per stored row.
        hash_size_field: The field of ``CacheConfig`` with the tokens per request hash.
        second_runner_serves: Whether vLLM's second model runner makes block copies, too.
        step_tokens: What vLLM calls the argument for the most tokens that are scheduled and not
            yet settled.
    """

    vllm: ClassVar[str]
    vllm_ascend: ClassVar[str]
    digests: ClassVar[Mapping[str, Mapping[str, Digests]]]
    takes_overlay: ClassVar[bool]
    why_no_overlay: ClassVar[str] = ""
    replaced: ClassVar[frozenset[str]] = frozenset()
    left_out: ClassVar[Mapping[str, str]] = {}
    hooks: ClassVar[Mapping[str, str]] = {}
    needed_settings: ClassVar[Mapping[str, Mapping[str, NeededSetting]]] = {}
    native: ClassVar[Mapping[str, str]] = {}
    absent: ClassVar[Mapping[str, str]] = {}
    counts_rows: ClassVar[bool] = True
    reserves_null_block: ClassVar[bool] = False
    ratio_field: ClassVar[str] = "compress_ratio"
    hash_size_field: ClassVar[str] = "hash_block_size"
    second_runner_serves: ClassVar[bool] = False
    step_tokens: ClassVar[str] = "max_num_batched_tokens"

    def table(self, patches: Sequence[Patch]) -> tuple[Patch, ...]:
        """Return the patches that this release takes, each with the digests of its original.

        An original that neither the release nor the patch names has none: the patch fits nothing.
        """
        return tuple(self._as_here(patch) for patch in patches if self.takes(patch, patches))

    def _as_here(self, patch: Patch) -> Patch:
        """Return a patch with the digests that its original has here, and with who holds it."""
        if isinstance(patch, Wrap):
            holders = tuple(alias for alias in patch.aliases if alias not in self.absent)
            patch = replace(patch, aliases=holders)
        if isinstance(patch, Override):
            digests = self.digests_of(patch.target) or patch.upstream_sha256
            patch = replace(patch, upstream_sha256=digests)
        return patch

    def takes(self, patch: Patch, patches: Sequence[Patch]) -> bool:
        """Whether the release takes one of ``patches``.

        What one release lacks and another has to have changed is declared twice, as an addition and
        as an override: the release whose original is known takes the override.
        """
        target = patch.target
        if target in self.native or target in self.absent:
            return False
        twins = {type(p) for p in patches if p.target == target}
        if len(twins) == 1:
            return True
        return isinstance(patch, Override) == bool(self.digests_of(target))

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

    # Specs and tensors

    def tokens_per_row(self, spec: KVCacheSpec) -> int:
        """Return how many tokens one stored row of an unpacked spec stands for."""
        # Not every kind of spec has it; a fraction says that a token has several rows.
        return max(int(getattr(spec, self.ratio_field, 1) or 1), 1)

    def rows_per_block(self, spec: KVCacheSpec) -> int:
        """Return the stored rows of a block of an unpacked spec."""
        return spec.storage_block_size

    def compressed_spec(self, rows: int, ratio: int, **row: Any) -> KVCacheSpec:
        """Return vllm-ascend's spec of blocks of ``rows`` rows, ``ratio`` tokens each.

        Args:
            **row: Fields of :class:`~vllm_ascend.core.kv_cache_interface.AscendMLAAttentionSpec`.
        """
        from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec

        return AscendMLAAttentionSpec(block_size=rows, compress_ratio=ratio, **row)

    def tensors(
        self, pages: Sequence[tuple[int, tuple[str, ...]]], num_blocks: int
    ) -> list[KVCacheTensor]:
        """Return the tensors of a pool.

        Args:
            pages: Per tensor, the bytes of one page and the layers that share it.
        """
        from vllm.v1.kv_cache_interface import KVCacheTensor

        return [
            KVCacheTensor(size=page_bytes * num_blocks, shared_by=list(layers))
            for page_bytes, layers in pages
        ]

    def cache_settings(self, specs: Collection[KVCacheSpec]) -> dict[str, Any]:
        """Return the fields of ``CacheConfig`` that engine and platform set for a model's specs."""
        return {}

    def retention_option(self, config: CacheConfig | KVCacheConfig) -> int | None:
        """Return the interval asked for by ``--prefix-cache-retention-interval``, in tokens.

        ``None`` where there is no such option, or where it has its default.
        """
        return None

    # Managers of one group

    def take_computed_blocks(
        self,
        manager: SingleTypeKVCacheManager,
        request_id: str,
        blocks: Sequence[KVCacheBlock],
        num_local_tokens: int,
        num_external_tokens: int,
    ) -> None:
        """Give a request a group's blocks of its hit, whole ones, and room for external tokens."""
        manager.allocate_new_computed_blocks(
            request_id, blocks, num_local_tokens, num_external_tokens
        )

    def blocks_to_allocate(
        self,
        manager: SingleTypeKVCacheManager,
        request_id: str,
        num_tokens: int,
        hit_blocks: Sequence[KVCacheBlock],
        total_computed_tokens: int,
        num_tokens_main_model: int,
    ) -> int:
        """Return the blocks of a group that a request still needs, without vLLM's admission cap."""
        return manager.get_num_blocks_to_allocate(
            request_id, num_tokens, hit_blocks, total_computed_tokens, num_tokens_main_model
        )

    def enter_all(
        self, manager: SingleTypeKVCacheManager, request: Request, num_tokens: int
    ) -> None:
        """Enter every full block of a group that ``num_tokens`` tokens fill."""
        manager.cache_blocks(request, num_tokens)

    def draft_event_metadata(self, num_groups: int) -> tuple[tuple[str | None, int | None], ...]:
        """Return (kind, window) of the groups behind the real ones that KV events may name.

        They tell what followed the blocks of draft layers; see docs/kv-events.md. None where vLLM's
        KV cache manager does not look them up.
        """
        return ()

    # The coordinator

    def coordinator_attributes(self, alignment: int, interval: int | None) -> dict[str, Any]:
        """Return what others read of a coordinator whose constructor is not vLLM's."""
        return {}

    def found(self, blocks: tuple[list[KVCacheBlock], ...], num_tokens: int) -> tuple:
        """Return a hit as vLLM's KV cache manager expects it from its coordinator."""
        return blocks, num_tokens

    # Steps in flight

    def max_in_flight_tokens(self, vllm_config: VllmConfig) -> int:
        """Return the most tokens of steps in flight for which a request goes on holding windows.

        Those of the step being scheduled come on top.
        """
        return 0

    def tokens_of_step(self, told: int, num_in_flight_tokens: int) -> int:
        """Return the most tokens of one step, given what vLLM tells as :attr:`step_tokens`."""
        return told

    def in_flight_tokens(self, request: Request) -> int:
        """Return how many of a request's computed tokens are those of steps still in flight."""
        return 0
