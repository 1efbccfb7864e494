# SPDX-License-Identifier: Apache-2.0
"""The wire format of KV events, as a decoder with vLLM's schema and one that knows more read it."""

from __future__ import annotations

import msgspec
import pytest
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.request import Request

from tests.release_marks import WHERE_EVENTS_ARE_ARRAYS
from tests.ut.core.helpers import make_request
from vllm_ascend.core.events.announcement import PREFIX, TAIL, AnnouncedGroup
from vllm_ascend.core.events.kv_event_queue import KVEventQueue, runs
from vllm_ascend.core.layout.block_names import BlockNames
from vllm_ascend.kv_events.layout import EngineRules

FULL = AnnouncedGroup(0, PREFIX, 8, 4, 0, False, False, "full_attention", None)
WINDOW = AnnouncedGroup(1, TAIL, 4, 4, 7, False, True, "sliding_window", 8)
RULES = EngineRules(num_groups=2, alignment=8, hash_tokens=4)
HASHER = get_request_block_hasher(4, sha256)
REQUEST = make_request("r", list(range(100, 120)), HASHER)
HASHES = REQUEST.block_hashes


@pytest.fixture(autouse=True)
def _names_are_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0")


def make_queue() -> KVEventQueue:
    queue = KVEventQueue()
    queue.describe([FULL, WINDOW], RULES)
    queue.take()
    return queue


@pytest.mark.parametrize(
    ("ordinals", "expected"),
    [
        ([], []),
        ([3], [(3, 4)]),
        ([0, 1, 2], [(0, 3)]),
        ([1, 3, 4, 7], [(1, 2), (3, 5), (7, 8)]),
    ],
)
def test_runs_of_ordinals(ordinals, expected):
    assert list(runs(ordinals)) == expected


def test_a_run_has_the_hashes_tokens_and_parent_of_its_units():
    queue = make_queue()
    queue.store(1, REQUEST, HASHES, [1, 2, 4], 4)
    first, second = queue.take()
    assert first.block_hashes == HASHES[1:3]
    assert (first.parent_block_hash, first.block_size, first.group_idx) == (HASHES[0], 4, 1)
    assert first.token_ids == [104, 105, 106, 107, 108, 109, 110, 111]
    assert first.extra_keys == [None, None]
    assert (first.medium, first.lora_id, first.lora_name) == ("GPU", None, None)
    assert second.parent_block_hash == HASHES[3]
    assert second.token_ids == [116, 117, 118, 119]


def test_names_of_places_cover_the_tokens_of_their_block():
    queue = make_queue()
    queue.store(1, REQUEST, BlockNames(HASHES, 4, 2), [2, 3], 2)
    (event,) = queue.take()
    assert event.block_hashes == [HASHES[1] + b"\0\1", HASHES[1]]
    assert (event.parent_block_hash, event.block_size) == (HASHES[0], 2)
    assert event.token_ids == [104, 105, 106, 107]


def test_only_what_follows_on_in_the_same_group_and_unit_is_added():
    queue = make_queue()
    queue.store(1, REQUEST, HASHES, [0], 4)
    queue.store(1, REQUEST, HASHES, [1], 4)
    queue.store(0, REQUEST, HASHES, [2], 4)
    queue.store(0, REQUEST, HASHES, [2], 4)  # twice in a row, not one behind the other
    queue.store(0, REQUEST, BlockNames(HASHES, 4, 2), [6], 2)  # behind it, of another size
    told = [(event.group_idx, event.block_size, len(event.block_hashes)) for event in queue.take()]
    assert told == [(1, 4, 2), (0, 4, 1), (0, 4, 1), (0, 2, 1)]
    queue.store(0, REQUEST, HASHES, [3], 4)
    assert len(queue.take()) == 1, "what was taken is not touched any more"


def test_a_description_has_no_blocks_and_says_how_hits_are_found():
    queue = KVEventQueue()
    queue.describe([FULL, WINDOW], RULES)
    _, event = queue.take()
    assert (event.block_hashes, event.token_ids, event.block_size) == ([], [], 4)
    assert event.extra_keys == [
        (
            "kv_cache_group",
            "rule=tail",
            "tail_tokens=7",
            "draft=1",
            "groups=2",
            "alignment_tokens=8",
            "hash_tokens=4",
        )
    ]


def test_every_clearing_is_followed_by_the_descriptions():
    queue = KVEventQueue()
    queue.describe([FULL, WINDOW], RULES)
    descriptions = queue.take()
    queue.store(0, REQUEST, HASHES, [0], 4)
    queue.clear()
    queue.store(0, REQUEST, HASHES, [0], 4)
    stored, cleared, *again, stored_again = queue.take()
    assert isinstance(cleared, AllBlocksCleared)
    assert again == descriptions
    assert stored == stored_again


def test_removals_name_their_group():
    queue = make_queue()
    queue.remove(1, HASHES[:2])
    assert queue.take() == [BlockRemoved(HASHES[:2], medium="GPU", group_idx=1)]
    assert queue.take() == []


@WHERE_EVENTS_ARE_ARRAYS
def test_decoders_of_vllm_0_20_2_read_it_and_newer_ones_read_the_kind():
    queue = make_queue()
    queue.store(1, REQUEST, HASHES, [0], 4)
    # A draft group's successors are told under an index that no group has.
    queue.store(3, REQUEST, HASHES, [1], 4)
    window, successor = (msgspec.msgpack.encode(event) for event in queue.take())
    old = msgspec.msgpack.decode(window, type=BlockStored)
    assert (old.block_hashes, old.group_idx) == (HASHES[:1], 1)
    assert msgspec.msgpack.decode(window)[-2:] == ["sliding_window", 8]
    assert msgspec.msgpack.decode(successor, type=BlockStored).group_idx == 3
    assert "sliding_window" not in msgspec.msgpack.decode(successor)


def test_what_hashes_cover_besides_tokens_is_told_per_unit():
    request = Request(
        request_id="tenant",
        prompt_token_ids=list(range(12)),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        lora_request=LoRARequest("adapter", 7, "/nowhere"),
        cache_salt="salt",
        block_hasher=HASHER,
    )
    queue = make_queue()
    queue.store(0, request, request.block_hashes, [0, 1], 4)
    (event,) = queue.take()
    assert (event.lora_id, event.lora_name) == (7, "adapter")
    assert [set(keys) for keys in event.extra_keys] == [{"adapter", "salt"}, {"adapter"}]
