# SPDX-License-Identifier: Apache-2.0
"""Which step a request's entries, copies and loads belong to, and when they are settled."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import KVCacheBlock, get_request_block_hasher
from vllm.v1.request import RequestStatus

from tests.ut.core.helpers import make_request
from vllm_ascend.core.policy.units import KVCacheBlockCopy
from vllm_ascend.core.retention.ledger import Ledger
from vllm_ascend.core.retention.request_record import BlockCopy, RequestRecord

HASHER = get_request_block_hasher(4, sha256)


def request(name: str):
    return make_request(name, list(range(40)), HASHER)


def step_of(*names: str) -> SimpleNamespace:
    """What the scheduler tells the workers, as far as the ledger looks at it."""
    return SimpleNamespace(num_scheduled_tokens=dict.fromkeys(names, 8))


def load(ledger: Ledger, name: str) -> RequestRecord:
    """Let a request in with external tokens, in the step being scheduled."""
    ledger.load_starts(name)
    assert ledger.awaits_load(request(name), 32)
    return ledger.records[name]


def copy(ledger: Ledger, name: str, source: int, private: int) -> BlockCopy:
    record = ledger.record(name)
    record.request = request(name)
    record.copies.append(BlockCopy(KVCacheBlock(source), KVCacheBlock(private), 8))
    ledger.open(record)
    return record.copies[-1]


@pytest.mark.parametrize("has_connector", [False, True])
def test_a_step_settles_what_was_open_before_it_and_nothing_twice(has_connector):
    ledger = Ledger(has_connector=has_connector)
    one, two = ledger.record("one"), ledger.record("two")
    ledger.next_step()
    for record in (one, two, one):
        ledger.open(record)
    assert ledger.next_step() == [one, two]
    ledger.open(two)
    assert ledger.next_step() == [two]
    assert ledger.next_step() == []


def test_copies_are_told_once():
    ledger = Ledger(has_connector=False)
    copy(ledger, "a", 1, 2)
    copy(ledger, "b", 3, 4)
    assert ledger.copies_to_tell() == [KVCacheBlockCopy(1, 2), KVCacheBlockCopy(3, 4)]
    assert ledger.copies_to_tell() == []


def test_a_load_is_confirmed_by_the_output_of_its_own_step():
    ledger = Ledger(has_connector=True)
    ledger.next_step()
    loading = load(ledger, "a")
    first, second = step_of("a"), step_of("a")
    ledger.dispatch(first)
    ledger.next_step()
    assert ledger.awaits_load(loading.request, 36), "the next step is scheduled before the output"
    ledger.dispatch(second)
    assert ledger.confirm(step_of("a")) == [], "an equal output is another step's"
    assert ledger.confirm(first) == [loading] and loading.num_noted_tokens == 36
    assert ledger.confirm(first) == ledger.confirm(second) == []


def test_a_later_output_confirms_all_steps_before_it():
    ledger = Ledger(has_connector=True)
    steps, records = [], []
    for name in ("a", "b"):
        ledger.next_step()
        records.append(load(ledger, name))
        steps.append(step_of(name))
        ledger.dispatch(steps[-1])
    assert ledger.confirm(steps[1]) == records


def test_an_asynchronous_load_is_not_confirmed_by_a_step_but_by_its_arrival():
    ledger = Ledger(has_connector=True)
    ledger.next_step()
    ledger.load_starts("a")
    waiting = request("a")
    ledger.records["a"].request = waiting
    other = step_of("b")
    ledger.dispatch(other)
    assert ledger.confirm(other) == []
    waiting.status = RequestStatus.WAITING_FOR_REMOTE_KVS
    assert not ledger.awaits_load(waiting, 32), "vLLM asks once it has arrived"
    assert not ledger.records["a"].is_loading


def test_who_awaits_its_start_is_known_until_it_starts_or_ends():
    ledger = Ledger(has_connector=True)
    for name in ("starts", "ends", "waits"):
        ledger.load_starts(name)
    assert ledger.take_changes() == ledger.awaiting_start() == ["starts", "ends", "waits"]
    ledger.awaits_load(request("starts"), 32)
    ledger.forget("ends")
    assert ledger.take_changes() == ["starts", "ends"] and ledger.take_changes() == []
    assert ledger.awaiting_start() == ["waits"] and ledger.awaits_start("waits")
    ledger.load_starts("ends")
    ledger.next_step()
    assert ledger.take_changes() == [], "a new step asks about all"
    assert ledger.awaiting_start() == ["waits", "ends"]


def test_a_request_without_external_tokens_waits_for_nothing():
    ledger = Ledger(has_connector=True)
    assert not ledger.awaits_load(request("a"), 8)
    ledger.record("a")
    assert not ledger.awaits_load(request("a"), 8)


def test_who_came_behind_a_step_had_none_of_its_blocks():
    """A block that a step could not load may have been given to somebody else since."""
    ledger = Ledger(has_connector=True)
    outputs = []
    for name in ("a", "b"):
        ledger.next_step()
        ledger.open(ledger.record(name))
        outputs.append(step_of(name))
        ledger.dispatch(outputs[-1])
    ledger.confirm(outputs[0])
    assert ledger.took_part("a") and not ledger.took_part("b")
    assert ledger.took_part("unknown"), "nothing is known that speaks against it"
    ledger.confirm(outputs[1])
    assert ledger.took_part("b")


def test_sources_are_known_until_they_are_released_whatever_becomes_of_the_request():
    ledger = Ledger(has_connector=True)
    ledger.next_step()
    first = copy(ledger, "a", 1, 2)
    ledger.copies_to_tell()
    output = step_of("a")
    ledger.dispatch(output)
    second = copy(ledger, "a", 3, 4)
    del ledger.records["a"]
    assert sorted(block.block_id for block in ledger.sources()) == [1, 3]
    first.source = None
    assert [block.block_id for block in ledger.sources()] == [3]
    ledger.next_step()
    second.source = None
    assert ledger.sources() == []
