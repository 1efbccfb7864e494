# SPDX-License-Identifier: Apache-2.0
"""On the CPU the checks pass, and fail where what they check is broken; an NPU is not at hand."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest
import torch

from vllm_ascend.npu_check import device_checks
from vllm_ascend.npu_check.outcome import Verdict
from vllm_ascend.worker.block_copies import copy_blocks
from vllm_ascend.worker.block_rows import BlockRows

CPU = torch.device("cpu")


def verdicts() -> dict[str, Verdict]:
    return {check.name: check.outcome().verdict for check in device_checks.device_checks(CPU)}


def test_without_torch_npu_there_is_no_npu():
    assert device_checks.npu() is None


@pytest.mark.parametrize(("served_on", "expected"), [("npu", "npu"), ("cpu", None)])
def test_the_npu_is_the_one_that_vllm_serves_on(served_on, expected, monkeypatch):
    torch_npu = ModuleType("torch_npu")
    torch_npu.__spec__ = ModuleSpec("torch_npu", None)
    monkeypatch.setitem(sys.modules, "torch_npu", torch_npu)
    found = SimpleNamespace(is_available=lambda: True)
    monkeypatch.setattr(torch, "npu", found, raising=False)
    platform = SimpleNamespace(device_type=served_on)
    monkeypatch.setattr(device_checks, "current_platform", platform)
    monkeypatch.setattr(torch, "device", str)  # PyTorch knows no device of this name here
    assert device_checks.npu() == expected


def test_all_pass_where_everything_is_done_at_once():
    names = ("block copies", "block tables", "draft slots")
    assert verdicts() == dict.fromkeys(names, Verdict.PASSED)


def test_tables_are_not_checked_where_vllm_ascends_are_in_force(monkeypatch):
    own = SimpleNamespace(left_out={"worker/block_table.py": "its own"})
    monkeypatch.setattr(device_checks, "running_release", lambda: own)
    assert list(verdicts()) == ["block copies", "draft slots"]


def late(pages, copies, *, pin_memory):
    """Copy what is in the source afterwards."""
    for page in pages:
        page[1] = 0
    copy_blocks(pages, copies, pin_memory=pin_memory)


def too_many(pages, copies, *, pin_memory):
    copy_blocks(pages, [*copies, copies[0]._replace(dst_block_id=9)], pin_memory=pin_memory)


@pytest.mark.parametrize("fault", (late, too_many))
def test_copies_out_of_order_or_beside_their_blocks_are_caught(fault, monkeypatch):
    monkeypatch.setattr(device_checks, "copy_blocks", fault)
    assert verdicts()["block copies"] is Verdict.FAILED


def test_an_upload_that_is_left_out_is_caught(monkeypatch):
    uploads = []

    def commit(self, num_reqs, real=BlockRows.commit_block_table):
        uploads.append(num_reqs)
        if len(uploads) != 3:
            real(self, num_reqs)

    monkeypatch.setattr(BlockRows, "commit_block_table", commit)
    assert verdicts()["block tables"] is Verdict.FAILED


def test_slots_that_the_device_computes_otherwise_are_caught(monkeypatch):
    real, calls = device_checks.write_draft_slots, []

    def write(slots, tables, positions, *, block_size):
        calls.append(None)
        real(slots, tables, positions, block_size=block_size * len(calls))

    monkeypatch.setattr(device_checks, "write_draft_slots", write)
    assert verdicts()["draft slots"] is Verdict.FAILED
