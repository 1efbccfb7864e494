# SPDX-License-Identifier: Apache-2.0
"""At which cached tails more than one request went on."""

from vllm.v1.core.kv_cache_utils import KVCacheBlock

from vllm_ascend.core.retention.request_record import Tail, TailBlock
from vllm_ascend.core.retention.tail_uses import TailUses


def tail(block_id: int, key: bytes) -> Tail:
    return Tail(128, (TailBlock(KVCacheBlock(block_id), key, 0, 128),))


def test_a_tail_is_shared_once_two_requests_went_on_there():
    uses = TailUses()
    uses.note(tail(1, b"a"))
    assert not uses.is_shared(tail(1, b"a")) and not uses.is_shared(tail(2, b"b"))
    uses.note(tail(1, b"a"))
    assert uses.is_shared(tail(1, b"a"))


def test_a_tail_is_shared_where_somebody_left_the_prompt_of_another():
    uses = TailUses()
    uses.note_shared(tail(1, b"a"))
    assert uses.is_shared(tail(1, b"a"))


def test_a_block_that_holds_something_else_starts_anew():
    uses = TailUses()
    uses.note_shared(tail(1, b"a"))
    assert not uses.is_shared(tail(1, b"b"))
    uses.note(tail(1, b"b"))
    assert not uses.is_shared(tail(1, b"b"))


def test_the_tail_of_a_boundary_before_which_nothing_is_read_is_nobodys():
    """Compressor state that is closed needs no block, and a model may have nothing else."""
    uses, nothing = TailUses(), Tail(128, ())
    uses.note_shared(nothing)
    assert not uses.is_shared(nothing)
