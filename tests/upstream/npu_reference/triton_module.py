# SPDX-License-Identifier: Apache-2.0
"""Triton: vllm-ascend's and vLLM's own code around kernels runs, the kernels are references."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from tests.upstream.npu_reference.kernels import KERNELS
from tests.upstream.npu_reference.missing import missing


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
    """What kernels are written in: none is compiled, but constants beside them are made."""

    @staticmethod
    def constexpr(value: Any) -> Any:
        """Return the constant itself."""
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


def install(triton_utils: Any) -> None:
    """Let vLLM, and vllm-ascend, find a triton whose kernels are the references."""
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
        driver=types.SimpleNamespace(active=types.SimpleNamespace(utils=utils)),
        autotuner=types.SimpleNamespace(Autotuner=type("Autotuner", (), {})),  # nothing is tuned
    )
    triton.language = _Language("triton.language")
    triton_utils.triton = triton_utils.importing.triton = triton
    triton_utils.tl = triton.language
    triton_utils.HAS_TRITON = triton_utils.importing.HAS_TRITON = True
