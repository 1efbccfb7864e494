# SPDX-License-Identifier: Apache-2.0
"""What only an NPU can show. Nothing here has been run yet: see docs/overlay.md.

To be run on a machine with NPUs, over a checkout that has the overlay. The tests of a server need
one that runs, named by ``VLLM_ASCEND_SERVER`` (``http://HOST:PORT``), with DeepSeek-V4, prefix
caching, ``--enable-prompt-tokens-details`` and the profile ``best``.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import torch

from vllm_ascend.core.lookup.copy_queue import KVCacheBlockCopy
from vllm_ascend.worker.block_copies import copy_blocks
from vllm_ascend.worker.block_table import BlockTable
from vllm_ascend.worker.draft_slots import write_draft_slots

pytest.importorskip("torch_npu", reason="no NPU here", exc_type=ImportError)

URL = os.environ.get("VLLM_ASCEND_SERVER", "")
needs_server = pytest.mark.skipif(not URL, reason="VLLM_ASCEND_SERVER names no server")


def test_pages_are_copied_on_the_current_stream_in_order():
    """A copy sees what was queued before it, and what is queued behind it sees the copy."""
    pages = [torch.zeros(64, 131_072, dtype=torch.int8, device="npu") for _ in range(4)]
    for page in pages:
        page[1] = 7
    copy_blocks(pages, [KVCacheBlockCopy(1, 2), KVCacheBlockCopy(1, 3)], pin_memory=True)
    for page in pages:
        page[1] = 0
    torch.npu.synchronize()
    for page in pages:
        assert page[2:4].eq(7).all() and page[0].eq(0).all() and page[4:].eq(0).all()


def test_a_table_on_the_device_follows_the_host():
    table = BlockTable(32, 8, 4096, 64, True, torch.device("npu"))
    for row in range(8):
        table.add_row(list(range(row * 100 + 1, row * 100 + 51)), row)
    table.commit_block_table(8)
    table.append_row([999], 3)
    table.swap_row(0, 7)
    table.commit_block_table(8)
    torch.npu.synchronize()
    assert torch.equal(table.get_device_tensor(8).cpu(), table.get_cpu_tensor()[:8])


def test_draft_slots_are_those_of_the_cpu():
    generator = torch.Generator().manual_seed(0)
    tables = 1 + torch.randperm(16 * 128, generator=generator).int().view(16, 128)
    positions = torch.randint(0, 4096, (16,), generator=generator)
    slots = torch.zeros(64, dtype=torch.int32)
    slots[16:] = -1
    on_npu = slots.npu()
    write_draft_slots(slots, tables, positions, block_size=32)
    write_draft_slots(on_npu, tables.npu(), positions.npu(), block_size=32)
    assert torch.equal(on_npu.cpu(), slots)


def complete(prompt: list[int], salt: str) -> tuple[int, str]:
    """Return the cached tokens and the text of a greedy answer."""
    body: dict[str, Any] = {
        "model": httpx.get(f"{URL}/v1/models").json()["data"][0]["id"],
        "prompt": prompt,
        "max_tokens": 32,
        "temperature": 0,
        "cache_salt": salt,
    }
    answer = httpx.post(f"{URL}/v1/completions", json=body, timeout=600).raise_for_status().json()
    details = answer["usage"].get("prompt_tokens_details") or {}
    return details.get("cached_tokens") or 0, answer["choices"][0]["text"]


def tokens(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1000, 100_000, (count,), generator=generator).tolist()


@needs_server
@pytest.mark.parametrize("count", (300, 4000, 14_000, 64_530))
def test_a_repeated_prompt_hits_and_answers_alike(count):
    """With MTP a granule less is hit; the answer behind the hit is that of the cold prefill."""
    prompt, salt = tokens(count, count), f"repeat-{count}-{os.getpid()}"
    cold_hit, cold = complete(prompt, salt)
    hit, warm = complete(prompt, salt)
    assert cold_hit == 0
    assert (count - 1) // 128 * 128 - 128 <= hit <= (count - 1) // 128 * 128
    assert warm == cold


@needs_server
@pytest.mark.parametrize("shared", (384, 5000, 16_500, 30_001))
def test_a_prompt_that_leaves_a_prefix_answers_as_without_it(shared):
    base, salt = tokens(shared + 2000, 1), f"leave-{shared}-{os.getpid()}"
    other = base[:shared] + tokens(2000, shared)
    _, alone = complete(other, f"alone-{shared}-{os.getpid()}")
    complete(base, salt)
    hit, behind_hit = complete(other, salt)
    assert 0 < hit <= shared
    assert behind_hit == alone


@needs_server
def test_many_at_once_answer_as_one_by_one():
    prompts = [tokens(6000, 2)[:5000] + tokens(1000, seed) for seed in range(32)]
    alone = [complete(prompt, f"one-{i}-{os.getpid()}")[1] for i, prompt in enumerate(prompts)]
    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(lambda p: complete(p, f"all-{os.getpid()}")[1], prompts))
    differing = [i for i, (a, b) in enumerate(zip(alone, together, strict=True)) if a != b]
    assert not differing, f"{len(differing)} of {len(prompts)} answers differ: {differing}"
