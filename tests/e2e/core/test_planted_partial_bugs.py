# SPDX-License-Identifier: Apache-2.0
"""Bugs planted in partial hits, sparse state and the tiers; every one has to be caught."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from vllm.v1.core.kv_cache_utils import get_group_id

from tests.e2e.core import layouts
from tests.e2e.core.configurations import DSV4, PARTIAL, RETENTION, grid
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.engine import Engine
from tests.e2e.core.test_planted_bugs import ANY, Bug, Plant, hunt, no_op
from tests.release_marks import WHERE_BLOCKS_COUNT_ROWS
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator, RankedCoordinator
from vllm_ascend.core.layout.block_names import BlockNames
from vllm_ascend.core.lookup.prefix_lookup import PrefixLookup
from vllm_ascend.core.pool.granule_index import GranuleIndex
from vllm_ascend.core.retention.ledger import Ledger
from vllm_ascend.core.retention.partial_hits import PartialHits, copied_groups
from vllm_ascend.core.retention.sparse_state import SparseState
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend.row_layout.compress_manager import CompressAttentionManager
from vllm_ascend_evaluation.oracle import ContentViolation


def share_instead_of_copying(patch: pytest.MonkeyPatch) -> None:
    """Put the block that a hit ends inside into the request's own table."""

    def copy(self, request_id, sources, hit) -> None:
        for group, source in sources:  # the reference for the copy becomes the request's
            group.manager.req_to_blocks[request_id].append(source)

    patch.setattr(PartialHits, "copy", copy)


def copy_a_block_that_ends_before_the_hit(patch: pytest.MonkeyPatch) -> None:
    """Take a block that holds the granule before the last one that is needed."""

    def source(self, group, boundary):
        tokens = self._view.hash_tokens
        granule = self._block_hashes[max(boundary // tokens - 2, 0)]
        block = self._view.granules.find(group.id, granule)
        return block, boundary if block is not None else boundary - 1

    def longest_prefix(self, group, limit):
        prefix, matched = original(self, group, limit)
        if group.ends_inside and len(prefix) * group.block_tokens < matched:
            matched = min(matched + self._view.alignment, limit)
        return prefix, matched

    original = PrefixLookup.longest_prefix
    patch.setattr(PrefixLookup, "longest_prefix", longest_prefix)
    patch.setattr(PrefixLookup, "source", source)


def free_the_source_before_dispatch(patch: pytest.MonkeyPatch) -> None:
    """Give the source up as soon as the copy is queued."""
    original = PartialHits.copy

    def copy(self, request_id, sources, hit) -> None:
        original(self, request_id, sources, hit)
        for _, source in sources:
            self.pool.free_blocks([source])
            self.pool.give_up(source)

    patch.setattr(PartialHits, "copy", copy)
    patch.setattr(PartialHits, "release", no_op)
    patch.setattr(PartialHits, "end", no_op)


def enter_granules_before_they_are_computed(patch: pytest.MonkeyPatch) -> None:
    """Enter everything that is hashed, although only a chunk of it is computed."""
    original = PartialHits._collect

    def _collect(self, group, record, request, end) -> None:
        blocks = group.manager.req_to_blocks[request.request_id]
        held = len(blocks) * group.block_tokens // self._hash_tokens
        original(self, group, record, request, min(len(request.block_hashes), held))

    patch.setattr(PartialHits, "_collect", _collect)


def enter_granules_of_this_step(patch: pytest.MonkeyPatch) -> None:
    """Let a copy be made of rows that the same step has yet to write."""
    original = PartialHits.collect

    def collect(self, record, request, num_tokens) -> None:
        original(self, record, request, num_tokens)
        waiting, record.waiting = record.waiting, []
        for entry in waiting:
            for block, granules in entry.by_block():
                self.pool.granules.enter(entry.group.id, block, granules)

    patch.setattr(PartialHits, "collect", collect)


def count_no_block_for_the_copy(patch: pytest.MonkeyPatch) -> None:
    """Let a request in whose copy nobody has memory for."""
    original = AscendHybridKVCacheCoordinator.get_num_blocks_to_allocate

    def get_num_blocks_to_allocate(self, **kwargs) -> int:
        blocks, total = kwargs["new_computed_blocks"], kwargs["total_computed_tokens"]
        return original(self, **kwargs) - len(copied_groups(self.groups.prefix, blocks, total))

    patch.setattr(
        AscendHybridKVCacheCoordinator, "get_num_blocks_to_allocate", get_num_blocks_to_allocate
    )


def never_make_the_copies(patch: pytest.MonkeyPatch) -> None:
    """Forget to tell the worker."""
    original = Ledger.copies_to_tell

    def copies_to_tell(self) -> list:
        original(self)
        return []

    patch.setattr(Ledger, "copies_to_tell", copies_to_tell)


def keep_granules_of_evicted_blocks(patch: pytest.MonkeyPatch) -> None:
    """Reuse a block's memory and leave its granules in the index."""
    patch.setattr(GranuleIndex, "evict", no_op)


def name_small_blocks_without_their_place(patch: pytest.MonkeyPatch) -> None:
    """Give all blocks of a granule the granule's name."""

    def __getitem__(self, ordinal: int):
        end = (ordinal + 1) * self._block_tokens
        return self._block_hashes[-(-end // self._hash_tokens) - 1]

    patch.setattr(BlockNames, "__getitem__", __getitem__)


def forget_the_end_of_the_chunk(patch: pytest.MonkeyPatch) -> None:
    """Keep the state of kept boundaries only."""
    original = SparseState._rows_read

    def _rows_read(self, group):
        rows_read = original(self, group)

        def without_the_end(request_id, first_ordinal, num_main_tokens, num_tokens):
            read = rows_read(request_id, first_ordinal, num_main_tokens, num_tokens)
            return list(read)[:-1] if len(read) > 1 else read

        return without_the_end

    patch.setattr(SparseState, "_rows_read", _rows_read)


def trust_drafts_in_sparse_state(patch: pytest.MonkeyPatch) -> None:
    """Keep the state for the case that no draft is rejected."""
    original = SparseState.__init__

    def __init__(self, *args) -> None:
        original(self, *args)
        self._num_unconfirmed = -self._num_unconfirmed

    patch.setattr(SparseState, "__init__", __init__)


def release_spare_state_at_once(patch: pytest.MonkeyPatch) -> None:
    """Give the state of spare tails away before the step that writes it has been dispatched."""
    original = RankedCoordinator.allocate_new_blocks

    def allocate_new_blocks(self, *args, **kwargs):
        new_blocks = original(self, *args, **kwargs)
        self.sparse_state.release_spares()
        return new_blocks

    patch.setattr(RankedCoordinator, "allocate_new_blocks", allocate_new_blocks)


BUGS = (
    Bug(share_instead_of_copying, "dsv4-rows-plain-partial-0", ANY),
    Bug(copy_a_block_that_ends_before_the_hit, "dsv4-rows-plain-partial-0"),
    Bug(free_the_source_before_dispatch, "dsv4-rows-plain-best", ANY),
    Bug(never_make_the_copies, "dsv4-rows-mtp1-partial-0"),
    Bug(keep_granules_of_evicted_blocks, "dsv4-rows-plain-partial-0", ANY),
    Bug(name_small_blocks_without_their_place, "dsv4-rows-plain-partial-0", ANY),
    Bug(forget_the_end_of_the_chunk, "dsv4-rows-plain-partial-sparse-0"),
    Bug(trust_drafts_in_sparse_state, "dsv4-rows-mtp3-partial-sparse-0"),
    Bug(release_spare_state_at_once, "dsv4-rows-plain-best", (*ANY, AttributeError)),
)


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_the_oracle_catches(
    bug: Bug, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a few thousand steps of the traffic that the bug-free code passes."""
    cell = next(c for c in grid() if str(c) == bug.cell)
    bug.plant(monkeypatch)
    with pytest.raises(bug.errors):
        hunt(cell, make_engine)


def test_the_bug_free_code_passes(make_engine: MakeEngine) -> None:
    """The same hunt finds nothing where nothing was planted."""
    for name in sorted({bug.cell for bug in BUGS}):
        hunt(next(c for c in grid() if str(c) == name), make_engine)


# Bugs that random traffic seldom meets, because other groups stand in the way: a situation each.


@pytest.fixture
def partial_engine(make_engine: MakeEngine) -> Callable[..., Engine]:
    """Build engines with hits inside blocks, chunks of 48 tokens and granules of 16."""

    def make(**switches: str) -> Engine:
        options = SchedulerOptions(num_blocks=400, max_num_batched_tokens=48, max_model_len=400)
        environment = {DSV4: "1", PARTIAL: "1", **switches}
        return make_engine(layouts.dsv4_rows_tiny, options, environment=environment)

    return make


def forget_compressed_rows(engine: Engine) -> None:
    """Evict every compressed block; the windows' tails stay."""
    pool = engine.manager.block_pool
    compressed = {
        manager.kv_cache_group_id
        for manager in engine.manager.coordinator.single_type_managers
        if isinstance(manager, CompressAttentionManager)
    }
    ids = {
        block.block_id
        for block in pool.blocks
        if block in pool.granules
        or (block.block_hash is not None and get_group_id(block.block_hash) in compressed)
    }
    assert ids
    engine.manager.evict_blocks(ids)


def meet_rows_that_are_not_written(engine: Engine, num_tokens: int) -> None:
    """Tails of a prompt are cached; its compressed rows are just being computed anew."""
    prompt = list(range(num_tokens))
    engine.add("tails", prompt, 1)
    engine.run()
    forget_compressed_rows(engine)
    engine.add("again", prompt, 1)
    engine.add("same step", prompt, 1)
    engine.step()
    engine.add("next step", prompt, 1)
    engine.run()
    engine.drain()


@pytest.mark.parametrize(
    ("plant", "num_tokens"),
    [(enter_granules_of_this_step, 40), (enter_granules_before_they_are_computed, 120)],
)
def test_rows_not_yet_written_are_never_copied(
    plant: Plant,
    num_tokens: int,
    partial_engine: Callable[..., Engine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meet_rows_that_are_not_written(partial_engine(), num_tokens)
    plant(monkeypatch)
    with pytest.raises(ContentViolation):
        meet_rows_that_are_not_written(partial_engine(), num_tokens)


def hit_with_little_memory(engine: Engine, num_free: int) -> bool:
    """A hit that ends inside blocks, while others hold all but ``num_free`` blocks.

    Returns:
        Whether the request was let in.
    """
    manager, prompt = engine.manager, list(range(190))
    engine.add("first", prompt, 1)
    engine.run()
    request = engine.add("second", [*prompt, 1000], 1)
    pool = manager.block_pool
    pool.get_new_blocks(pool.get_num_free_blocks() - num_free)
    blocks, hit = manager.get_computed_blocks(request)
    assert hit == 176
    return manager.allocate_slots(request, request.num_tokens - hit, hit, blocks) is not None


def let_in_with(make: Callable[..., Engine]) -> list[bool]:
    """Whether a hit is let in, by the number of free blocks that are not part of it."""
    idle = make(**{RETENTION: "0"})
    idle.add("first", list(range(190)), 1)
    idle.run()
    free = idle.manager.block_pool.free_block_queue
    cached = free.num_free_blocks - free.num_expendable_blocks
    return [hit_with_little_memory(make(**{RETENTION: "0"}), cached + n) for n in range(40)]


@WHERE_BLOCKS_COUNT_ROWS
def test_copies_are_counted_before_a_request_is_let_in(
    partial_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block more or less decides; where only the copies' blocks are missing, it waits."""
    let_in = let_in_with(partial_engine)
    assert let_in == sorted(let_in) and {*let_in} == {False, True}
    count_no_block_for_the_copy(monkeypatch)
    with pytest.raises(ValueError, match="Cannot get"):
        let_in_with(partial_engine)
