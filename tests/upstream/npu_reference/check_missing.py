# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout on the CPU: what nobody has written is named when it is called."""

from __future__ import annotations

import pytest
import torch
import torch_npu
from vllm.triton_utils import triton

from tests.upstream.npu_reference.missing import MissingReferenceError


def test_an_operator_of_torch_npu():
    with pytest.raises(MissingReferenceError, match=r"torch_npu\.npu_fusion_attention has no"):
        torch_npu.npu_fusion_attention(torch.zeros(1))


def test_an_operator_of_the_release():
    with pytest.raises(NotImplementedError, match="_C_ascend::npu_gemma_rms_norm"):
        torch.ops._C_ascend.npu_gemma_rms_norm(torch.zeros(1, 4), torch.zeros(4), 1e-6)


def test_an_operator_with_other_arguments():
    with pytest.raises(RuntimeError, match="npu_hc_post"):
        torch.ops._C_ascend.npu_hc_post(torch.zeros(1), residue=torch.zeros(1))


def test_a_kernel():
    @triton.jit
    def some_kernel(x):
        """Do something."""

    with pytest.raises(MissingReferenceError, match="triton kernel some_kernel has no"):
        some_kernel[(1,)](torch.zeros(1))


def test_a_function_of_the_device():
    with pytest.raises(AttributeError, match=r"torch\.npu\.graph_pool_handle"):
        torch.npu.graph_pool_handle()
