# SPDX-License-Identifier: Apache-2.0
"""Granules are entered behind the step that completes them; sources of copies stay long enough."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from vllm.distributed.kv_events import BlockRemoved
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import KVCacheBlock, get_request_block_hasher

from tests.ut.core.helpers import make_request
from tests.ut.core.real_groups import Caching, compressed, make_groups, make_plan
from vllm_ascend.core.events.announcement import PREFIX, AnnouncedGroup
from vllm_ascend.core.events.kv_event_log import KVEventLog
from vllm_ascend.core.layout.groups import Groups
from vllm_ascend.core.policy.ranks import Rank
from vllm_ascend.core.policy.units import KVCacheBlockCopy
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.kv_events.layout import EngineRules

GRANULE = 4
HASHER = get_request_block_hasher(GRANULE, sha256)
REQUEST = make_request("r", list(range(64)), HASHER)
HASHES = REQUEST.block_hashes


class Bench:
    """Requests in a group with blocks of 16 tokens, four granules each."""

    def __init__(self, alignment: int = GRANULE, has_connector: bool = False) -> None:
        pool = self.pool = AscendBlockPool(30, True, GRANULE)
        spec = compressed(4, 4)
        (self.group,) = make_groups(spec, alignment=alignment, pool=pool, ends_inside_blocks=True)
        plan = make_plan(spec, alignment=alignment, hash_tokens=GRANULE, ends_inside_blocks=True)
        groups = Groups((self.group,))
        self.caching = Caching(pool, groups, plan, has_connector=has_connector)
        self.ledger = self.caching.ledger
        self.hits, self.index = self.caching.partial_hits, pool.granules
        self.blocks = self.group.manager.req_to_blocks["r"] = pool.get_new_blocks(4)
        self.record = self.ledger.record("r")

    def collect(self, num_tokens: int) -> None:
        self.record.request = REQUEST
        self.hits.collect(self.record, REQUEST, num_tokens)

    def entered(self) -> list[int]:
        """Return the granules that can be hit."""
        return [i for i, name in enumerate(HASHES) if self.index.find(0, name) is not None]

    def copied(self, name: str, granule: bytes = b"") -> tuple[KVCacheBlock, KVCacheBlock]:
        """Let a request in with a copy of 8 tokens; return source and copy.

        With a granule the source holds it, and nobody needs the source for more.
        """
        (source,) = self.pool.get_new_blocks(1)
        if granule:
            self.index.enter(0, source, [granule])
            self.index.kept_until[source.block_id] = 8
        self.ledger.record(name).request = make_request(name, list(range(20)), HASHER)
        self.hits.copy(name, [(self.group, source)], 8)
        return source, self.ledger.records[name].copies[-1].private

    def tell(self, *names: str) -> SimpleNamespace:
        """Hand the copies to the workers; return the step's output."""
        output = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(names, 1))
        self.caching.take_block_copies()
        self.ledger.dispatch(output)
        return output

    def confirm(self, output: SimpleNamespace) -> None:
        for record in self.ledger.confirm(output):
            self.caching.release_copies(record)


def test_nothing_can_be_hit_before_the_step_was_dispatched():
    bench = Bench()
    bench.collect(11)
    assert bench.entered() == []
    bench.caching.new_step_starts()
    assert bench.entered() == [0, 1], "[8, 12) lacks a token"
    assert bench.index.find(0, HASHES[1]) is bench.blocks[0]


def test_every_granule_but_a_blocks_last_is_entered_with_its_block():
    """At its end the block is shared, not copied."""
    bench = Bench()
    bench.collect(40)
    bench.caching.new_step_starts()
    assert bench.entered() == [0, 1, 2, 4, 5, 6, 8, 9]
    assert bench.index.find(0, HASHES[6]) is bench.blocks[1]
    assert bench.index.find(0, HASHES[8]) is bench.blocks[2]


def test_a_later_step_goes_on_where_the_last_one_ended():
    bench = Bench()
    for num_tokens in (6, 6, 25, 25):
        bench.collect(num_tokens)
        bench.caching.new_step_starts()
    assert bench.entered() == [0, 1, 2, 4, 5]
    assert bench.index.granules_of(bench.blocks[0].block_id) == HASHES[:3], "each once"


@pytest.mark.parametrize(("num_tokens", "entered"), [(15, [0, 1]), (31, [0, 1, 2, 4, 5])])
def test_rows_exist_up_to_multiples_of_the_alignment(num_tokens, entered):
    """A granule of two hashes: 8 tokens."""
    bench = Bench(alignment=8)
    bench.collect(num_tokens)
    bench.caching.new_step_starts()
    assert bench.entered() == entered


def test_a_request_that_ends_enters_what_its_steps_have_written():
    bench = Bench()
    bench.collect(8)
    bench.caching.free("another")
    assert bench.entered() == []
    bench.caching.free("r")
    assert bench.entered() == [0, 1]


@pytest.mark.parametrize("undo", ["withdraw_unwritten", "lose"])
def test_what_will_not_be_written_is_never_entered(undo):
    bench = Bench()
    bench.collect(8)
    getattr(bench.caching, undo)("r")
    bench.caching.new_step_starts()
    bench.caching.free("r")
    assert bench.entered() == []


def test_events_tell_granules_at_once_and_take_back_what_is_not_written(monkeypatch):
    """The look-ups of the next step, whose events go out with these, find them."""
    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0")
    bench, log = Bench(), KVEventLog(GRANULE)
    group = AnnouncedGroup(0, PREFIX, 16, GRANULE, 0, True, False, "mla_attention", None)
    log.describe([group], EngineRules(1, GRANULE, GRANULE))
    log.take()
    bench.pool.event_log = log
    bench.collect(8)
    (stored,) = log.take()
    assert stored.block_hashes == HASHES[:2]
    bench.caching.withdraw_unwritten("r")
    assert log.take() == [BlockRemoved(HASHES[:2], "GPU", 0)]


def test_on_one_stream_the_next_step_releases_a_source():
    bench = Bench()
    source, private = bench.copied("a")
    assert bench.ledger.copies_to_tell() == [KVCacheBlockCopy(source.block_id, private.block_id)]
    assert source.ref_cnt == 1
    bench.caching.new_step_starts()
    assert (source.ref_cnt, private.ref_cnt, bench.ledger.sources()) == (0, 1, [])


def test_on_one_stream_the_end_of_the_request_releases_its_sources():
    bench = Bench()
    source, _ = bench.copied("a")
    bench.tell("a")
    other, _ = bench.copied("b")
    for name in ("a", "b"):
        bench.caching.free(name)
    bench.caching.new_step_starts()
    assert (source.ref_cnt, other.ref_cnt) == (0, 0), "released once"
    assert bench.ledger.copies_to_tell() == [], "nobody is told of a copy that nobody wants"


def test_beside_a_connector_only_the_steps_output_releases_a_source():
    bench = Bench(has_connector=True)
    (first, _), (second, _) = bench.copied("a"), bench.copied("b")
    one = bench.tell("a", "b")
    bench.caching.new_step_starts()
    third, _ = bench.copied("c")
    two = bench.tell("c")
    for name in ("a", "c"):
        bench.caching.free(name)
    assert [block.ref_cnt for block in (first, second, third)] == [1, 1, 1]
    bench.confirm(one)
    assert [block.ref_cnt for block in (first, second, third)] == [0, 0, 1]
    bench.confirm(one)
    bench.confirm(two)
    assert third.ref_cnt == 0 and bench.ledger.sources() == []


def test_beside_a_connector_what_was_never_handed_out_is_dropped_at_once():
    bench = Bench(has_connector=True)
    source, _ = bench.copied("a")
    bench.caching.free("a")
    assert source.ref_cnt == 0 and bench.ledger.copies_to_tell() == []


def test_a_reset_releases_what_no_request_is_left_to_read():
    bench = Bench(has_connector=True)
    bench.caching.free("r")
    source, _ = bench.copied("a")
    output = bench.tell("a")
    assert not bench.pool.reset_prefix_cache()
    assert source.ref_cnt == 1, "the request still holds its copy"
    bench.caching.free("a")
    assert bench.pool.reset_prefix_cache() and source.ref_cnt == 0
    bench.confirm(output)
    assert bench.pool.get_num_free_blocks() == bench.pool.num_gpu_blocks - 1


@pytest.mark.parametrize("has_connector", [False, True])
def test_a_source_goes_with_marginal_tails_once_its_copy_can_be_hit(has_connector):
    bench = Bench(has_connector=has_connector)
    source, private = bench.copied("a", b"one")
    needed, copy = bench.copied("b", b"two")
    output = bench.tell("a", "b")
    bench.index.enter(0, private, [b"one"])
    assert bench.pool.rank(source) is Rank.KEPT, "until the copy is certain to be made"
    bench.caching.new_step_starts()
    bench.confirm(output)
    assert (source.ref_cnt, bench.pool.rank(source)) == (0, Rank.MARGINAL)
    assert (needed.ref_cnt, bench.pool.rank(needed)) == (0, Rank.KEPT), "its copy holds nothing yet"
    assert bench.pool.rank(private) is bench.pool.rank(copy) is Rank.KEPT


def test_a_source_stays_whose_copy_is_never_made():
    bench = Bench()
    source, private = bench.copied("a", b"one")
    bench.index.enter(0, private, [b"one"])
    bench.caching.free("a")
    assert (source.ref_cnt, bench.pool.rank(source)) == (0, Rank.KEPT)


def test_the_end_of_the_request_lets_go_of_a_source_as_well():
    bench = Bench()
    source, private = bench.copied("a", b"one")
    bench.tell("a")
    bench.index.enter(0, private, [b"one"])
    bench.caching.free("a")
    assert (source.ref_cnt, bench.pool.rank(source)) == (0, Rank.MARGINAL)
