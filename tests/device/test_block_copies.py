# SPDX-License-Identifier: Apache-2.0
"""Copies of blocks on a device: whole pages, in the order of the stream."""

from __future__ import annotations

import pytest
import torch

from vllm_ascend.core.policy.units import KVCacheBlockCopy
from vllm_ascend.worker.block_copies import copy_blocks, unique_pages

NUM_BLOCKS = 256
COPIES = [KVCacheBlockCopy(2 * i + 1, 2 * i + 2) for i in range(100)]


def raw_tensors(seed: int) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [
        torch.randint(256, (NUM_BLOCKS * size,), dtype=torch.uint8, generator=random)
        for size in (64, 4096, 33_344)
    ]


@pytest.mark.parametrize("pin_memory", [True, False])
def test_pages_are_copied_as_on_the_cpu(device, keep_busy, pin_memory):
    ours, theirs = [tensor.to(device) for tensor in raw_tensors(1)], raw_tensors(1)
    keep_busy()
    copy_blocks(unique_pages(ours, NUM_BLOCKS), COPIES, pin_memory=pin_memory)
    copy_blocks(unique_pages(theirs, NUM_BLOCKS), COPIES)
    for on_device, on_cpu in zip(ours, theirs, strict=True):
        assert torch.equal(on_device.cpu(), on_cpu)


def test_a_source_that_is_overwritten_behind_the_copy_was_copied(device, keep_busy):
    [page] = unique_pages([raw_tensors(1)[2].to(device)], NUM_BLOCKS)
    before = page.cpu()
    keep_busy()
    copy_blocks([page], COPIES, pin_memory=True)
    page[[copy.src_block_id for copy in COPIES]] = 0
    after = page.cpu()
    for copy in COPIES:
        assert torch.equal(after[copy.dst_block_id], before[copy.src_block_id])
        assert not after[copy.src_block_id].any()
