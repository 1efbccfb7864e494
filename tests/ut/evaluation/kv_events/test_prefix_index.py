# SPDX-License-Identifier: Apache-2.0
"""What an index makes of events, one convention at a time. Names are small numbers here."""

from __future__ import annotations

import pytest
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored

from vllm_ascend.kv_events.layout import KVEventError
from vllm_ascend_evaluation.kv_events.prefix_index import PrefixIndex
from vllm_ascend_evaluation.kv_events.probe import Image

UNIT = 4
TOKENS = list(range(100, 140))


def described(
    group: int,
    rule: str = "prefix",
    *,
    unit: int = UNIT,
    tail: int = 0,
    draft: int = 0,
    groups: int = 1,
    alignment: int = UNIT,
    hashed: int = UNIT,
) -> BlockStored:
    facts = {
        "rule": rule,
        "tail_tokens": tail,
        "draft": draft,
        "groups": groups,
        "alignment_tokens": alignment,
        "hash_tokens": hashed,
    }
    keys = ("kv_cache_group", *(f"{name}={value}" for name, value in facts.items()))
    return BlockStored([], None, [], unit, None, "GPU", None, [keys], group)


def stored(names, first=0, *, group=0, unit=UNIT, parent=None, tokens=None, keys=None):
    """Units of ``TOKENS`` from unit ``first`` on."""
    if parent is None and first:
        parent = names[0] - 1
    taken = (TOKENS if tokens is None else tokens)[first * unit : (first + len(names)) * unit]
    return BlockStored(list(names), parent, taken, unit, None, "GPU", None, keys, group)


def removed(names, group=0):
    return BlockRemoved(list(names), "GPU", group)


def index_of(*events) -> PrefixIndex:
    index = PrefixIndex()
    index.apply(events)
    return index


def test_the_longest_run_from_the_start_is_hit():
    index = index_of(described(0), stored([1, 2, 3]), stored([5], first=4))
    assert index.longest_hit(TOKENS) == 12
    assert index.longest_hit(TOKENS[:11]) == 8
    assert index.longest_hit([*TOKENS[:5], 0, *TOKENS[6:]]) == 4


def test_the_last_token_of_a_prompt_is_always_computed():
    index = index_of(described(0), stored([1, 2, 3]))
    assert index.longest_hit(TOKENS[:12]) == 8
    assert index.longest_hit(TOKENS[:13]) == 12
    assert index.longest_hit([]) == index.longest_hit([100]) == 0


def test_what_is_removed_is_not_hit_until_it_is_stored_again():
    index = index_of(described(0), stored([1, 2, 3]), removed([2]))
    assert index.longest_hit(TOKENS) == 4
    index.apply([stored([2], first=1)])
    assert index.longest_hit(TOKENS) == 12


def test_every_announced_copy_has_to_go():
    """vLLM itself announces each of several copies."""
    index = index_of(described(0), stored([1, 2]), stored([1, 2]), removed([2]))
    assert index.longest_hit(TOKENS) == 8
    index.apply([removed([2])])
    assert index.longest_hit(TOKENS) == 4


def test_cleared_means_everything_but_the_description():
    index = index_of(described(0), stored([1, 2]), AllBlocksCleared())
    assert index.longest_hit(TOKENS) == 0
    assert index.is_ready
    index.apply([stored([1])])
    assert index.longest_hit(TOKENS) == 4


def test_nothing_is_a_hit_before_all_groups_are_described():
    index = index_of(described(0, groups=2), stored([1]), stored([1], group=1))
    assert not index.is_ready
    assert index.longest_hit(TOKENS) == 0
    index.apply([described(1, groups=2)])
    assert index.longest_hit(TOKENS) == 4


def test_plain_vllm_describes_nothing():
    index = PrefixIndex(described=False)
    assert index.longest_hit(TOKENS) == 0
    index.apply([stored([1, 2])])
    assert index.longest_hit(TOKENS) == 8


def test_a_tail_is_needed_at_the_end_only():
    index = index_of(
        described(0, groups=2),
        described(1, "tail", tail=7, groups=2),
        stored([1, 2, 3, 4, 5]),
        stored([3, 4], first=2, group=1),
    )
    assert index.longest_hit(TOKENS) == 16
    index.apply([removed([3], group=1)])
    assert index.longest_hit(TOKENS) == 0


def test_a_tail_that_a_group_has_never_told_of_is_not_there():
    index = index_of(described(0, groups=2), described(1, "tail", tail=1, groups=2), stored([1]))
    assert index.longest_hit(TOKENS) == 0


@pytest.mark.parametrize("name", [lambda n: n, lambda n: n.to_bytes(32, "big")])
def test_a_block_inside_a_granule_is_named_by_the_granule_and_its_place(name):
    placed = [1 << 16 | 2, 1 << 16 | 3]
    if isinstance(name(1), bytes):
        placed = [name(1) + place.to_bytes(2, "big") for place in (2, 3)]
    names = [*placed, name(1)]
    tail = BlockStored(names, None, TOKENS[1:4], 1, None, "GPU", None, None, 1)
    index = index_of(
        described(0, groups=2),
        described(1, "tail", unit=1, tail=3, groups=2),
        stored([name(1)]),
        tail,
    )
    assert index.longest_hit(TOKENS) == 4
    index.apply([removed([names[1]], group=1)])
    assert index.longest_hit(TOKENS) == 0


def test_a_draft_groups_block_serves_those_who_go_on_alike():
    index = index_of(
        described(0, groups=2),
        described(1, "tail", tail=3, draft=1, groups=2),
        stored([1, 2]),
        stored([2], first=1, group=1),
        stored([3], first=2, group=1 + 2),
    )
    assert index.longest_hit(TOKENS) == 8
    assert index.longest_hit([*TOKENS[:9], 0, 0, 0]) == 0
    assert index.longest_hit(TOKENS[:11]) == 0, "the granule behind it is not complete"


def test_hits_are_aligned():
    index = index_of(described(0, alignment=8), stored([1, 2, 3]))
    assert index.longest_hit(TOKENS) == 8


def test_tenants_are_apart():
    salted = stored([1, 2], keys=[("adapter", "salt"), ("adapter",)])
    index = index_of(described(0), salted)
    assert index.longest_hit(TOKENS) == 0
    assert index.longest_hit(TOKENS, cache_salt="salt") == 0
    assert index.longest_hit(TOKENS, lora_name="adapter", cache_salt="other") == 0
    assert index.longest_hit(TOKENS, lora_name="adapter", cache_salt="salt") == 8


def test_images_are_told_apart_by_identifier_and_place():
    # As decoders deliver them: inner tuples are lists.
    index = index_of(described(0), stored([1, 2], keys=[(["image", 2],), (["image", -2],)]))
    assert index.longest_hit(TOKENS, images=[Image("image", 2, 4)]) == 8
    assert index.longest_hit(TOKENS, images=[Image("image", 3, 4)]) == 0
    assert index.longest_hit(TOKENS, images=[Image("other", 2, 4)]) == 0
    assert index.longest_hit(TOKENS) == 0


def test_other_tiers_are_passed_over():
    """Offloading connectors announce hashes without tokens, in a medium of their own."""
    index = index_of(described(0), stored([1, 2]), BlockRemoved([1], "CPU", 0))
    index.apply([BlockStored([3], None, [], 4, None, "CPU", None)])
    assert index.longest_hit(TOKENS) == 8


def test_a_rule_that_cannot_be_followed_promises_nothing():
    index = index_of(described(0, groups=2), described(1, "other", groups=2), stored([1]))
    assert index.longest_hit(TOKENS) == 0


def test_an_event_that_contradicts_itself_is_refused():
    with pytest.raises(KVEventError, match="2 blocks of 4 tokens do not have 4 tokens"):
        index_of(BlockStored([1, 2], None, TOKENS[:4], 4, None, "GPU", None))


def test_a_description_that_cannot_be_read_is_refused():
    event = BlockStored([], None, [], 4, None, "GPU", None, [("kv_cache_group", "rule=prefix")], 0)
    with pytest.raises(KVEventError, match="cannot be read"):
        index_of(event)


def test_an_event_of_stock_vllm_without_blocks_says_nothing():
    index = index_of(BlockStored([], 7, TOKENS[:4], 4, None, "GPU", None, None, 1))
    assert not index.is_ready
