# SPDX-License-Identifier: Apache-2.0
"""Finds in a vLLM's sources what ours rely on, and its digests. Nothing is imported."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from vllm_ascend.patch.upstream.source import definition_digest
from vllm_ascend_evaluation.port_report.files import open_files
from vllm_ascend_evaluation.port_report.modules import BOUND, Found, Modules

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Vllm:
    """The sources of one release."""

    def __init__(self, folder: Path) -> None:
        """Open the folder that holds the package."""
        self._folder = folder
        self._modules = Modules(open_files("--vllm", folder, "vllm"))

    def method(self, base: str, name: str) -> dict[str, str]:
        """Return ``{"module:Class.name": digest}`` of a method that a class has or inherits."""
        found = self._modules.resolve(f"{base}.{name}")
        return {found.where: _digest(found)} if found.how == BOUND else {}

    def constructors(self, base: str) -> dict[str, str]:
        """Return the constructors of a class and its bases, and what they call of themselves."""
        digests: dict[str, str] = {}
        for owner, node in self._line_of(base):
            for member in node.body:
                if isinstance(member, _FUNCTIONS) and member.name == "__init__":
                    digests |= self.method(owner, "__init__")
                    for called in _called_of_self(member):
                        digests |= self.method(base, called)
        return digests

    def modules_of(self, base: str) -> set[str]:
        """Return the modules in which a class and its bases are defined."""
        return {owner.partition(":")[0] for owner, _ in self._line_of(base)}

    def private(self, name: str, modules: Iterable[str]) -> dict[str, str]:
        """Return who binds a private name in some modules: functions, or statements that set it."""
        digests: dict[str, str] = {}
        for module in sorted(modules):
            if (parsed := _parse(self._folder, module)) is not None:
                lines, tree = parsed
                for owner, node in _binders(tree, name):
                    digests[f"{module}:{owner}"] = _digest_of(lines, node)
        return digests

    def _line_of(self, target: str) -> Iterator[tuple[str, ast.ClassDef]]:
        """Yield (``"module:Class"``, its definition) of a class and of all its bases in vLLM."""
        found = self._modules.resolve(target)
        for node in found.nodes:
            if isinstance(node, ast.ClassDef):
                yield found.where, node
                module = found.where.partition(":")[0]
                for base in node.bases:
                    plain = base.value if isinstance(base, ast.Subscript) else base
                    if isinstance(plain, ast.Name):
                        yield from self._line_of(f"{module}:{plain.id}")


def _called_of_self(function: ast.AST) -> list[str]:
    return [
        node.func.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
    ]


def _binders(tree: ast.Module, name: str) -> Iterator[tuple[str, ast.stmt]]:
    """Yield (qualified name, statement) of what defines a name, or sets it on ``self``."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                qualified = f"{node.name}.{getattr(member, 'name', name)}"
                if _binds(member, name) or (isinstance(member, _FUNCTIONS) and _sets(member, name)):
                    yield qualified, member
        elif _binds(node, name):
            yield name, node


def _binds(node: ast.stmt, name: str) -> bool:
    if isinstance(node, _FUNCTIONS):
        return node.name == name
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _sets(function: ast.AST, name: str) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        for node in ast.walk(function)
    )


def _digest(found: Found) -> str:
    return _digest_of(list(found.lines), found.nodes[-1])


def _digest_of(lines: list[str], node: ast.stmt) -> str:
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return definition_digest(lines, node)
    return hashlib.sha256(ast.unparse(node).encode()).hexdigest()[:16]


@cache
def _parse(folder: Path, module: str) -> tuple[list[str], ast.Module] | None:
    path = folder.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        return None
    text = file.read_text(encoding="utf-8")
    return text.splitlines(keepends=True), ast.parse(text)
