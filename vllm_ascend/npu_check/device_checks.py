# SPDX-License-Identifier: Apache-2.0
"""Work of ours that is queued on a device's stream: is it done in order, and from what was meant?

On the CPU every operation is done when it is asked for, so that nothing can be out of order.
"""

from __future__ import annotations

import importlib.util
from functools import partial

import torch
from vllm.platforms import current_platform

from vllm_ascend.core.policy.units import BlockId, KVCacheBlockCopy
from vllm_ascend.npu_check.outcome import Check, CheckFailedError
from vllm_ascend.releases import running_release
from vllm_ascend.worker.block_copies import copy_blocks
from vllm_ascend.worker.block_rows import BlockRows
from vllm_ascend.worker.draft_slots import write_draft_slots

# Of A3's layout at block size 128.
_PAGE_BYTES = 131_072
_NUM_TENSORS = 4
_NUM_BLOCKS = 64
_NUM_REQUESTS = 8
_ROUNDS = 100
_OUR_TABLES = "worker/block_table.py"


def npu() -> torch.device | None:
    """Return the NPU that this process may use, ``None`` if vLLM would serve on none."""
    if importlib.util.find_spec("torch_npu") is None:
        return None
    importlib.import_module("torch_npu")  # makes torch.npu
    serves_on_npu = current_platform.device_type == "npu"

    return torch.device("npu") if serves_on_npu and torch.npu.is_available() else None


def device_checks(device: torch.device) -> list[Check]:
    """Return the checks of one device, in the order in which they are to be run."""
    copies = Check(
        "block copies",
        "a hit inside a block would read rows that were copied too early or too late",
        partial(_copies_are_in_order, device),
    )
    tables = Check(
        "block tables",
        "kernels would read and write blocks of other requests",
        partial(_tables_follow_the_host, device),
    )
    slots = Check(
        "draft slots",
        "drafts would overwrite rows of other requests",
        partial(_draft_slots_are_those_of_the_cpu, device),
    )
    has_our_tables = _OUR_TABLES not in running_release().left_out
    return [copies, tables, slots] if has_our_tables else [copies, slots]


def _copies_are_in_order(device: torch.device) -> dict[str, float]:
    """A copy sees what was queued before it, and what is queued behind it sees the copy."""
    shape = (_NUM_BLOCKS, _PAGE_BYTES)
    pages = [torch.zeros(shape, dtype=torch.int8, device=device) for _ in range(_NUM_TENSORS)]
    copies = [KVCacheBlockCopy(BlockId(1), BlockId(block)) for block in (2, 3)]
    for number in range(1, _ROUNDS + 1):
        for page in pages:
            page[1] = number
        copy_blocks(pages, copies, pin_memory=device.type != "cpu")
        for page in pages:
            page[1] = 0
        for index, page in enumerate(pages):
            if not bool(page[2:4].eq(number).all()):
                raise CheckFailedError(
                    f"round {number}: tensor {index} has other rows in its copies"
                )
            if bool(page[:2].any()) or bool(page[4:].any()):
                raise CheckFailedError(
                    f"round {number}: tensor {index} changed outside of its copies"
                )
    return {"copies": float(_ROUNDS * len(copies))}


def _tables_follow_the_host(device: torch.device) -> dict[str, float]:
    """Without waiting for uploads: rows are changed while older ones are still under way."""
    pin_memory = device.type != "cpu"
    table = BlockRows(_NUM_REQUESTS, _NUM_REQUESTS, 4096, 1, device, pin_memory, shifted=None)
    for row in range(_NUM_REQUESTS):
        table.add_row(list(range(row * 100 + 1, row * 100 + 51)), row)
    for number in range(_ROUNDS):
        table.append_row([1000 + number], number % _NUM_REQUESTS)
        table.swap_row(0, number % _NUM_REQUESTS)
        table.commit_block_table(_NUM_REQUESTS)
        on_device = table.get_device_tensor(_NUM_REQUESTS).cpu()
        if not torch.equal(on_device, table.get_cpu_tensor()[:_NUM_REQUESTS]):
            raise CheckFailedError(f"upload {number}: the device has other block ids than the host")
    return {"uploads": float(_ROUNDS)}


def _draft_slots_are_those_of_the_cpu(device: torch.device) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    tables = 1 + torch.randperm(16 * 128, generator=generator).int().view(16, 128)
    positions = torch.randint(0, 4096, (16,), generator=generator)
    slots = torch.zeros(64, dtype=torch.int32)
    slots[16:] = -1
    on_device = slots.clone().to(device)
    write_draft_slots(slots, tables, positions, block_size=32)
    write_draft_slots(on_device, tables.to(device), positions.to(device), block_size=32)
    wrong = (on_device.cpu() != slots).nonzero().view(-1).tolist()
    if wrong:
        raise CheckFailedError(f"slots {wrong} are others than on the CPU")
    return {"slots": float(len(slots))}
