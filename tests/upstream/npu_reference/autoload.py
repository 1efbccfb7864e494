# SPDX-License-Identifier: Apache-2.0
"""Puts the device and the tags in place in every process that imports vLLM.

``vllm serve`` starts its processes itself, so the hook is where every Python looks at its start: a
``sitecustomize`` on the path (see host.py) calls :func:`begin`. It must cost nothing where vLLM is
not imported: vLLM's processes start helpers that never do.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any


class _AfterImport(MetaPathFinder):
    """Finds one module as usual, once, and has something done when it has been imported."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_then(module: ModuleType) -> None:
                with _without_plugins():
                    execute(module)
                self._then()

            spec.loader.exec_module = execute_and_then  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _without_plugins() -> Iterator[None]:
    """Keep vLLM from its platform: from 0.30.0 on it asks what one can do while it is imported."""
    plugins = os.environ.get("VLLM_PLUGINS")
    os.environ["VLLM_PLUGINS"] = "none"
    yield
    if plugins is None:
        del os.environ["VLLM_PLUGINS"]
    else:
        os.environ["VLLM_PLUGINS"] = plugins


def begin(checkout: Path, torch_binding: Path) -> None:
    """Let this process find an NPU when it imports vLLM, and its worker check every row.

    Args:
        checkout: The overlaid or plain checkout.
        torch_binding: See :func:`tests.upstream.npu_reference.device.install`.
    """
    then = functools.partial(_install, checkout, torch_binding)
    sys.meta_path.insert(0, _AfterImport("vllm", then))


def _install(checkout: Path, torch_binding: Path) -> None:
    from tests.upstream.npu_reference import device

    device.install(checkout, torch_binding)
    device.compute_in_fp32()
    # vLLM finds its platform by the entry points, as on a real host.
    sys.modules["vllm.platforms"]._current_platform = None  # type: ignore[attr-defined]

    from vllm_ascend.worker.worker import NPUWorker

    warm_up = NPUWorker.compile_or_warm_up_model

    @functools.wraps(warm_up)
    def tag_from_now_on(self: Any) -> Any:
        """Dummy steps are over: from the first request on every row is checked."""
        from tests.upstream.npu_reference.tagged_runner import TaggedRunner

        times = warm_up(self)
        self.tagged = TaggedRunner(self.model_runner)
        return times

    NPUWorker.compile_or_warm_up_model = tag_from_now_on
