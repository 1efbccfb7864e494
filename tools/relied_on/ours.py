# SPDX-License-Identifier: Apache-2.0
"""What our modules derive from vLLM's classes, and which private names they use: by syntax."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

_THEIRS = "vllm"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ASKS = {"getattr", "hasattr", "setattr"}


@dataclass(frozen=True)
class DerivedClass:
    """A class of ours with bases of vLLM's.

    Attributes:
        name: With its module's path.
        bases: Those of them that are vLLM's, as ``"module:Class"``.
        methods: Names of what it defines itself.
        skips_constructor: It has a constructor that does not call theirs.
    """

    name: str
    bases: tuple[str, ...]
    methods: tuple[str, ...]
    skips_constructor: bool


@dataclass(frozen=True)
class Source:
    """One of our modules.

    Attributes:
        path: Below the package.
        tree: Its syntax.
    """

    path: str
    tree: ast.Module = field(repr=False)

    @cached_property
    def imported(self) -> dict[str, str]:
        """What it imports from vLLM: name in the module -> ``"module:name"``."""
        return {
            alias.asname or alias.name: f"{node.module}:{alias.name}"
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and node.module and _is_theirs(node.module)
            for alias in node.names
        }

    @cached_property
    def modules(self) -> set[str]:
        """The modules of vLLM that it imports something from, or that it imports as such."""
        found = set()
        for target in self.imported.values():
            module, _, name = target.partition(":")
            found |= {module, f"{module}.{name}"}
        return found

    @cached_property
    def defined(self) -> set[str]:
        """Private names that it binds itself, wherever."""
        found = set()
        for node in ast.walk(self.tree):
            if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id in ("self", "cls")
            ):
                found.add(node.attr)
        return {name for name in found if _is_private(name)}

    @cached_property
    def used(self) -> set[str]:
        """Private names that it uses and does not bind: of whoever binds them."""
        found = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.ImportFrom) and node.module and _is_theirs(node.module):
                found |= {alias.name for alias in node.names}
            elif _asks_for_attribute(node):
                found.add(node.args[1].value)  # type: ignore[attr-defined]
        return {name for name in found if _is_private(name)} - self.defined

    def derived_classes(self) -> Iterator[DerivedClass]:
        """Yield its classes that have a base of vLLM's."""
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.ClassDef):
                continue
            bases = tuple(target for base in node.bases if (target := self._target(base)))
            methods = [member for member in node.body if isinstance(member, _FUNCTIONS)]
            constructor = next((m for m in methods if m.name == "__init__"), None)
            if bases:
                yield DerivedClass(
                    name=f"{self.path}:{node.name}",
                    bases=bases,
                    methods=tuple(method.name for method in methods),
                    skips_constructor=constructor is not None and not _calls_theirs(constructor),
                )

    def _target(self, base: ast.expr) -> str:
        """Return ``"module:Class"`` of a base that is vLLM's; nothing of another."""
        plain = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(plain, ast.Name):
            return self.imported.get(plain.id, "")
        if isinstance(plain, ast.Attribute) and isinstance(plain.value, ast.Name):
            module = self.imported.get(plain.value.id, "")
            return f"{module.replace(':', '.')}:{plain.attr}" if module else ""
        return ""


def read_sources(package: Path) -> list[Source]:
    """Return all modules of a package."""
    return [
        Source(path.relative_to(package).as_posix(), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(package.rglob("*.py"))
    ]


def _is_theirs(module: str) -> bool:
    return module.partition(".")[0] == _THEIRS


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def _asks_for_attribute(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _ASKS
        and len(node.args) > 1
        and isinstance(node.args[1], ast.Constant)
        and isinstance(node.args[1].value, str)
    )


def _calls_theirs(constructor: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a constructor calls that of a base: by ``super()`` or by a class's name."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "__init__"
        for node in ast.walk(constructor)
    )
