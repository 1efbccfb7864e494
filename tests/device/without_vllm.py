# SPDX-License-Identifier: Apache-2.0
"""Lets what workers execute be imported where vLLM is not installed.

Those modules take nothing but types from it. So a module of vLLM is empty here, and every name in
it is an empty class. Nothing of it may be called.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


class _Empty(ModuleType):
    """A module in which every name is a class."""

    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of some packages, each of them empty."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self._packages:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def is_missing(package: str) -> bool:
    """Whether a package cannot be imported here."""
    try:
        return importlib.util.find_spec(package) is None
    except ModuleNotFoundError:
        return True


def stand_in_for_missing(*packages: str) -> None:
    """Let packages be imported that are not installed."""
    if missing := [package for package in packages if is_missing(package)]:
        sys.meta_path.append(_Finder(missing))
