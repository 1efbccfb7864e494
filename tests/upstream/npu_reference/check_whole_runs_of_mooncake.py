# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout on the CPU (see real_runs): one engine prefills, another one decodes.

vllm-ascend's hybrid Mooncake connector between them. Rows that are pulled carry the tags of those
that lie there.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.upstream.npu_reference import remote_memory
from tests.upstream.npu_reference.check_planted_faults import wrap
from tests.upstream.npu_reference.check_whole_runs import BEST
from tests.upstream.npu_reference.engine import Engine, answered
from tests.upstream.npu_reference.instances import (
    Answer,
    Instance,
    empty_cache,
    instances,
    num_read,
    without_cache,
)
from tests.upstream.npu_reference.remote_memory import RemoteMemory, num_bytes_pulled
from tests.upstream.npu_reference.tags import TagError
from tests.upstream.npu_reference.tier_tags import follow_tier

PORTS = range(18100, 18500)
PREFILLS = {"do_remote_decode": True}
GROUPS = range(7)
TIER = {
    "kv_connector": "GranuleTierConnector",
    "kv_connector_extra_config": {
        "backend": "host",
        "gib": 0.5,
        "staging_mib": 64,
        "load_seconds": 300,
        "least_gain_tokens": 0,
    },
}
_STEPS_TO_HEAR = 60


def free_port() -> int:
    """Return a port that was free a moment ago."""
    first = os.getpid() % len(PORTS)  # another process that looks for one now begins elsewhere
    for port in (*PORTS[first:], *PORTS[:first]):
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)):
                return port
    raise OSError(f"no port of {PORTS} is free")


def engine_of_pair(
    folder: Path,
    role: str,
    port: int,
    *,
    rows: int = 32,
    policy: str = "fail",
    fault: Callable[[], None] | None = None,
    tier: Literal["first", "behind"] | None = None,
    **settings: Any,
) -> Engine:
    """Make an engine that prefills or decodes.

    Args:
        folder: Of both.
        role: ``kv_producer`` or ``kv_consumer``.
        port: Where the one that prefills is asked.
        rows: Of a compressed block.
        policy: What becomes of a request that could not be pulled.
        fault: Is planted first.
        tier: Where in a ``MultiConnector`` it has a tier in host memory, if it has one.
        settings: Of the engine.
    """
    from vllm.config import KVTransferConfig

    os.environ["VLLM_HOST_IP"] = "127.0.0.1"
    remote_memory.stand_in(folder)
    if fault is not None:
        fault()
    sizes = {"tp_size": 1, "dp_size": 1}
    common = {"kv_role": role, "kv_load_failure_policy": policy}
    mooncake = {
        "kv_connector": "MooncakeHybridConnector",
        "kv_port": port,
        "kv_connector_extra_config": {"prefill": sizes, "decode": sizes},
    }
    transfer = KVTransferConfig(**common, **mooncake)
    if tier is not None:
        parts = [{**common, **mooncake}, {**common, **TIER}]
        parts = parts[::-1] if tier == "first" else parts
        transfer = KVTransferConfig(
            **common,
            kv_connector="MultiConnector",
            kv_port=port,
            kv_connector_extra_config={"connectors": parts},
        )
    engine = Engine(
        rows=rows,
        switches=BEST,
        kv_transfer_config=transfer,
        disable_hybrid_kv_cache_manager=False,
        **settings,
    )
    if tier is not None:
        follow_tier(engine.tagged.memory)
    return engine


def prefill(producer: Instance, prompts: Sequence[Sequence[int]]) -> list[Answer]:
    """Let an instance prefill prompts; its answers are handed over."""
    return producer.ask(prompts, handed_over=[dict(PREFILLS) for _ in prompts])


def decode(
    consumer: Instance, prompts: Sequence[Sequence[int]], prefilled: Sequence[Answer]
) -> list[Answer]:
    """Return the answers of an instance to prompts that another one has prefilled."""
    return consumer.ask(prompts, handed_over=[answer.handed_over for answer in prefilled])


def pass_over_drafts(engine: Engine) -> None:
    """Do not compare what the draft model reads."""
    engine.tagged.checks_drafts = False


@contextmanager
def pair(folder: Path, prefilling: dict[str, Any], decoding: dict[str, Any]) -> Iterator[Any]:
    """Start an engine that prefills and one that decodes, with what is special about each."""
    port = free_port()
    with instances(
        lambda: engine_of_pair(folder, "kv_producer", port, **prefilling),
        lambda: engine_of_pair(folder, "kv_consumer", port, **decoding),
    ) as both:
        yield both


def all_free(producer: Instance, consumer: Instance) -> bool:
    """Return whether nothing holds a block, once both have heard of all pulls."""
    return becomes_free(producer) and becomes_free(consumer)


def becomes_free(instance: Instance) -> bool:
    """Return whether nothing holds a block after some steps: in them it hears of what is done."""
    for _ in range(_STEPS_TO_HEAR):
        instance.ask([[1, 2, 3]], num_tokens=1)
        if instance.call(empty_cache):
            return True
        time.sleep(0.5)
    return False


@pytest.mark.parametrize(
    ("rows", "decoding"),
    [
        (32, {}),
        (128, {}),
        # Of steps in flight 0.23.0 holds windows, and beside a connector all of their blocks.
        (32, {"async_scheduling": True, "num_gpu_blocks_override": 1000}),
        (64, {"additional_config": {"recompute_scheduler_enable": True}}),
    ],
    ids=["32", "128", "async", "recompute"],
)
def test_two_turns_are_answered_as_by_one_engine(tmp_path, rows, decoding):
    prompts, expected = map(list, zip(*answered(), strict=True))
    with pair(tmp_path, {"rows": rows}, {"rows": rows} | decoding) as (producer, consumer):
        said = decode(consumer, prompts, prefill(producer, prompts))
        assert [answer.tokens for answer in said] == expected
        # All but the last token, whichever of the two had it.
        assert [answer.num_cached for answer in said] == [len(prompt) - 1 for prompt in prompts]
        pulled = consumer.call(num_bytes_pulled)
        history = zip(prompts, expected, strict=True)
        chats = [[*prompt, *tokens, *range(20, 60)] for prompt, tokens in history]
        prefilled = prefill(producer, chats)
        assert all(
            a.num_cached for a, chat in zip(prefilled, chats, strict=True) if len(chat) > 300
        )
        again = decode(consumer, chats, prefilled)
        # Of the first turn the rows are here; windows and state are pulled anew.
        assert consumer.call(num_bytes_pulled) - pulled < 0.9 * pulled, (
            pulled,
            consumer.call(num_bytes_pulled),
        )
        assert consumer.call(num_read) > 10_000
        assert all_free(producer, consumer)
    assert [answer.tokens for answer in again] == without_cache(chats, rows=rows)


def forget(engine: Engine) -> bool:
    """Forget the KV cache, and leave the tier as it is."""
    return engine.core.scheduler.reset_prefix_cache()


@pytest.mark.parametrize(("rows", "tier"), [(32, "behind"), (128, "behind"), (128, "first")])
def test_both_with_a_tier(tmp_path, rows, tier):
    """The one that prefills loads what left its cache; the one that decodes pulls as before."""
    prompts, expected = map(list, zip(*answered(), strict=True))
    sides = {"rows": rows, "tier": tier}
    with pair(tmp_path, sides, sides) as (producer, consumer):
        for turn in range(3):
            prefilled = prefill(producer, prompts)
            said = decode(consumer, prompts, prefilled)
            assert [answer.tokens for answer in said] == expected
            if turn:
                longest = max(prefilled, key=lambda answer: answer.num_cached)
                assert longest.num_cached > 300, "it came from the tier"
            assert all_free(producer, consumer)
            assert producer.call(forget)
            if turn == 1:  # now rows of the decode side are in its tier alone
                assert consumer.call(forget)
        assert consumer.call(num_read) > 10_000


@pytest.mark.parametrize("num_drafts", [1, 3])
def test_drafts_where_it_is_decoded(tmp_path, num_drafts):
    """The one that prefills has blocks for drafts behind a prompt that it computes in parts.

    Draft rows are not compared: the last one that is pulled is of another token.
    """
    prompts, expected = map(list, zip(*answered(), strict=True))
    sides = {"num_drafts": num_drafts}
    with pair(tmp_path, sides, sides) as (producer, consumer):
        consumer.call(pass_over_drafts)
        for _ in range(2):
            said = decode(consumer, prompts, prefill(producer, prompts))
            assert [answer.tokens for answer in said] == expected
        assert consumer.call(num_read) > 10_000


def question(seed: int) -> list[int]:
    """Return a prompt of its own."""
    # While it is answered a window of 128 tokens ends: all that was pulled is read.
    return [(index * 31 + 7 * seed) % 1000 + 3 for index in range(505)]


def decode_late(folder: Path, prefilling: dict[str, Any], policy: str = "fail") -> list[int]:
    """Return the answer to a prompt that is pulled when the other side has computed many more."""
    prompt = question(0)
    sides = {"num_gpu_blocks_override": 1000, **prefilling}, {"policy": policy}
    with pair(folder, *sides) as (producer, consumer):
        prefilled = prefill(producer, [prompt])
        for seed in range(1, 9):
            producer.ask([question(seed)], num_tokens=1)
        return decode(consumer, [prompt], prefilled)[0].tokens


def test_what_is_handed_over_is_held(tmp_path):
    assert [decode_late(tmp_path, {})] == without_cache([question(0)], rows=32)


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_a_pull_that_comes_late(tmp_path, policy):
    """The other side has let the blocks go, and computed many more prompts into them."""
    answer = decode_late(tmp_path, {"fault": wait_for_no_pull}, policy)
    right = without_cache([question(0)], rows=32)
    assert [answer] == ([[]] if policy == "fail" else right)


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_a_pull_that_breaks_off(tmp_path, policy):
    prompts = [question(seed) for seed in range(3)]
    with pair(tmp_path, {}, {"policy": policy, "fault": break_off}) as (producer, consumer):
        said = decode(consumer, prompts, prefill(producer, prompts))
        assert all_free(producer, consumer)
    right = without_cache(prompts, rows=32)
    assert [answer.tokens for answer in said] == ([[]] * 3 if policy == "fail" else right)


# Planted faults


def break_off() -> None:
    """Let every pull end half-way."""

    def half(original, engine, session, *stretches):
        count = len(stretches[0]) // 2
        original(engine, session, *(part[:count] for part in stretches))
        return -1

    wrap(RemoteMemory, "batch_transfer_sync_read", half)


def wait_for_no_pull() -> None:
    """Let the one that prefills give up what it hands over after no time, as vLLM lets users do."""
    # Each release of vllm-ascend reads one of them.
    for name in ("NIXL", "MOONCAKE"):
        os.environ[f"VLLM_{name}_ABORT_REQUEST_TIMEOUT"] = "0"


def change_blocks(side: str, group: int, change: Callable[[list[int]], list[int]]) -> None:
    """Change the blocks of a group that are pulled from, or into."""
    from vllm_ascend.distributed.kv_transfer.kv_p2p.mooncake_hybrid_connector import (
        KVCacheRecvingThread,
    )

    def transfer(original, thread, request):
        blocks = list(request[side])
        blocks[group] = change(blocks[group])
        return original(thread, {**request, side: blocks})

    wrap(KVCacheRecvingThread, "_transfer_kv_cache_all_groups", transfer)


def free_at_once() -> None:
    """Let the one that prefills free what it hands over."""
    from vllm_ascend.distributed.kv_transfer.kv_p2p.mooncake_hybrid_connector import (
        MooncakeConnectorScheduler,
    )

    def finished(original, *args):
        _, params = original(*args)
        return False, params

    wrap(MooncakeConnectorScheduler, "request_finished_all_groups", finished)


@pytest.mark.parametrize(
    ("side", "change"),
    [
        ("local_block_ids", lambda blocks: []),
        ("remote_block_ids", lambda blocks: [block - 1 for block in blocks]),
    ],
    ids=["nothing", "another-block"],
)
def test_blocks_that_are_pulled_wrong(tmp_path, side, change):
    """Of every group."""
    for group in GROUPS:
        decoding = {"fault": lambda group=group: change_blocks(side, group, change)}
        with pair(tmp_path, {}, decoding) as (producer, consumer):
            prefilled = prefill(producer, [question(0)])
            with pytest.raises(TagError, match=rf"read .*, group {group},"):
                decode(consumer, [question(0)], prefilled)


def test_blocks_that_are_not_held(tmp_path):
    with pytest.raises(TagError, match="read"):
        decode_late(tmp_path, {"fault": free_at_once})
