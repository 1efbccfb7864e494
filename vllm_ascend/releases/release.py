# SPDX-License-Identifier: Apache-2.0
"""What a supported release is: which patch targets it has, and what it calls things."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:  # the overlay and the doctor read releases where there is no vLLM
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import (
        KVCacheConfig,
        KVCacheGroupSpec,
        KVCacheSpec,
        KVCacheTensor,
    )

from vllm_ascend.core.plan.vllm_terms import VllmTerms
from vllm_ascend.patch.table import Patch, Wrap

Digests = str | tuple[str, ...]
"""Source digests (see :func:`~vllm_ascend.patch.table.source_digest`), any of which will do."""


class Side(Enum):
    """Where patches are installed."""

    ENGINE = "with the engine"
    ENGINE_OVER_CHECKOUT = "with the engine, over a checkout of vllm-ascend only"
    WORKERS = "with the workers"
    CHECKOUT = "in vllm-ascend's own modules, over a checkout only"


class Release(VllmTerms):
    """A pair of vLLM and vllm-ascend.

    What ``core`` asks for is in the base. A body says that a release has no such thing.

    Attributes:
        vllm: The version of vLLM, without a local part.
        vllm_ascend: The versions of vllm-ascend that go with it, as operators call them. Empty:
            none is known, and the overlay goes over none.
        replaced: Modules of that vllm-ascend that ours take the place of, by their paths in the
            package.
        extended: Modules of that vllm-ascend that stay, by their paths in the package -> the line
            of ours that is put behind each, and why.
        left_out: Files of ours that stay out of such a checkout -> why.
        needed_functions: Functions of that vllm-ascend, as targets, that the overlay needs as they
            are and changes nothing of.
        pooled_states: Function of that vllm-ascend, as a target, that says how a compressor's state
            is cached -> the class of specs that it must return: blocks of the pool, as hits need.
        hooks: File of that vllm-ascend -> the module of ours that it must import, by which the
            patches are installed.
        wrappers: Modules of that vllm-ascend that have wrapped functions of vLLM before us.
        left_to_wrappers: Target -> the source digest of what vllm-ascend has put in its place; that
            needs nothing of ours.
        digests: Module -> name in it -> the source digests that a patched original may have.
        moved: Target -> where the original stands in this release, as a target.
        scheduler_only: Whether only its scheduler is tested, and no engine.
        native: Target -> why nothing has to be patched there: the release has it itself, or
            another patch of the table does it.
        absent: Target, or alias of one -> why nothing can be patched there: the release has no such
            thing.
        ratio_field: The field of vLLM's compressed specs with the tokens per stored row.
        hash_size_field: The field of ``CacheConfig`` with the tokens per request hash.
        layout_patches: Side -> modules of patches that only a layout of the release's needs.
        reads_retention_variable: Whether vLLM has ``VLLM_PREFIX_CACHE_RETENTION_INTERVAL`` itself.
    """

    vllm: ClassVar[str]
    vllm_ascend: ClassVar[str] = ""
    digests: ClassVar[Mapping[str, Mapping[str, Digests]]]
    replaced: ClassVar[frozenset[str]] = frozenset()
    extended: ClassVar[Mapping[str, tuple[str, str]]] = {}
    left_out: ClassVar[Mapping[str, str]] = {}
    needed_functions: ClassVar[tuple[str, ...]] = ()
    pooled_states: ClassVar[Mapping[str, str]] = {}
    hooks: ClassVar[Mapping[str, str]] = {}
    wrappers: ClassVar[frozenset[str]] = frozenset()
    left_to_wrappers: ClassVar[Mapping[str, str]] = {}
    moved: ClassVar[Mapping[str, str]] = {}
    scheduler_only: ClassVar[bool] = False
    native: ClassVar[Mapping[str, str]] = {}
    absent: ClassVar[Mapping[str, str]] = {}
    layout_patches: ClassVar[Mapping[Side, tuple[str, ...]]] = {}
    ratio_field: ClassVar[str] = "compress_ratio"
    hash_size_field: ClassVar[str] = "hash_block_size"
    reads_retention_variable: ClassVar[bool] = False

    def patches_of_layout(self, side: Side) -> tuple[Patch, ...]:
        """Return the patches of one side that only a layout of this release's needs.

        Their modules are imported; the workers' import vLLM's model runner.
        """
        modules = map(importlib.import_module, self.layout_patches.get(side, ()))
        return tuple(patch for module in modules for patch in module.PATCHES)

    def table(self, patches: Sequence[Patch]) -> tuple[Patch, ...]:
        """Return the patches that this release takes, each with the digests of its original.

        An original that neither the release nor the patch names has none: the patch fits nothing.
        """
        left = self.native.keys() | self.absent.keys()
        return tuple(self._as_here(patch) for patch in patches if patch.target not in left)

    def _as_here(self, patch: Patch) -> Patch:
        """Return a patch with its original's place and digests here, and with who holds it."""
        if isinstance(patch, Wrap):
            holders = tuple(alias for alias in patch.aliases if alias not in self.absent)
            patch = replace(patch, aliases=holders)
        digests = self.digests_of(patch.target) or patch.upstream_sha256
        target = self.moved.get(patch.target, patch.target)
        return replace(patch, target=target, upstream_sha256=digests)

    def digests_of(self, target: str) -> tuple[str, ...]:
        """Return the digests that the original of ``"module:name"`` may have; none: unknown."""
        module, _, name = target.partition(":")
        digests = self.digests.get(module, {}).get(name, ())
        return (digests,) if isinstance(digests, str) else digests

    @abstractmethod
    def chooses_manager(self, spec: KVCacheSpec) -> bool:
        """Whether vLLM's own factory knows a manager for a spec."""

    # Specs and tensors

    def why_left_to_vllm(self, specs: Collection[KVCacheSpec]) -> str:
        """Return why vLLM's own coordinator must serve a model of these specs; else nothing."""
        return ""

    @abstractmethod
    def tensors(
        self, pages: Sequence[tuple[int, tuple[str, ...]]], num_blocks: int
    ) -> list[KVCacheTensor]:
        """Return the tensors of a pool.

        Args:
            pages: Per tensor, the bytes of one page and the layers that share it.
        """

    @abstractmethod
    def page_bytes(self, kv_cache_config: KVCacheConfig) -> dict[str, int]:
        """Return the bytes of a block of every layer, padding included."""

    @property
    def planning(self) -> ModuleType:
        """The module of vLLM's that makes groups of layers and plans their pool."""
        from vllm.v1.core import kv_cache_utils

        return kv_cache_utils

    def groups_of_model(
        self, vllm_config: VllmConfig, specs: dict[str, KVCacheSpec]
    ) -> list[KVCacheGroupSpec]:
        """Return the groups that vLLM makes of a model's layers; it may change ``specs``."""
        return self.planning.get_kv_cache_groups(vllm_config, specs)

    def plan_pool(
        self, vllm_config: VllmConfig, specs: dict[str, KVCacheSpec], memory: int
    ) -> list[KVCacheConfig]:
        """Return what vLLM plans for a single worker with so many bytes."""
        return self.planning.get_kv_cache_configs(vllm_config, [specs], [memory])

    def flag_draft_groups(
        self,
        vllm_config: VllmConfig,
        specs: dict[str, KVCacheSpec],
        groups: list[KVCacheGroupSpec],
    ) -> None:
        """Flag the group that holds the last layer as the one of the drafts, if there are any."""
        # Whatever the model is called. Releases name this differently.
        is_last_layer_drafting = True
        self.planning._annotate_eagle_groups(vllm_config, specs, groups, is_last_layer_drafting)

    def pool_bytes_per_block(
        self, vllm_config: VllmConfig, groups: Sequence[KVCacheGroupSpec]
    ) -> int:
        return self.planning._pool_bytes_per_block(list(groups))

    def hash_own_tokens_alone(self, vllm_config: VllmConfig) -> None:
        """Let a block's hash cover nothing behind the block. In most releases none does."""

    def zero_what_is_loaded(self, scheduler: Scheduler) -> None:
        """Do nothing: no such block is left out, or the connector is asked for which groups."""

    def cache_settings(self, specs: Collection[KVCacheSpec]) -> dict[str, Any]:
        """Return the fields of ``CacheConfig`` that engine and platform set for a model's specs."""
        return {}

    @abstractmethod
    def tokens_of_step(self, told: int, num_in_flight_tokens: int) -> int:
        """Return the most tokens of one step, given what vLLM tells as :attr:`step_tokens`."""
