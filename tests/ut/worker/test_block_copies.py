# SPDX-License-Identifier: Apache-2.0
"""Pages are copied whole, in every raw tensor, or not at all."""

from types import SimpleNamespace

import pytest
import torch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.worker_base import WorkerWrapperBase

import vllm_ascend.patch.platform
import vllm_ascend.patch.worker  # noqa: F401 - installs the patches
from vllm_ascend.core.lookup.copy_queue import KVCacheBlockCopy
from vllm_ascend.patch.worker import patch_gpu_model_runner
from vllm_ascend.worker.block_copies import BlockCopyError, copy_blocks, unique_pages

NUM_BLOCKS = 6


def raw_tensors() -> dict[str, torch.Tensor]:
    """Two tensors of different page sizes; two layers share the first."""
    wide = torch.arange(NUM_BLOCKS * 8, dtype=torch.int8)
    narrow = torch.arange(NUM_BLOCKS * 3, dtype=torch.int8) + 50
    return {"a": wide, "b": wide, "c": narrow}


def test_layers_that_share_memory_are_copied_once():
    assert [tuple(page.shape) for page in unique_pages(raw_tensors().values(), NUM_BLOCKS)] == [
        (NUM_BLOCKS, 8),
        (NUM_BLOCKS, 3),
    ]


def test_whole_pages_move_and_nothing_else():
    tensors = raw_tensors()
    before = {name: tensor.clone().view(NUM_BLOCKS, -1) for name, tensor in tensors.items()}
    copies = [KVCacheBlockCopy(1, 4), KVCacheBlockCopy(1, 2), KVCacheBlockCopy(3, 5)]
    copy_blocks(unique_pages(tensors.values(), NUM_BLOCKS), copies)
    for name, tensor in tensors.items():
        pages = tensor.view(NUM_BLOCKS, -1)
        for block in range(NUM_BLOCKS):
            source = {4: 1, 2: 1, 5: 3}.get(block, block)
            assert torch.equal(pages[block], before[name][source]), (name, block)


@pytest.mark.parametrize(
    ("copies", "problem"),
    [
        ([(1, 6)], r"1 -> 6: blocks are 1 to 5"),
        ([(0, 1)], r"0 -> 1: blocks are 1 to 5"),
        ([(-1, 1)], r"-1 -> 1: blocks are"),
        ([(2, 2)], r"2 -> 2: the destination is a source"),
        ([(1, 2), (2, 3)], r"1 -> 2: the destination is a source"),
        ([(1, 3), (2, 3)], r"2 -> 3: the destination is written twice"),
    ],
)
def test_a_wrong_copy_is_refused_before_any_byte_moves(copies, problem):
    tensors = raw_tensors()
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    with pytest.raises(BlockCopyError, match=problem):
        copy_blocks(
            unique_pages(tensors.values(), NUM_BLOCKS), [KVCacheBlockCopy(*c) for c in copies]
        )
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())


def test_tensors_that_are_not_made_of_pages_are_refused():
    with pytest.raises(BlockCopyError, match="20 bytes is not 6 pages"):
        unique_pages([torch.zeros(20, dtype=torch.int8)], NUM_BLOCKS)


class Runner(SimpleNamespace):
    """Stands in for a model runner; only what the patched methods touch."""

    kv_cache_pages = GPUModelRunner.kv_cache_pages
    num_block_copies = GPUModelRunner.num_block_copies
    runner_only_attn_layers = frozenset()
    pin_memory = False


def step(runner: Runner, copies: list[KVCacheBlockCopy] | None, zeroed: list[int]) -> None:
    """A step in which vLLM's own method zeroes pages first."""

    def original(self, scheduler_output) -> str:
        for page in self.kv_cache_pages:
            page[zeroed] = 0
        return "corrections"

    output = SchedulerOutput.make_empty()
    assert output.kv_cache_block_copies is None
    if copies:
        output.kv_cache_block_copies = copies
    wrapped = patch_gpu_model_runner.wrap_update_states.replacement(original)
    assert wrapped(runner, output) == "corrections"


def test_a_runner_copies_behind_the_zeroing(monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_DSV4_PARTIAL_HITS", "1")
    tensors = raw_tensors()
    config = SimpleNamespace(num_blocks=NUM_BLOCKS, kv_cache_groups=[], kv_cache_tensors=[])
    runner = Runner()
    wrap = patch_gpu_model_runner.wrap_allocate_kv_cache_tensors.replacement
    allocate = wrap(lambda *args: tensors)
    assert allocate(runner, config) is tensors
    step(runner, None, zeroed=[])
    step(runner, [KVCacheBlockCopy(1, 4)], zeroed=[4])
    wide = tensors["a"].view(NUM_BLOCKS, -1)
    assert torch.equal(wide[4], wide[1]) and wide[4].any()


def test_with_nothing_set_a_runner_allocates_as_it_always_did():
    config = SimpleNamespace(num_blocks=NUM_BLOCKS, kv_cache_groups=[], kv_cache_tensors=[])
    wrap = patch_gpu_model_runner.wrap_allocate_kv_cache_tensors.replacement
    allocate = wrap(lambda *args: "anything")
    runner = Runner()
    assert allocate(runner, config) == "anything"
    assert not len(runner.kv_cache_pages)


def test_parts_of_a_row_in_tensors_of_their_own_are_pages_as_well():
    """As vllm-ascend's runner allocates latent and rope; the third part may be missing."""
    parts = tuple(torch.zeros(NUM_BLOCKS * n, dtype=torch.int8) for n in (4, 2))
    pages = unique_pages([(*parts, None), parts], NUM_BLOCKS)
    assert [tuple(page.shape) for page in pages] == [(NUM_BLOCKS, 4), (NUM_BLOCKS, 2)]


def test_a_runner_that_bypassed_the_allocator_says_so():
    with pytest.raises(BlockCopyError, match="unset VLLM_ASCEND_DSV4_PARTIAL_HITS"):
        step(Runner(), [KVCacheBlockCopy(1, 2)], zeroed=[])


class OwnRunner(Runner):
    """Inherits everything, and updates its states in its own way."""

    def execute_model(self, output: SchedulerOutput) -> str:
        return "done"


class InheritingRunner(Runner):
    def execute_model(self, output: SchedulerOutput) -> str:
        self.kv_cache_pages = unique_pages(raw_tensors().values(), NUM_BLOCKS)
        step(self, output.kv_cache_block_copies, zeroed=[])
        return "done"


def execute(runner, copies: list[KVCacheBlockCopy]) -> str:
    """What every executor calls in a worker's process."""
    wrapper = WorkerWrapperBase()
    wrapper.mm_receiver_cache = None
    wrapper.worker = SimpleNamespace(model_runner=runner, execute_model=runner.execute_model)
    output = SchedulerOutput.make_empty()
    output.kv_cache_block_copies = copies
    return wrapper.execute_model(output)


def test_a_step_does_not_go_on_without_its_copies():
    copies = [KVCacheBlockCopy(1, 4), KVCacheBlockCopy(1, 2)]
    assert execute(InheritingRunner(), copies) == "done"
    assert execute(OwnRunner(), []) == "done"
    with pytest.raises(BlockCopyError, match="OwnRunner makes no block copies"):
        execute(OwnRunner(), copies)


def test_a_runner_that_is_not_vllms_does_not_even_start():
    started = []
    foreign = SimpleNamespace(execute_model=started.append)
    with pytest.raises(BlockCopyError, match="PARTIAL_HITS=0"):
        execute(foreign, [KVCacheBlockCopy(1, 4)])
    assert not started
