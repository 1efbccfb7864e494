# SPDX-License-Identifier: Apache-2.0
"""The differences between releases of vLLM that ``core`` needs. Imports no vLLM."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_ascend.core.policy.units import KVCacheBlockCopy

if TYPE_CHECKING:
    from vllm.config import CacheConfig, VllmConfig
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec
    from vllm.v1.request import Request


class VllmTerms(ABC):
    """Adapts names and calls to the running vLLM. A body says that a release has no such thing.

    Every supported release has a subclass in ``vllm_ascend/releases``. The patches say which one is
    in force; the plan hands it to all parts.

    Attributes:
        counts_rows: Whether ``block_size`` of vllm-ascend's compressed specs counts stored rows;
            else it counts the tokens that they stand for, as in vLLM's own.
        reserves_null_block: Whether vLLM's start-up check sets a block aside for the null block.
        second_runner_serves: Whether vLLM's second model runner makes block copies, too.
        leaves_room_for_loads: Whether vLLM lets an asynchronous load in only if the loads before it
            keep room to start in.
        has_dspark: Whether vLLM drafts with DSpark, and can be told to drop no block for drafts.
        forget_in_flight: What vLLM's ``_preempt_request`` must be told beside the request and the
            time, so that what steps in flight sample for the request counts for nothing.
        step_tokens: What vLLM calls the argument for the most tokens that are scheduled and not
            yet settled.
        queue_of_holders: The scheduler's queue in which requests wait for loads, and hold blocks.
        holders_go_first: Whether that queue goes first, and whoever is at its head is the next one.
        holders_run_while: The pause states in which requests of that queue are let in.
        most_running: The scheduler's number of requests that may run at a time.
        admission_cap: A manager's most blocks of a request that is let in; ``None``: unbounded.
    """

    counts_rows: ClassVar[bool]
    reserves_null_block: ClassVar[bool] = False
    second_runner_serves: ClassVar[bool] = False
    leaves_room_for_loads: ClassVar[bool] = False
    has_dspark: ClassVar[bool] = False
    forget_in_flight: ClassVar[Mapping[str, Any]] = {}
    step_tokens: ClassVar[str]
    queue_of_holders: ClassVar[str] = "skipped_waiting"
    holders_go_first: ClassVar[bool] = False
    holders_run_while: ClassVar[tuple[str, ...]] = ("UNPAUSED",)
    most_running: ClassVar[str] = "max_num_running_reqs"
    admission_cap: ClassVar[str] = "_max_admission_blocks_per_request"

    def retention_option(self, config: CacheConfig | KVCacheConfig) -> int | None:
        """Return the interval asked for by ``--prefix-cache-retention-interval``, in tokens.

        ``None`` where there is no such option, or where it has its default.
        """
        return None

    @abstractmethod
    def uses_second_model_runner(self, vllm_config: VllmConfig) -> bool:
        """Whether vLLM's second model runner will serve; in later releases that is a default."""

    @abstractmethod
    def manager_class(self, spec: KVCacheSpec) -> type[SingleTypeKVCacheManager] | None:
        """Return vLLM's manager for the class of a spec, or for the nearest base of it."""

    def manager_arguments(self, alignment: int) -> dict[str, Any]:
        """Return what managers take beyond what they take in every release.

        Args:
            alignment: Hits are multiples of it, in tokens.
        """
        return {}

    @abstractmethod
    def pool_bytes_per_block(
        self, vllm_config: VllmConfig, groups: Sequence[KVCacheGroupSpec]
    ) -> int:
        """Return the bytes that a block takes in the pool of these groups."""

    def group_arguments(
        self, group: KVCacheGroupSpec, *, zeroes_new_blocks: bool
    ) -> dict[str, Any]:
        """Return what the manager of a group takes beyond :meth:`manager_arguments`.

        Args:
            zeroes_new_blocks: Workers zero blocks before they are written, and must be told which.
        """
        return {}

    def manager_of_rows(
        self, spec: KVCacheSpec, max_model_len: int | None, **arguments: Any
    ) -> SingleTypeKVCacheManager:
        """Return the manager of a group whose blocks count compressed rows.

        Args:
            max_model_len: Tokens of the longest request, which bounds what is asked for to let one
                in; ``None``: nothing does.
            **arguments: What vLLM's managers take.

        Raises:
            NotImplementedError: In this release no blocks do (:attr:`counts_rows`).
        """
        raise NotImplementedError("blocks of this release count tokens")

    # Managers of one group

    @abstractmethod
    def take_computed_blocks(
        self,
        manager: SingleTypeKVCacheManager,
        request_id: str,
        blocks: Sequence[KVCacheBlock],
        num_local_tokens: int,
        num_external_tokens: int,
    ) -> None:
        """Give a request a group's blocks of its hit, whole ones, and room for external tokens."""

    @abstractmethod
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

    @abstractmethod
    def enter_all(
        self, manager: SingleTypeKVCacheManager, request: Request, num_tokens: int
    ) -> None:
        """Enter every full block of a group that ``num_tokens`` tokens fill."""

    # The coordinator

    def coordinator_attributes(
        self, alignment: int, interval: int | None, block_tokens: Sequence[int]
    ) -> dict[str, Any]:
        """Return what vLLM's constructor of a coordinator would have set, and ours does not.

        Args:
            alignment: Tokens that hits are multiples of.
            interval: The retention interval in tokens.
            block_tokens: Tokens per block of each group.
        """
        return {}

    @abstractmethod
    def found(self, blocks: tuple[list[KVCacheBlock], ...], num_tokens: int) -> tuple:
        """Return a hit as vLLM's KV cache manager expects it from its coordinator."""

    def copies_told(self, copies: list[KVCacheBlockCopy] | None) -> Any:
        """Return block copies as vLLM's scheduler expects them from its KV cache manager."""
        return copies

    def draft_event_metadata(self, num_groups: int) -> tuple[tuple[str | None, int | None], ...]:
        """Return (kind, window) of the groups behind the real ones that KV events may name.

        They tell what followed the blocks of draft layers; see docs/kv-events.md. None where vLLM's
        KV cache manager does not look them up.
        """
        return ()

    # Steps in flight

    @abstractmethod
    def discard_next_output(self, request: Request) -> None:
        """Let what the step in flight samples for a request count for nothing."""

    @abstractmethod
    def forget_prefill(self, scheduler: Scheduler, request: Request) -> None:
        """Reserve nothing any more for a request whose blocks were taken back."""

    @abstractmethod
    def zero_what_is_loaded(self, scheduler: Scheduler) -> None:
        """Let a scheduler zero new blocks also where a load beside the steps writes them.

        Its connector loads behind zeroing.
        """

    def max_in_flight_tokens(self, vllm_config: VllmConfig) -> int:
        """Return the most tokens of steps in flight for which a request goes on holding windows.

        Those of the step being scheduled come on top.
        """
        return 0

    def in_flight_tokens(self, request: Request) -> int:
        """Return how many of a request's computed tokens are those of steps still in flight."""
        return 0


_in_force: VllmTerms | None = None


def use_terms(terms: VllmTerms) -> None:
    """Set the terms of this process. The patches call it when they are installed."""
    global _in_force
    _in_force = terms


def terms_in_force() -> VllmTerms:
    """Return the terms of a plan that is made outside of a scheduler."""
    assert _in_force is not None, "the patches are not installed"
    return _in_force
