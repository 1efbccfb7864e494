# SPDX-License-Identifier: Apache-2.0
"""``vllm/utils/cpu_triton_utils.py``: drafts can be judged on the CPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from vllm_ascend.patch.features import DSV4_ON_CPU
from vllm_ascend.patch.table import Patch, changes

_SYNTHETIC = "SYNTHETIC_MODE"


@changes("vllm.utils.cpu_triton_utils:_FuncWrapper.__getitem__", DSV4_ON_CPU)
def wrap_getitem(original: Callable) -> Callable:
    """vLLM's stand-ins for the rejection kernels do not take the arguments of synthetic acceptance
    that its sampler passes: every draft on the CPU ends in a TypeError."""

    def __getitem__(self: Any, grid: Any) -> Callable:
        return _taking_what_it_knows(original(self, grid))

    return __getitem__


def _taking_what_it_knows(kernel: Callable) -> Callable:
    """Return the kernel without the arguments of synthetic acceptance, which it does not have.

    They come behind the ones that it has, and mean nothing while that mode is off.
    """
    parameters = inspect.signature(kernel).parameters

    def call(*arguments: Any, **options: Any) -> Any:
        if _SYNTHETIC in options and _SYNTHETIC not in parameters:
            if options.pop(_SYNTHETIC):
                raise NotImplementedError("synthetic acceptance of drafts does not run on the CPU")
            arguments = arguments[: len(parameters) - len(options)]
        return kernel(*arguments, **options)

    return call


PATCHES: tuple[Patch, ...] = (wrap_getitem,)
