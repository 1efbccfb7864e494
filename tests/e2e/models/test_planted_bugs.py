# SPDX-License-Identifier: Apache-2.0
"""Bugs planted where bytes are written, copied and read: each shows in answers.

What the unbroken data plane answers is compared with and without cache, exactly as in
``test_cache_on_and_off.py``; here the comparison must fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
import torch

from tests.e2e.models import workloads
from tests.e2e.models.engines import Answer, Engine, engine
from tests.e2e.models.test_cache_on_and_off import DSV4, SETTINGS
from tests.release_marks import WHERE_BLOCKS_COUNT_ROWS, where_patched
from vllm_ascend.core.policy.units import KVCacheBlockCopy
from vllm_ascend.worker import block_copies, patch_gpu_model_runner
from vllm_ascend.worker.block_table import BlockTable
from vllm_ascend_evaluation.models.compressor import PagedCompressor
from vllm_ascend_evaluation.models.paged_cache import PagedCache

_OUR_COPIES = where_patched("vllm.v1.worker.gpu_model_runner:GPUModelRunner._update_states")


def questions(running: Engine) -> list[Answer]:
    """Leave a prefix between rows, between granules, and at a junction; come back to each."""
    prefix = workloads.fresh(900, seed=0)
    prompts = [prefix, *workloads.diverging(prefix, (640, 650, 771, 895)), prefix]
    return running.ask_one_by_one(prompts * 2, max_tokens=4)


@contextmanager
def wrong_block_copied() -> Iterator[None]:
    """Every page is copied from the block after the right one."""
    copy_blocks = block_copies.copy_blocks

    def shifted(pages, copies, **options):
        last = len(pages[0]) - 1
        copies = [KVCacheBlockCopy(min(source + 1, last), target) for source, target in copies]
        copy_blocks(pages, [copy for copy in copies if copy[0] != copy[1]], **options)

    with mock.patch.object(patch_gpu_model_runner, "copy_blocks", shifted):
        yield


@contextmanager
def nothing_copied() -> Iterator[None]:
    with mock.patch.object(patch_gpu_model_runner, "copy_blocks", lambda *_, **__: None):
        yield


@contextmanager
def copied_after_the_first_write() -> Iterator[None]:
    """Copies wait until a layer has written compressed rows, and so undo what it wrote."""
    waiting: list = []
    write = PagedCache.write

    def write_then_copy(self, rows, slots):
        write(self, rows, slots)
        while waiting and self.prefix.endswith(".mla"):
            block_copies.copy_blocks(*waiting.pop())

    with (
        mock.patch.object(
            patch_gpu_model_runner, "copy_blocks", lambda *what, **_: waiting.append(what)
        ),
        mock.patch.object(PagedCache, "write", write_then_copy),
    ):
        yield


@contextmanager
def row_written_one_token_early() -> Iterator[None]:
    """Row p // ratio at (p + 2) % ratio == 0."""
    compute = BlockTable.compute_slot_mapping

    def early(self, num_reqs, query_start_loc, positions):
        shift = 1 if self.compress_ratio > 1 else 0
        compute(self, num_reqs, query_start_loc, positions + shift)

    with mock.patch.object(BlockTable, "compute_slot_mapping", early):
        yield


@contextmanager
def stale_state_at_resume() -> Iterator[None]:
    """A request that resumes behind a hit finds another token's compressor state."""
    read = PagedCache.read_request

    def stale(self, index, start, end):
        rows = read(self, index, start, end)
        is_state = self.prefix.endswith("state_cache")
        return rows.roll(1, dims=0) if is_state and len(rows) > 1 else rows

    with mock.patch.object(PagedCache, "read_request", stale):
        yield


@contextmanager
def state_of_a_step_forgotten() -> Iterator[None]:
    """State is not written at the end of a step."""
    write = PagedCache.write

    def drop(self, rows, slots):
        if not self.prefix.endswith("state_cache"):
            write(self, rows, slots)

    with mock.patch.object(PagedCache, "write", drop):
        yield


@contextmanager
def window_read_one_token_off() -> Iterator[None]:
    read = PagedCache.read_request

    def shifted(self, index, start, end):
        shift = 1 if self.prefix.endswith("swa_cache") and start > 0 else 0
        return read(self, index, start - shift, end - shift)

    with mock.patch.object(PagedCache, "read_request", shifted):
        yield


@contextmanager
def overlap_lost() -> Iterator[None]:
    """The window before the open one is taken for absent."""

    def without(self, windows: torch.Tensor) -> torch.Tensor:
        before = torch.zeros_like(windows[:-1, :, : self.width])
        return torch.cat([before, windows[1:, :, self.width :]], dim=1)

    with mock.patch.object(PagedCompressor, "_overlap", without):
        yield


@pytest.fixture(scope="module")
def right(deepseek) -> list[Answer]:
    with engine(deepseek, DSV4, block_size=32, enable_prefix_caching=False) as running:
        return questions(running)


def num_wrong(deepseek, right: list[Answer]) -> int:
    switches, block_size = SETTINGS["best, 128"]
    with engine(deepseek, switches, block_size=block_size) as running:
        answers = questions(running)
    assert sum(answer.num_cached_tokens > 0 for answer in answers) >= len(answers) // 2
    return sum(not a.equals(b) for a, b in zip(answers, right, strict=True))


def test_without_a_bug_all_is_right(deepseek, right):
    assert num_wrong(deepseek, right) == 0


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(wrong_block_copied, marks=_OUR_COPIES),
        pytest.param(nothing_copied, marks=_OUR_COPIES),
        pytest.param(copied_after_the_first_write, marks=_OUR_COPIES),
        stale_state_at_resume,
        state_of_a_step_forgotten,
        window_read_one_token_off,
        overlap_lost,
    ],
)
def test_a_planted_bug_is_caught(deepseek, right, bug):
    with bug():
        assert num_wrong(deepseek, right) > 0


@WHERE_BLOCKS_COUNT_ROWS
def test_a_row_one_token_early_does_not_even_run(deepseek, right):
    """There is no row yet that could be written."""
    with row_written_one_token_early(), pytest.raises(IndexError):
        num_wrong(deepseek, right)
