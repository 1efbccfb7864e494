# SPDX-License-Identifier: Apache-2.0
"""Hashes tell apart what rows do where caching is changed; elsewhere they are vLLM's."""

import subprocess
import sys

import pytest
import torch
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.request import Request

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.e2e.core import layouts
from vllm_ascend.core.pool.exact_hashes import KINDS_ARE_HASHED
from vllm_ascend.dry_run.scheduler import (
    SchedulerOptions,
    block_hasher,
    build_scheduler,
    make_request,
)
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
    assert (salted[0] != adapted[0]) is (told_apart or KINDS_ARE_HASHED)


def test_an_engine_keeps_its_hashes_when_another_one_starts(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # else every engine has hashes of its own
    monkeypatch.setenv("VLLM_ASCEND_PREFIX_CACHE_PROFILE", "best")
    scheduler = build_scheduler(layouts.gemma_like(), OPTIONS)
    request = make_request(scheduler, "before", PROMPT, 1, cache_salt="salt")
    hasher = request._block_hasher
    build_scheduler(layouts.full_only(), OPTIONS)
    again = make_request(scheduler, "after", PROMPT, 1, cache_salt="salt")
    assert KINDS_ARE_HASHED or again.block_hashes != request.block_hashes
    again.block_hashes = []
    assert hasher(again) == request.block_hashes


def image(name: str, at: int) -> MultiModalFeatureSpec:
    return MultiModalFeatureSpec(None, "image", name, PlaceholderRange(offset=at, length=1))


def two_images(scheduler, first: str) -> Request:
    """A prompt that ends behind two images in its second granule of four tokens."""
    return Request(
        request_id=first,
        prompt_token_ids=[1] * 6,
        mm_features=[image(first, 4), image("last", 5)],
        sampling_params=SamplingParams(max_tokens=8),
        pooling_params=None,
        block_hasher=block_hasher(scheduler),
    )


TOLD_APART = [
    (layouts.gemma_like, "best"),
    (layouts.gemma_like, "stock"),
    (layouts.full_only, "best"),
]


@pytest.mark.parametrize(("layout", "profile"), TOLD_APART)
@pytest.mark.parametrize("completes", ["answer", "chunk"])
def test_every_image_counts_in_what_is_completed_later(monkeypatch, layout, profile, completes):
    monkeypatch.setenv("VLLM_ASCEND_PREFIX_CACHE_PROFILE", profile)
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # else every engine has hashes of its own
    scheduler = build_scheduler(layout(), OPTIONS)
    cat, dog = two_images(scheduler, "cat"), two_images(scheduler, "dog")
    for request in (cat, dog):
        if completes == "answer":
            request.append_output_token_ids([2, 3])
        else:  # as a session is continued, with an image of its own
            request.mm_features.append(image("chunk's", 6))
            request._all_token_ids.extend([2, 3])
            request.update_block_hashes()
    assert len(cat.block_hashes) == 2
    assert cat.block_hashes[0] == dog.block_hashes[0]
    told_apart = (layout, profile) == TOLD_APART[0]
    assert (cat.block_hashes[1] != dog.block_hashes[1]) is (told_apart or KINDS_ARE_HASHED)


@pytest.mark.parametrize(("layout", "profile"), TOLD_APART)
def test_what_is_an_embedding_and_what_a_token_counts(monkeypatch, layout, profile):
    """vLLM 0.23.0 and later mix both in a prompt, by a mask that their hashes leave out."""
    monkeypatch.setenv("VLLM_ASCEND_PREFIX_CACHE_PROFILE", profile)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    scheduler = build_scheduler(layout(), OPTIONS)
    hashes = []
    for mask in ([True] * 4 + [False] * 4, [True] * 4 + [False, True, False, False], None):
        request = Request(
            request_id=str(mask),
            prompt_token_ids=[0] * 8,
            prompt_embeds=torch.zeros(8, 2),
            sampling_params=SamplingParams(max_tokens=8),
            pooling_params=None,
        )
        request.prompt_is_token_ids = mask
        hashes.append(block_hasher(scheduler)(request))
    mixed, other, embeddings = hashes
    told_apart = (layout, profile) == TOLD_APART[0]
    assert mixed[0] == other[0], "its tokens and embeddings are alike"
    assert (mixed[1] != other[1]) is told_apart
    assert (mixed[0] != embeddings[0]) is told_apart


# Events tell vLLM's keys, whenever their module is imported.
EVENTS = """
import importlib, sys
import {first}
sys.modules.pop("vllm_ascend.core.events.kv_event_queue", None) if {again} else None
events = importlib.import_module("vllm_ascend.core.events.kv_event_queue")
from tests.ut.core.pool.test_exact_hashes import *
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
