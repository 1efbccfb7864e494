# SPDX-License-Identifier: Apache-2.0
"""Which tails a request leaves in the cache, with what rank, and what it remembers of them."""

import itertools
from dataclasses import replace
from typing import Any

from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher

from tests.e2e.core import layouts
from tests.ut.core.helpers import make_request as bare_request
from tests.ut.core.real_groups import make_groups, make_plan, window
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.core.policy.ranks import Rank
from vllm_ascend.core.policy.switches import PrefixCacheConfig
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.reporting.cache_stats import CacheStats
from vllm_ascend.core.retention.request_record import RequestRecord
from vllm_ascend.core.retention.tail_cache import TailCache
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, make_request

GRANULE = 4
PROMPT = bare_request("r", list(range(64)), get_request_block_hasher(GRANULE, sha256))


class OnItsWay:
    """A prompt of 64 tokens in a window of 9 with blocks of 4: a tail is two blocks.

    Hits are multiples of 8, so the replay boundary is 56.
    """

    def __init__(
        self,
        *,
        spare_tails: bool = False,
        fallback: bool = False,
        least_gain_tokens: int = 0,
        **config: Any,
    ) -> None:
        self.pool = AscendBlockPool(60, True, GRANULE)
        spec = window(4, 9)
        groups = make_groups(spec, alignment=8, pool=self.pool)
        plan = replace(
            make_plan(spec, alignment=8, hash_tokens=GRANULE),
            interval=0,
            keeps_fallback=fallback,
            config=PrefixCacheConfig(retention=0, spare_tails=spare_tails, **config),
        )
        self.blocks = self.pool.get_new_blocks(16)
        groups[0].manager.req_to_blocks["r"] = self.blocks
        self.record = RequestRecord(request=PROMPT)
        self.tails = TailCache(
            self.pool,
            groups,
            plan,
            lookahead=0,
            least_gain_tokens=least_gain_tokens,
            stats=CacheStats(),
        )

    def ranks(self) -> str:
        """One letter for each block, by ordinal: its rank, or a dot if it is not cached."""
        letters = [self.pool.rank(b).name[0] if b.block_hash else "." for b in self.blocks]
        return "".join(letters)


def test_kept_tails_roll_along_and_are_let_go():
    on = OnItsWay()
    on.tails.advance(on.record, 32)
    assert on.ranks() == "......RR........", "where it would be resumed, were it to end now"
    on.tails.advance(on.record, 60)
    assert on.ranks() == "............KK..", "the replay boundary, 56; nobody resumes at 32 now"
    on.tails.advance(on.record, 64)
    assert on.ranks() == "............KKRR"


def test_spare_tails_are_entered_at_every_boundary():
    on = OnItsWay(spare_tails=True)
    on.tails.advance(on.record, 32)
    assert on.ranks() == "SSSSSSRR........"
    on.tails.advance(on.record, 64)
    assert on.ranks() == "SSSSSSSSSSSSKKRR"


def test_a_boundary_shortly_behind_a_kept_one_is_marginal():
    """Of 64 tokens the fallback boundary is 32, and the replay boundary 24 tokens behind it."""
    on = OnItsWay(spare_tails=True, fallback=True, least_gain_tokens=24)
    on.tails.advance(on.record, 64)
    assert on.ranks() == "SSSSSSKKSSSSKKRR"
    on = OnItsWay(spare_tails=True, fallback=True, least_gain_tokens=25)
    on.tails.advance(on.record, 64)
    assert on.ranks() == "SSSSSSKKSSSSMMRR"


def test_without_spare_tails_what_was_singled_out_is_kept():
    on = OnItsWay(fallback=True, least_gain_tokens=25)
    on.tails.advance(on.record, 64)
    assert on.ranks() == "......KK....KKRR"


def test_an_end_shortly_behind_a_kept_boundary_is_marginal():
    for least_gain_tokens, ranks in ((32, "SSSSSSKKSSSSMMKK"), (33, "SSSSSSKKSSSSMMMM")):
        on = OnItsWay(spare_tails=True, fallback=True, least_gain_tokens=least_gain_tokens)
        on.tails.advance(on.record, 64)
        on.record.cached = 64
        on.tails.finish(on.record)
        assert on.ranks() == ranks


def test_an_end_is_kept_if_the_boundary_before_it_was_given_up():
    on = OnItsWay(spare_tails=True, fallback=True, least_gain_tokens=33)
    on.tails.advance(on.record, 64)
    on.pool.give_up(on.blocks[6])
    on.record.cached = 64
    on.tails.finish(on.record)
    assert on.ranks() == "SSSSSS.KSSSSMMKK"


def test_a_junction_is_kept():
    on = OnItsWay()
    on.record.junction = 24
    on.tails.advance(on.record, 64)
    assert on.ranks() == "....KK......KKRR"


def test_a_tail_with_a_hole_is_not_entered():
    on = OnItsWay(spare_tails=True)
    on.blocks[2] = on.pool.null_block
    on.tails.advance(on.record, 32)
    assert on.ranks() == "SS..SSRR........"


def test_the_end_keeps_the_last_boundary_and_returns_what_is_kept():
    on = OnItsWay()
    on.tails.advance(on.record, 64)
    on.record.cached = 64
    kept = on.tails.finish(on.record)
    assert on.ranks() == "............KKKK"
    assert [(entry.block, entry.start_token) for entry in kept] == [
        (on.blocks[12], 48),
        (on.blocks[13], 52),
        (on.blocks[14], 56),
        (on.blocks[15], 60),
    ]


def test_a_hit_keeps_the_tail_that_it_rests_on():
    on = OnItsWay(spare_tails=True)
    on.tails.advance(on.record, 32)
    later = RequestRecord()
    on.tails.keep_hit(later, on.tails.tail_of_hit([on.blocks], 16))
    assert on.ranks() == "SSKKSSRR........"
    on.tails.protect(later)
    assert on.ranks() == "SSPPSSRR........"


def test_a_window_left_by_a_chunk_is_pinned():
    on = OnItsWay(pin_swa_tokens=True, pin_min_drop_size=4)
    on.tails.advance(on.record, 8)
    on.tails.advance(on.record, 16)
    assert on.ranks() == "..RR............", "two blocks are dropped, not four"
    on.tails.advance(on.record, 64)
    # Two letters begin with P.
    assert [on.pool.rank(block) for block in on.blocks[2:4]] == [Rank.PINNED] * 2
    assert on.ranks() == "..PP........KKRR"


def test_a_prompt_of_a_million_tokens_remembers_a_hundred_tails(monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_DSV4_PARTIAL_HITS", "1")
    options = SchedulerOptions(
        num_blocks=40_000, max_num_batched_tokens=65_536, max_model_len=1_048_577
    )
    scheduler = build_scheduler(layouts.gemma_like(128, 128), options)
    coordinator = scheduler.kv_cache_manager.coordinator
    assert isinstance(coordinator, AscendHybridKVCacheCoordinator)
    assert coordinator.lcm_block_size == 128
    request = make_request(scheduler, "long", [7] * 1_048_576, 1)
    scheduler.add_request(request)
    most = 0
    while request.num_computed_tokens < 1_048_576:
        scheduler.schedule()
        most = max(most, len(coordinator.ledger.records["long"].kept))
    assert sum(coordinator.stats.kept) >= 8_192, "every boundary is kept"
    assert most <= 128
    boundaries = [tail.boundary for tail in coordinator.ledger.records["long"].kept]
    assert boundaries[-2:] == [1_048_448, 1_048_576], "the replay boundary is always among them"
    gaps = [end - start for start, end in itertools.pairwise([0, *boundaries[:-2]])]
    assert set(gaps) == {16_384}, "they are spread over the prompt"


def test_what_a_prompt_singles_out_is_decided_once_until_it_grows():
    on = OnItsWay()
    known = on.tails.prompt(on.record)
    assert on.tails.prompt(on.record) is known and known.kept == {56, 0}
    on.record.junction = 24
    assert on.tails.prompt(on.record).kept == {56, 24}
    on.record.request = bare_request(
        "r", list(range(80)), get_request_block_hasher(GRANULE, sha256)
    )
    assert on.tails.prompt(on.record).kept == {72, 24}
