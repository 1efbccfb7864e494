# SPDX-License-Identifier: Apache-2.0
"""Granules that a step completes are entered behind it, and none twice."""

from __future__ import annotations

import pytest
from vllm.distributed.kv_events import BlockRemoved
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher

from tests.ut.core.helpers import make_request
from tests.ut.core.real_groups import compressed, make_groups, make_plan
from vllm_ascend.core.events.announcement import PREFIX, AnnouncedGroup, HitRules
from vllm_ascend.core.events.kv_event_log import KVEventLog
from vllm_ascend.core.lookup.partial_hits import UnwrittenGranules
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.retention.request_record import RequestRecord

GRANULE = 4
REQUEST = make_request("r", list(range(64)), get_request_block_hasher(GRANULE, sha256))
HASHES = REQUEST.block_hashes


class Waiting:
    """A request with blocks of 16 tokens, four granules each."""

    def __init__(self, alignment: int = GRANULE) -> None:
        pool = self.pool = AscendBlockPool(20, True, GRANULE)
        spec = compressed(4, 4)
        (self.group,) = make_groups(spec, alignment=alignment, pool=pool, ends_inside_blocks=True)
        self.plan = make_plan(spec, alignment=alignment, hash_tokens=GRANULE)
        self.blocks = pool.get_new_blocks(4)
        self.group.manager.req_to_blocks["r"] = self.blocks
        self.index = pool.granules
        self.record = RequestRecord()
        self.granules = UnwrittenGranules(pool, self.plan)

    def collect(self, num_tokens: int) -> None:
        self.granules.collect(self.group, self.record, REQUEST, num_tokens)

    def entered(self) -> list[int]:
        """Return the granules that can be hit."""
        return [i for i, name in enumerate(HASHES) if self.index.find(0, name) is not None]


def test_nothing_can_be_hit_before_the_step_was_dispatched():
    waiting = Waiting()
    waiting.collect(11)
    assert waiting.entered() == []
    waiting.granules.enter_all()
    assert waiting.entered() == [0, 1], "[8, 12) lacks a token"
    assert waiting.index.find(0, HASHES[1]) is waiting.blocks[0]


def test_every_granule_but_a_blocks_last_is_entered_with_its_block():
    """At its end the block is shared, not copied."""
    waiting = Waiting()
    waiting.collect(40)
    waiting.granules.enter_all()
    assert waiting.entered() == [0, 1, 2, 4, 5, 6, 8, 9]
    assert waiting.index.find(0, HASHES[6]) is waiting.blocks[1]
    assert waiting.index.find(0, HASHES[8]) is waiting.blocks[2]


def test_a_later_step_goes_on_where_the_last_one_ended():
    waiting = Waiting()
    for num_tokens in (6, 6, 25, 25):
        waiting.collect(num_tokens)
        waiting.granules.enter_all()
    assert waiting.entered() == [0, 1, 2, 4, 5]
    assert waiting.index.known[waiting.blocks[0].block_id] == (0, HASHES[:3]), "each once"


@pytest.mark.parametrize(("num_tokens", "entered"), [(15, [0, 1]), (31, [0, 1, 2, 4, 5])])
def test_rows_exist_up_to_multiples_of_the_alignment(num_tokens, entered):
    """A granule of two hashes: 8 tokens."""
    waiting = Waiting(alignment=8)
    waiting.collect(num_tokens)
    waiting.granules.enter_all()
    assert waiting.entered() == entered


def test_a_request_that_ends_enters_what_its_steps_have_written():
    waiting = Waiting()
    waiting.collect(8)
    waiting.granules.enter("another")
    assert waiting.entered() == []
    waiting.granules.enter("r")
    assert waiting.entered() == [0, 1]


def test_what_will_not_be_written_is_never_entered():
    waiting = Waiting()
    waiting.collect(8)
    waiting.granules.forget("r")
    waiting.granules.enter_all()
    assert waiting.entered() == []


def test_events_tell_granules_at_once_and_take_back_what_is_not_written(monkeypatch):
    """The look-ups of the next step, whose events go out with these, find them."""
    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0")
    waiting, log = Waiting(), KVEventLog(GRANULE)
    group = AnnouncedGroup(0, PREFIX, 16, GRANULE, 0, True, False, "mla_attention", None)
    log.describe([group], HitRules(GRANULE, GRANULE, whole_blocks=16, least_gain=0))
    log.take()
    waiting.pool.event_log = log
    waiting.granules = UnwrittenGranules(waiting.pool, waiting.plan)
    waiting.collect(8)
    (stored,) = log.take()
    assert stored.block_hashes == HASHES[:2]
    waiting.granules.forget("r")
    assert log.take() == [BlockRemoved(HASHES[:2], "GPU", 0)]
