# SPDX-License-Identifier: Apache-2.0
"""Patches of modules that are not imported yet: set right after their import.

vllm-ascend's workers, models and connectors must not be imported by the processes that have no use
for them, nor before vllm-ascend imports them itself.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from vllm_ascend.patch.planner import replacement, resolve
from vllm_ascend.patch.table import Add, Override, Patch, PatchError, Wrap, source_digest

_Callback = Callable[[ModuleType], None]


class _AfterImport(MetaPathFinder):
    """Finds modules as usual, and calls back once one of them has been executed."""

    def __init__(self) -> None:
        self.callbacks: defaultdict[str, list[_Callback]] = defaultdict(list)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.callbacks:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for callback in self.callbacks.pop(fullname, ()):
                callback(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_FINDER = _AfterImport()
# target -> (original, replacement) of every patch that is set.
_SET: dict[str, tuple[Any, Any]] = {}
_SCHEDULED: set[str] = set()


def install_when_imported(patches: Sequence[Patch]) -> None:
    """Set every patch as soon as its module is there: now, or right after its import.

    Idempotent. Whether the patches fit must have been judged before, from the source files.

    Raises:
        PatchError: A module that is there already holds something else than was judged. An
            import of a module raises it likewise.
    """
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    for patch in patches:
        if patch.target in _SCHEDULED:
            continue
        _SCHEDULED.add(patch.target)
        _after_import(patch.target.partition(":")[0], partial(_set_target, patch))
        for alias in patch.aliases if isinstance(patch, Wrap) else ():
            module, _, name = alias.partition(":")
            _after_import(module, partial(_set_alias, patch.target, name))


def is_set(patch: Patch) -> bool:
    """Whether a patch has been set in this process (its module has been imported)."""
    return patch.target in _SET


def _after_import(module: str, callback: _Callback) -> None:
    imported = sys.modules.get(module)
    if imported is not None:
        callback(imported)
    else:
        _FINDER.callbacks[module].append(callback)


def _set_target(patch: Patch, _module: ModuleType) -> None:
    owner, name = resolve(patch.target)
    if isinstance(patch, Add):
        original, new = None, patch.replacement
    else:
        assert isinstance(patch, Override)
        original = vars(owner)[name]
        digest = source_digest(original)
        if digest not in patch.known_digests:
            raise PatchError(f"{patch.target} was replaced by somebody else (digest {digest})")
        new = replacement(patch, original) if isinstance(patch, Wrap) else patch.replacement
    setattr(owner, name, new)
    _SET[patch.target] = (original, new)


def _set_alias(target: str, name: str, module: ModuleType) -> None:
    original, new = _SET[target]
    held = vars(module).get(name)
    if held is original:
        setattr(module, name, new)
    elif held is not new:
        raise PatchError(f"{module.__name__}.{name} does not hold {target}")
