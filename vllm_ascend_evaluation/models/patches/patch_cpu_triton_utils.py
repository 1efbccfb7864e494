# SPDX-License-Identifier: Apache-2.0
"""``vllm/utils/cpu_triton_utils.py``: drafts can be judged on the CPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from vllm_ascend.patch.table import Patch, changes
from vllm_ascend_evaluation.models.patches.feature import DSV4_ON_CPU

# What the sampler asks of kernels, in one release or another, that the stand-ins do not have.
_MODES = {
    "SYNTHETIC_MODE": "synthetic acceptance of drafts does",
    "USE_FP64_GUMBEL": "samples of drafts in double precision do",
}


@changes("vllm.utils.cpu_triton_utils:_FuncWrapper.__getitem__", DSV4_ON_CPU)
def wrap_getitem(self: Any, *args: Any, original: Callable, **kwargs: Any) -> Callable:
    """vLLM's stand-ins for rejection kernels lack arguments, so drafts raise a TypeError."""
    return _taking_what_it_knows(original(self, *args, **kwargs))


def _taking_what_it_knows(kernel: Callable) -> Callable:
    """Return the kernel without the arguments of modes that it does not have.

    They come behind the ones that it has, and mean nothing while the mode is off.
    """
    parameters = inspect.signature(kernel).parameters

    def call(*arguments: Any, **options: Any) -> Any:
        for mode in (_MODES.keys() & options.keys()) - parameters.keys():
            if options.pop(mode):
                raise NotImplementedError(f"{_MODES[mode]} not run on the CPU")
            arguments = arguments[: len(parameters) - len(options)]
        return kernel(*arguments, **options)

    return call


PATCHES: tuple[Patch, ...] = (wrap_getitem,)
