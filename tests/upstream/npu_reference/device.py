# SPDX-License-Identifier: Apache-2.0
"""The device: what ``torch.npu`` and ``torch_npu`` are on an Ascend host, on the CPU.

Work is done when it is asked for, so streams and events have nothing to wait for. A tensor that is
"copied to the device" may be the same tensor; what that hides, races of copies and kernels, cannot
be shown here. Operators are in the other files; ``install`` puts everything in its place.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import types
from concurrent.futures import Future
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch

from tests.upstream.npu_reference import operators, triton_module
from tests.upstream.npu_reference.missing import missing
from tests.upstream.npu_reference.releases import differences_here

MEMORY_BYTES = 64 * 2**30
_SOC_VERSION_OF_A3 = 250
# Types of numbers that no model here has.
_OTHER_TYPES = ("float4_e2m1fn_x2", "float8_e8m0fnu", "hifloat8")


class Stream(contextlib.nullcontext):
    """A stream, or an event on one: whatever is waited for has happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def record_event(self, event: Any = None) -> Stream:
        """Return an event."""
        return event or Stream()

    def record(self, *args: Any) -> None:
        """Everything so far has been done."""

    wait = wait_event = wait_stream = synchronize = record

    def query(self) -> bool:
        """Return that nothing is outstanding."""
        return True

    def elapsed_time(self, other: Stream) -> float:
        """Return milliseconds: nothing is timed."""
        return 0.0


class _Module(types.ModuleType):
    """A module of torch_npu; operators that it does not have are named when they are called."""

    __path__: list[str] = []

    def __init__(self, name: str, **attributes: Any) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        self.__file__ = "<npu_reference>"
        self.__dict__.update(attributes)
        sys.modules[name] = self
        parent, _, own_name = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], own_name, self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("npu_", "_npu_")):
            return missing(f"{self.__name__}.{name}")
        raise AttributeError(f"{self.__name__}.{name} is not known to npu_reference")


def _torch_npu() -> types.ModuleType:
    graph = type("NPUGraph", (), {})
    npu = _Module(
        "torch.npu",
        Stream=Stream,
        Event=Stream,
        ExternalEvent=Stream,
        NPUGraph=graph,
        stream=lambda stream: stream,
        current_stream=Stream,
        default_stream=Stream,
        set_stream=lambda stream: None,
        synchronize=lambda *_: None,
        is_available=lambda: True,
        is_current_stream_capturing=lambda: False,
        device_count=lambda: 1,
        current_device=lambda: 0,
        set_device=lambda device: None,
        get_device_name=lambda device=0: "Ascend910_9362",
        get_soc_version=lambda: _SOC_VERSION_OF_A3,
        empty_cache=lambda: None,
        mem_get_info=lambda *_: (MEMORY_BYTES, MEMORY_BYTES),
        memory_stats=lambda *_: {},
        memory_reserved=lambda *_: 0,
        max_memory_allocated=lambda *_: 0,
        reset_peak_memory_stats=lambda *_: None,
        manual_seed=lambda seed: None,
        manual_seed_all=lambda seed: None,
        config=types.SimpleNamespace(),
        memory=types.SimpleNamespace(NPUPluggableAllocator=object),
    )
    root = _Module(
        "torch_npu",
        __version__="2.10.0",
        npu=npu,
        NPUStream=Stream,
        NPUGraph=graph,
        **{name: name for name in _OTHER_TYPES},
        **operators.TORCH_NPU,
    )
    _Module("torch_npu._inductor")
    _Module("torch_npu.op_plugin")
    _Module("torch_npu.op_plugin.atb")
    _Module("torch_npu.op_plugin.atb._atb_ops", _register_atb_extensions=lambda: None)
    _Module("torch_npu.profiler", dynamic_profile=missing("dynamic_profile"))
    _Module("torch_npu._C", _NPUTaskGroupHandle=object)
    hccl = types.SimpleNamespace(Options=types.SimpleNamespace)
    _Module("torch_npu._C._distributed_c10d", ProcessGroupHCCL=hccl)
    return root


def _sylvester(size: int, dtype: type = float) -> Any:
    """Return a Hadamard matrix as SciPy orders it (its documentation: Sylvester's construction)."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix.numpy().astype(dtype)


def _collectives() -> None:
    """Let the name of the NPU's collectives stand for those of the CPU.

    Some code asks for them by the device's type, whatever it is.
    """

    def gloo(store: Any, rank: int, size: int, timeout: Any) -> Any:
        return torch.distributed.ProcessGroupGloo(store, rank, size, timeout)

    torch.distributed.Backend.register_backend("hccl", gloo, devices=["cpu", "npu"])


def install(checkout: Path, torch_binding: Path) -> None:
    """Put ``vllm_ascend`` of a checkout first on the path, over this device and its operators.

    Args:
        checkout: The overlaid or plain checkout.
        torch_binding: ``csrc/torch_binding.cpp`` of the release: what operators are called with.
    """
    from tests.upstream import stub

    # As on the host of an A3; patches that look for triton find the reference kernels.
    os.environ.setdefault("SOC_VERSION", "ascend910_9391")
    import vllm.triton_utils

    triton_module.install(vllm.triton_utils)
    npu = _torch_npu()
    torch.utils.rename_privateuse1_backend("npu")
    _collectives()
    _on_the_cpu()
    operators.register(torch_binding)
    sys.modules["vllm_ascend.vllm_ascend_C"] = types.ModuleType("vllm_ascend.vllm_ascend_C")
    stub.install(checkout, npu=npu.npu)
    importlib.import_module("scipy.linalg").hadamard = _sylvester

    from vllm_ascend.platform import NPUPlatform

    NPUPlatform.device_type = NPUPlatform.device_name = "cpu"
    NPUPlatform.dispatch_key = "CPU"
    NPUPlatform.__getattr__ = lambda self, name: getattr(torch.npu, name)
    NPUPlatform.is_pin_memory_available = classmethod(lambda cls: False)

    import vllm_ascend.patch.platform
    import vllm_ascend.patch.worker  # noqa: F401 - installs the patches
    import vllm_ascend.worker.worker as worker

    init_device = worker.NPUWorker._init_device

    def init_cpu(self: Any) -> torch.device:
        init_device(self)
        return torch.device("cpu")

    worker.NPUWorker._init_device = init_cpu
    with contextlib.suppress(ModuleNotFoundError):  # of earlier releases
        warmup = importlib.import_module("vllm_ascend.model_executor.warmup.kernel_warmup")
        warmup.kernel_warmup = lambda worker: None  # there is nothing to compile
    _answer_later()


def register_plugins() -> None:
    """Do what vLLM does by vllm-ascend's entry points, where it is not installed."""
    import vllm_ascend

    vllm_ascend.register_model()
    vllm_ascend.register_connector()


def compute_in_fp32() -> None:
    """Let caches that are bf16 whatever the model's type be fp32, to compare tokens exactly.

    Beside int8 weights vllm-ascend takes 16 bits only, because its kernels do.
    """
    here = differences_here()
    module, name = here.int8_config
    int8 = getattr(importlib.import_module(module), name)
    beside_int8 = [*int8.get_supported_act_dtypes(), torch.float32]
    int8.get_supported_act_dtypes = classmethod(lambda cls: beside_int8)

    module, name = here.window_cache
    window = getattr(importlib.import_module(module), name)

    def fp32_window(*args: Any, dtype: torch.dtype, **kwargs: Any) -> torch.nn.Module:
        return window(*args, dtype=torch.float32, **kwargs)

    setattr(sys.modules[module], name, fp32_window)
    module, *functions = here.rotations
    for function in functions:
        _rotate_in_own_type(importlib.import_module(module), function)


def _rotate_in_own_type(module: types.ModuleType, name: str) -> None:
    """Let a product with the Hadamard matrix, which is bf16, be one of the factor's type."""
    rotate = getattr(module, name)
    setattr(module, name, lambda x, hadamard: rotate(x, hadamard.to(x.dtype)))


def _on_the_cpu() -> None:
    """Let custom operators that vllm-ascend registers for the NPU run, and pinned memory be any."""
    import vllm.model_executor.models.registry as registry
    import vllm.utils.torch_utils as torch_utils

    register = torch_utils.direct_register_custom_op

    def for_the_cpu(*args: Any, dispatch_key: str | None = None, **kwargs: Any) -> None:
        register(*args, dispatch_key="CPU", **kwargs)

    torch_utils.direct_register_custom_op = for_the_cpu
    torch.Tensor.pin_memory = torch.Tensor.npu = lambda tensor, device=None: tensor
    # A process of its own would look for an NPU again.
    registry._run_in_subprocess = lambda function: function()


def _answer_later() -> None:
    """Let no step have answered when the next one is scheduled ahead of it.

    A device has hardly begun then; here the answer may be there. vLLM 0.20.2 would schedule by it,
    and its runner take rejected drafts off a second time (``GPUModelRunner._update_states``):
    positions of tokens and of rows come apart, with a prefix cache and without. In vLLM 0.23.0 no
    answer is there before it is asked for.
    """
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    sample_tokens = UniProcExecutor.sample_tokens

    @functools.wraps(sample_tokens)
    def sample_later(*args: Any, **kwargs: Any) -> Any:
        answer = sample_tokens(*args, **kwargs)
        if isinstance(answer, Future):
            answer.done = lambda: False  # type: ignore[method-assign]
        return answer

    UniProcExecutor.sample_tokens = sample_later
