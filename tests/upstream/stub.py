# SPDX-License-Identifier: Apache-2.0
"""Makes a checkout of vllm-ascend importable without an NPU. Only for tests.

What exists on an Ascend host alone (``torch_npu``, ``torch.npu``, ...) is a mock, and says so by
being one: kernels, streams and events do nothing. Everything else is vllm-ascend's real Python.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest.mock import MagicMock

_ASCEND_HOST = (
    "acl", "fla_npu", "mooncake", "memcache_hybrid", "ms_service_metric", "pandas", "scipy",
    "torch_npu", "torchair", "xlite", "yr",
)  # fmt: skip


class _Mock(types.ModuleType):
    __path__: list[str] = []
    __file__ = "<stub>"
    __version__ = "1.14.0"  # some library compares SciPy's

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Mocks(MetaPathFinder, Loader):
    def __init__(self) -> None:
        self._roots = {name for name in _ASCEND_HOST if importlib.util.find_spec(name) is None}

    def find_spec(self, fullname, path, target=None):
        if fullname.partition(".")[0] in self._roots:
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Mock(spec.name)

    def exec_module(self, module) -> None:
        parent, _, name = module.__name__.rpartition(".")
        if parent:
            setattr(sys.modules[parent], name, module)


class _Stream(contextlib.nullcontext):
    """A stream or an event: nothing runs, so nothing is waited for."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__()

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


def _mock_npu() -> types.ModuleType:
    npu = _Mock("torch.npu")
    npu.__spec__ = ModuleSpec("torch.npu", None)
    npu.is_available = lambda: False
    npu.device_count = npu.current_device = lambda: 0
    npu.Event = npu.ExternalEvent = npu.Stream = _Stream
    npu.current_stream = npu.stream = _Stream
    npu.NPUGraph = type("NPUGraph", (), {})
    return npu


def install(
    checkout: Path, *, device_type: str = "A3", npu: types.ModuleType | None = None
) -> None:
    """Put ``vllm_ascend`` of a checkout first on the path, and mocks where it looks for an NPU.

    Args:
        checkout: Where vllm-ascend is taken from.
        device_type: Of the Ascend host that it was built for.
        npu: What ``torch.npu`` is instead of a mock; ``torch_npu`` has been imported then.
    """
    sys.path.insert(0, str(checkout))
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    os.environ.setdefault("VLLM_PLUGINS", "none")  # or vLLM looks for a platform itself
    import torch

    sys.meta_path.insert(0, _Mocks())
    import torch_npu
    import torchair.fx_summary
    import torchair.npu_fx_compiler  # noqa: F401 - vllm-ascend reloads it by its name

    if npu is None:
        npu = _mock_npu()
        torch_npu.NPUGraph = npu.NPUGraph
        torch_npu.NPUStream = type("NPUStream", (), {})
    torch_npu.npu = torch.npu = sys.modules["torch.npu"] = npu

    build_info = types.ModuleType("vllm_ascend._build_info")
    build_info.__device_type__ = device_type
    sys.modules["vllm_ascend._build_info"] = build_info
    import vllm.platforms

    import vllm_ascend
    from vllm_ascend.platform import NPUPlatform

    vllm_ascend._build_info = build_info
    assert Path(vllm_ascend.__file__).is_relative_to(checkout), vllm_ascend.__file__
    vllm.platforms._current_platform = NPUPlatform()
