# SPDX-License-Identifier: Apache-2.0
"""Imports modules of a vllm-ascend checkout beside this project's, on a machine without an NPU.

Both are the package ``vllm_ascend``: what this project has is taken from here, everything else from
the checkout. What only an Ascend host provides is a module whose every name is a mock.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import MagicMock

import vllm_ascend

VARIABLE = "VLLM_ASCEND_UPSTREAM"
_ASCEND_ONLY = ("acl", "mooncake", "memcache_hybrid", "torch_npu", "torchair", "yr")


class _MockModule(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        mock = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, mock)
        return mock


class _MockFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in _ASCEND_ONLY:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _MockModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def checkout() -> Path | None:
    """Return the checkout that the environment names, if it does."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


def import_beside() -> None:
    """Make the checkout's modules importable. For a process of its own: it is not undone."""
    root = checkout()
    assert root is not None and (root / "vllm_ascend" / "platform.py").is_file(), root
    sys.meta_path.insert(0, _MockFinder())
    vllm_ascend.__path__.append(str(root / "vllm_ascend"))
