# SPDX-License-Identifier: Apache-2.0
"""Triton's kernels: vllm-ascend's and vLLM's own code around them runs, they themselves do not."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from tests.upstream.npu_reference.missing import missing


def triton_rms_kernel(
    hidden_state: torch.Tensor,
    stride: int,
    norm_output: torch.Tensor,
    variance_epsilon: float,
    total_batch: int,
    dim: int,
    block_m: int,
) -> None:
    """Divide rows by their root mean square. Source: ``ops/triton/rms_norm.py``."""
    rows = hidden_state.float()
    norm = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + variance_epsilon)
    norm_output.copy_(norm)


def muls_add_kernel(
    x: torch.Tensor,
    y: torch.Tensor,
    output: torch.Tensor,
    scale: float,
    n_elements: int,
    n_blocks: int,
    **block_size: int,
) -> None:
    """Write ``x * scale + y``. Source: ``ops/triton/muls_add.py``."""
    output.copy_(x.float() * scale + y.float())


# Kernel -> what it does, with the arguments of a launch.
KERNELS: dict[str, Callable[..., None]] = {
    kernel.__name__: kernel for kernel in (triton_rms_kernel, muls_add_kernel)
}


class _Kernel:
    """What ``@triton.jit`` makes of a kernel: a launch calls its reference, whatever the grid."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__name__ = function.__name__
        self.fn = function

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return KERNELS.get(self.__name__) or missing(f"triton kernel {self.__name__}")


def _decorator(wrap: Callable[..., Any]) -> Callable[..., Any]:
    def decorate(*args: Any, **kwargs: Any) -> Any:
        return wrap(args[0]) if args and callable(args[0]) else wrap

    return decorate


class _Language(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


def install(triton_utils: Any) -> None:
    """Let vLLM, and vllm-ascend, find a triton whose kernels are those of this file."""
    triton = types.ModuleType("triton")
    triton.__version__ = "3.4.0"
    triton.jit = _decorator(_Kernel)
    triton.autotune = triton.heuristics = lambda *args, **kwargs: lambda kernel: kernel
    triton.Config = lambda *args, **kwargs: None
    triton.cdiv = lambda a, b: -(-a // b)
    triton.next_power_of_2 = lambda n: 1 << (n - 1).bit_length()
    properties = {"num_vectorcore": 1, "num_aicore": 1}
    utils = types.SimpleNamespace(get_device_properties=lambda device: properties)
    triton.runtime = types.SimpleNamespace(
        driver=types.SimpleNamespace(active=types.SimpleNamespace(utils=utils))
    )
    triton.language = _Language("triton.language")
    triton_utils.triton = triton_utils.importing.triton = triton
    triton_utils.tl = triton.language
    triton_utils.HAS_TRITON = triton_utils.importing.HAS_TRITON = True
