# SPDX-License-Identifier: Apache-2.0
"""Pages are copied whole, in every raw tensor, or not at all."""

from types import SimpleNamespace

import pytest
import torch
from vllm.config import set_current_vllm_config
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.worker_base import WorkerWrapperBase

import vllm_ascend.patch.platform
import vllm_ascend.patch.worker  # noqa: F401 - installs the patches
from tests.e2e.core import layouts
from vllm_ascend.core.policy.units import KVCacheBlockCopy
from vllm_ascend.dry_run import scheduler as factory
from vllm_ascend.dry_run.scheduler import SchedulerOptions
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


def make_runner(runner_class: type[GPUModelRunner] = CPUModelRunner) -> GPUModelRunner:
    """Return vLLM's runner with what ``initialize_kv_cache`` sets before it allocates."""
    layout, options = layouts.gemma_like(), SchedulerOptions(num_blocks=NUM_BLOCKS)
    vllm_config = factory._vllm_config(layout, options)
    with set_current_vllm_config(vllm_config):
        runner = runner_class(vllm_config, torch.device("cpu"))
    runner.kv_cache_config = factory._kv_cache_config(layout, options, vllm_config)

    def zero_block_ids(block_ids: list[int]) -> None:
        for page in runner.kv_cache_pages:
            page[block_ids] = 0

    runner._zero_block_ids = zero_block_ids  # vLLM's is a Triton kernel, none on the CPU
    return runner


def allocate(runner: GPUModelRunner) -> list[torch.Tensor]:
    """Let the runner allocate, fill every page with its block's id, return the tensors."""
    tensors = runner._allocate_kv_cache_tensors(runner.kv_cache_config)
    distinct = {tensor.data_ptr(): tensor for tensor in tensors.values()}
    pages = [tensor.view(NUM_BLOCKS, -1) for tensor in distinct.values()]
    for page in pages:
        page[:] = torch.arange(NUM_BLOCKS, dtype=torch.int8).unsqueeze(1)
    return pages


def make_output(copies: list[KVCacheBlockCopy] | None, zeroed: list[int]) -> SchedulerOutput:
    """Return a step without tokens."""
    output = SchedulerOutput.make_empty()
    assert output.kv_cache_block_copies is None
    output.new_block_ids_to_zero = zeroed
    if copies:
        output.kv_cache_block_copies = copies
    return output


@pytest.fixture(autouse=True)
def one_stage(monkeypatch):
    """No process group is needed to know that there is one pipeline stage."""
    stage = SimpleNamespace(is_last_rank=True)
    monkeypatch.setattr("vllm.v1.worker.gpu_model_runner.get_pp_group", lambda: stage)


def test_a_runner_copies_behind_the_zeroing(monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_DSV4_PARTIAL_HITS", "1")
    runner = make_runner()
    pages = allocate(runner)
    assert len(pages) == len(runner.kv_cache_pages)
    runner._update_states(make_output(None, zeroed=[]))
    runner._update_states(make_output([KVCacheBlockCopy(1, 4)], zeroed=[3, 4]))
    for page in pages:
        assert page[:, 0].tolist() == [0, 1, 2, 0, 1, 5]
        assert (page == page[:, :1]).all(), "whole pages"
    assert runner.num_block_copies == 1


def test_with_nothing_set_a_runner_allocates_as_it_always_did():
    runner = make_runner()
    tensors = runner._allocate_kv_cache_tensors(runner.kv_cache_config)
    planned = {
        name for tensor in runner.kv_cache_config.kv_cache_tensors for name in tensor.shared_by
    }
    assert set(tensors) == planned
    assert not len(runner.kv_cache_pages)


def test_parts_of_a_row_in_tensors_of_their_own_are_pages_as_well():
    """As vllm-ascend's runner allocates latent and rope; the third part may be missing."""
    parts = tuple(torch.zeros(NUM_BLOCKS * n, dtype=torch.int8) for n in (4, 2))
    pages = unique_pages([(*parts, None), parts], NUM_BLOCKS)
    assert [tuple(page.shape) for page in pages] == [(NUM_BLOCKS, 4), (NUM_BLOCKS, 2)]


def test_a_runner_that_bypassed_the_allocator_says_so():
    with pytest.raises(BlockCopyError, match="unset VLLM_ASCEND_DSV4_PARTIAL_HITS"):
        make_runner()._update_states(make_output([KVCacheBlockCopy(1, 2)], zeroed=[]))


class OwnRunner(CPUModelRunner):
    """Inherits everything, and updates its states in its own way."""

    def execute_model(self, output: SchedulerOutput) -> str:
        return "done"


class InheritingRunner(CPUModelRunner):
    """Begins a step as vLLM's runners do; there is no model to go on with."""

    def execute_model(self, output: SchedulerOutput) -> str:
        self._update_states(output)
        return "done"


def execute(runner, copies: list[KVCacheBlockCopy]) -> str:
    """What every executor calls in a worker's process."""
    wrapper = WorkerWrapperBase()
    wrapper.mm_receiver_cache = None
    wrapper.worker = SimpleNamespace(model_runner=runner, execute_model=runner.execute_model)
    return wrapper.execute_model(make_output(copies, zeroed=[]))


def test_a_step_does_not_go_on_without_its_copies(monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_DSV4_PARTIAL_HITS", "1")
    copies = [KVCacheBlockCopy(1, 4), KVCacheBlockCopy(1, 2)]
    inheriting, own = make_runner(InheritingRunner), make_runner(OwnRunner)
    (page, *_) = allocate(inheriting)
    assert execute(inheriting, copies) == "done"
    assert page[:, 0].tolist() == [0, 1, 1, 3, 1, 5]
    assert execute(own, []) == "done"
    with pytest.raises(BlockCopyError, match="OwnRunner makes no block copies"):
        execute(own, copies)


def test_a_runner_that_is_not_vllms_does_not_even_start():
    started = []
    foreign = SimpleNamespace(execute_model=started.append)
    with pytest.raises(BlockCopyError, match="PARTIAL_HITS=0"):
        execute(foreign, [KVCacheBlockCopy(1, 4)])
    assert not started
