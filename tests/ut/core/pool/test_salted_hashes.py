# SPDX-License-Identifier: Apache-2.0
"""A salt never passes for an adapter where caching is changed; elsewhere hashes are vLLM's."""

import subprocess
import sys

import pytest
from vllm.lora.request import LoRARequest
from vllm.v1.core.block_pool import BlockPool

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.e2e.core import layouts
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, make_request
from vllm_ascend.prefix_cache_config import child_environment

OPTIONS = SchedulerOptions(num_blocks=50, max_model_len=64)
PROMPT = list(range(16))
ADAPTER = LoRARequest("salt", 1, "/nowhere")


def salted_and_adapted(layout) -> tuple[list[bytes], list[bytes]]:
    scheduler = build_scheduler(layout, OPTIONS)
    salted = make_request(scheduler, "salted", PROMPT, 1, cache_salt="salt")
    adapted = make_request(scheduler, "adapted", PROMPT, 1, lora=ADAPTER)
    return salted.block_hashes, adapted.block_hashes


@pytest.mark.parametrize(
    "layout, profile, told_apart",
    [
        (layouts.gemma_like, "best", True),
        (layouts.gemma_like, "stock", False),
        (layouts.full_only, "best", False),
        (layouts.full_only, "stock", False),
    ],
)
def test_only_where_caching_is_changed(monkeypatch, layout, profile, told_apart):
    monkeypatch.setenv("VLLM_ASCEND_PREFIX_CACHE_PROFILE", profile)
    salted, adapted = salted_and_adapted(layout())
    assert (salted[0] != adapted[0]) is told_apart


def test_an_engine_keeps_its_hashes_when_another_one_starts(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # else every engine has hashes of its own
    monkeypatch.setenv("VLLM_ASCEND_PREFIX_CACHE_PROFILE", "best")
    scheduler = build_scheduler(layouts.gemma_like(), OPTIONS)
    request = make_request(scheduler, "before", PROMPT, 1, cache_salt="salt")
    hasher = request._block_hasher
    build_scheduler(layouts.full_only(), OPTIONS)
    again = make_request(scheduler, "after", PROMPT, 1, cache_salt="salt")
    assert again.block_hashes != request.block_hashes
    again.block_hashes = []
    assert hasher(again) == request.block_hashes


# Events tell vLLM's keys, whenever their module is imported.
EVENTS = """
import importlib, sys
import {first}
sys.modules.pop("vllm_ascend.core.events.kv_event_queue", None) if {again} else None
events = importlib.import_module("vllm_ascend.core.events.kv_event_queue")
from tests.ut.core.pool.test_salted_hashes import *
scheduler = build_scheduler(layouts.gemma_like(), OPTIONS)
request = make_request(scheduler, "salted", PROMPT, 1, cache_salt="salt")
print(events._extra_keys(request, 0, 2, 4), request.block_hashes[0].hex())
"""


def test_events_tell_the_same_keys_in_both_orders_of_import():
    told = set()
    for first, again in (
        ("vllm_ascend.core.events.kv_event_queue", False),
        ("vllm_ascend.patch.platform", True),  # the module takes what is patched by then
    ):
        result = subprocess.run(
            [sys.executable, "-c", EVENTS.format(first=first, again=again)],
            env=child_environment({"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}),
            capture_output=True,
            text=True,
            check=True,
        )
        told.add(result.stdout.splitlines()[-1])
    assert len(told) == 1
    assert told.pop().startswith("[('salt',), None] ")


def test_blocks_of_vllms_own_pool_are_told_with_vllms_keys(monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_PREFIX_CACHE_PROFILE", "best")
    scheduler = build_scheduler(layouts.gemma_like(), OPTIONS)
    request = make_request(scheduler, "salted", PROMPT, 1, cache_salt="salt")
    pool = BlockPool(10, True, 4, enable_kv_cache_events=True)
    pool.cache_full_blocks(request, pool.get_new_blocks(4), 0, 4, 4, 0)
    (event,) = pool.take_events()
    assert event.extra_keys == [("salt",), None, None, None]
