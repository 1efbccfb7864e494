# SPDX-License-Identifier: Apache-2.0
"""``vllm/v1/worker/cpu_model_runner.py``: drafts are judged by the kernels made for the CPU."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # not all processes have workers
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from vllm_ascend.patch.table import Patch, changes
from vllm_ascend_evaluation.models.patches.feature import DSV4_ON_CPU

_SAMPLER = "vllm.v1.sample.rejection_sampler"
_DRAFTS = "vllm.v1.spec_decode.utils"
# Module, what starts a kernel in it, the name under which vLLM puts the kernel for the CPU.
_KERNELS = (
    (_SAMPLER, "_rejection_greedy_sample", "rejection_greedy_sample_kernel"),
    (_SAMPLER, "_rejection_random_sample", "rejection_random_sample_kernel"),
    (_SAMPLER, "_expand", "expand_kernel"),
    (_SAMPLER, "_sample_recovered_tokens", "sample_recovered_tokens_kernel"),
    (_DRAFTS, "_eagle_step_slot_mapping_metadata", "eagle_step_slot_mapping_metadata_kernel"),
)
# Arguments go by name. What starts a kernel calls this one otherwise than the kernel for the CPU.
_RENAMED = {"block_table_stride": "stride"}


@changes(
    "vllm.v1.worker.cpu_model_runner:CPUModelRunner._postprocess_triton",
    DSV4_ON_CPU,
    remove_when="vLLM's CPU runner gives its kernels to what starts them",
)
def wrap_postprocess_triton(self: CPUModelRunner, *, original: Callable) -> None:
    """vLLM's CPU kernels get names that nothing reads, so drafts raise a TypeError."""
    original(self)
    for name, launcher, kernel in _KERNELS:
        module = importlib.import_module(name)
        getattr(module, launcher).kernel = _named_as_started(getattr(module, kernel))


def _named_as_started(kernel: Any) -> Any:
    """Return a kernel whose parameters have the names of what starts it."""
    function = getattr(kernel, "func", None)
    if function is None:  # Triton's own, where there is a Triton for the CPU
        return kernel
    signature = inspect.signature(function)
    started_as = {ours: theirs for theirs, ours in _RENAMED.items()}

    def call(**arguments: Any) -> Any:
        return function(**{_RENAMED.get(name, name): value for name, value in arguments.items()})

    call.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[
            p.replace(name=started_as.get(p.name, p.name)) for p in signature.parameters.values()
        ]
    )
    return type(kernel)(call)


PATCHES: tuple[Patch, ...] = (wrap_postprocess_triton,)
