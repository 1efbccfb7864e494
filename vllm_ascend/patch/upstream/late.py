# SPDX-License-Identifier: Apache-2.0
"""Patches of modules that are not imported yet: set right after their import.

vllm-ascend's workers, models and connectors must not be imported by the processes that have no use
for them, nor before vllm-ascend imports them itself.
"""

from __future__ import annotations

import importlib
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

from vllm_ascend.patch.planner import replacement, resolve
from vllm_ascend.patch.table import Add, Patch, PatchError, Wrap, source_digest

# Module -> what of it is changed -> how, once it has been imported.
_WAITING: defaultdict[str, dict[str, Callable[[ModuleType], object]]] = defaultdict(dict)
# Target -> (original, replacement) of every patch that is set.
_SET: dict[str, tuple[Any, Any]] = {}


class _Finder(MetaPathFinder):
    """Finds the modules that are waited for; in force only as long as there are any."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in _WAITING else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    """Executes a source file as usual, and then does with the module what waits for it."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        for change in _WAITING[self.name].values():
            change(module)
        del _WAITING[self.name]
        if not _WAITING and _FINDER in sys.meta_path:
            sys.meta_path.remove(_FINDER)


_FINDER = _Finder()


def install_when_imported(patches: Sequence[Patch]) -> None:
    """Set every patch as soon as its module is there: now, or right after its import.

    Idempotent. Whether the patches fit must have been judged before, from the source files.

    Raises:
        PatchError: A module that is there already holds something else than was judged. An
            import of a module raises it likewise.
    """
    for patch in patches:
        if not is_set(patch):
            _after_import(patch.target, partial(_set_target, patch))
        for alias in patch.aliases if isinstance(patch, Wrap) else ():
            _after_import(alias, partial(_set_alias, patch.target, alias))
    _start_finding()


def import_behind(module: str, follower: str) -> None:
    """Import ``follower`` as soon as ``module`` has been imported: now, or right after it."""
    _after_import(f"{module}:", lambda _: importlib.import_module(follower))
    _start_finding()


def _start_finding() -> None:
    if _WAITING and _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def is_set(patch: Patch) -> bool:
    """Whether a patch has been set in this process (its module has been imported)."""
    return patch.target in _SET


def _after_import(holder: str, change: Callable[[ModuleType], object]) -> None:
    name = holder.partition(":")[0]
    if (module := sys.modules.get(name)) is not None:
        change(module)
    else:
        _WAITING[name][holder] = change


def _set_target(patch: Patch, _module: ModuleType) -> None:
    owner, name = resolve(patch.target)
    original, new = vars(owner).get(name), patch.replacement
    if not isinstance(patch, Add):
        digest = source_digest(original)
        if digest not in patch.upstream_sha256:
            raise PatchError(f"{patch.target} was replaced by somebody else (digest {digest})")
        new, problems = replacement(patch, original)
        if problems:
            raise PatchError("; ".join(problems))
    setattr(owner, name, new)
    _SET[patch.target] = (original, new)


def _set_alias(target: str, alias: str, module: ModuleType) -> None:
    original, new = _SET[target]
    name = alias.partition(":")[2]
    held = vars(module).get(name)
    if held is original:
        setattr(module, name, new)
    elif held is not new:
        raise PatchError(f"{alias} does not hold {target}")
