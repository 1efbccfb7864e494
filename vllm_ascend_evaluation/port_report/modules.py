# SPDX-License-Identifier: Apache-2.0
"""Names of a package's modules, found in their syntax trees as an import would bind them."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from vllm_ascend.patch.upstream.source import Definition
from vllm_ascend_evaluation.port_report.definitions import Function, without_docstrings
from vllm_ascend_evaluation.port_report.files import PackageFiles

BOUND = "bound"
IMPORTED = "imported name"
GONE = "GONE"
MODULE_GONE = "module gone"
UNREADABLE = "cannot be read"

# Re-exports of re-exports; more are a circle.
_MAX_HOPS = 8


@dataclass(frozen=True)
class Found:
    """What a module has under a name.

    Attributes:
        how: ``BOUND`` (defined or assigned there), ``IMPORTED``, ``GONE``, ``MODULE_GONE`` or
            ``UNREADABLE``.
        where: ``"module:name"``: where it was looked for.
        nodes: The statements that bind it, if ``BOUND``.
        origin: ``"module:name"`` that an import takes it from, if ``IMPORTED``.
        lines: Those of the module, with their ends.
    """

    how: str
    where: str
    nodes: tuple[ast.stmt, ...] = ()
    origin: str = ""
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class _Module:
    name: str
    is_package: bool
    text: str

    @cached_property
    def body(self) -> list[ast.stmt] | None:
        """Return its statements without docstrings, or ``None`` if they cannot be parsed."""
        try:
            with warnings.catch_warnings():  # of other people's escape sequences
                warnings.simplefilter("ignore")
                return without_docstrings(ast.parse(self.text)).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def absolute(self, node: ast.ImportFrom) -> str:
        """Return the module that a ``from ... import`` names."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        above = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*above, node.module] if node.module else above)


class Modules:
    """The modules of a package, parsed when they are asked for."""

    def __init__(self, files: PackageFiles) -> None:
        self._files = files
        self._modules: dict[str, _Module | None] = {}

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield every module's name with its source."""
        for path in self._files.paths:
            name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            module = self._module(name)
            if module is not None:
                yield name, module.text

    def look_up(self, target: str) -> Found:
        """Return what a module itself has under a name, in any branch of an ``if`` or ``try``.

        Of methods and other attributes: what the class itself has, not what it inherits.

        Args:
            target: ``"module:name"`` or ``"module:Class.name"``.
        """
        return self._look_up(target, _MAX_HOPS)

    def resolve(self, target: str) -> Found:
        """Return where a name comes from in the end: imports and base classes are followed.

        ``IMPORTED`` is then only what comes from another package.
        """
        return self._resolve(target, _MAX_HOPS)

    def _look_up(self, target: str, hops: int) -> Found:
        name, _, path = target.partition(":")
        module = self._module(name)
        if module is None:
            return Found(MODULE_GONE, target)
        body = module.body
        if body is None:
            return Found(UNREADABLE, target)
        *owners, last = path.split(".")
        for ordinal, owner in enumerate(owners):
            classes = [n for n in _definitions(body, owner) if isinstance(n, ast.ClassDef)]
            if not classes:
                origin = self._origin(module, body, owner, hops)
                rest = ".".join([*owners[ordinal + 1 :], last])
                return _imported(target, origin and f"{origin}.{rest}")
            body = [statement for node in classes for statement in node.body]
        lines = module.text.splitlines(keepends=True)
        nodes = _definitions(body, last) or _assignments(body, last)
        if nodes:
            return Found(BOUND, target, nodes=tuple(nodes), lines=lines)
        return _imported(target, self._origin(module, body, last, hops))

    def _resolve(self, target: str, hops: int) -> Found:
        found = self._look_up(target, hops)
        if not hops:
            return found
        if found.how == IMPORTED and found.origin.partition(".")[0] == self._files.package:
            return self._resolve(found.origin, hops - 1)
        if found.how == GONE:
            owner, _, name = target.rpartition(".")
            if ":" in owner:
                return self._inherited(owner, name, hops - 1) or found
        return found

    def _inherited(self, owner: str, name: str, hops: int) -> Found | None:
        """Look for an attribute in the bases of a class, the first one and its bases first."""
        found = self._resolve(owner, hops)
        module = found.where.partition(":")[0]
        for node in found.nodes:
            for base in node.bases if isinstance(node, ast.ClassDef) else ():
                plain = base.value if isinstance(base, ast.Subscript) else base
                if hops and isinstance(plain, ast.Name):
                    attribute = self._resolve(f"{module}:{plain.id}.{name}", hops - 1)
                    if attribute.how == BOUND:
                        return attribute
        return None

    def _origin(self, module: _Module, body: Sequence[ast.stmt], name: str, hops: int) -> str:
        """Return "module:name" of what an import binds to a name; nothing if none does."""
        for node in _run(body):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return f"{module.absolute(node)}:{alias.name}"
                    if alias.name == "*" and hops and not name.startswith("_"):
                        origin = f"{module.absolute(node)}:{name}"
                        if self._look_up(origin, hops - 1).how in (BOUND, IMPORTED):
                            return origin
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if (alias.asname or alias.name.partition(".")[0]) == name:
                        return alias.name
        return ""

    def _module(self, name: str) -> _Module | None:
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> _Module | None:
        path = name.replace(".", "/")
        # In Python's order: a package is found before a module of the same name.
        for file, is_package in ((f"{path}/__init__.py", True), (f"{path}.py", False)):
            text = self._files.read(file)
            if text is not None:
                return _Module(name, is_package, text)
        return None


def _imported(target: str, origin: str) -> Found:
    return Found(IMPORTED, target, origin=origin) if origin else Found(GONE, target)


def _run(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that an import may run, in all branches; not what is for types."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            is_typing, is_not_typing = _is_typing(node.test), _is_not_typing(node.test)
            yield from _run([] if is_typing else node.body)
            yield from _run([] if is_not_typing else node.orelse)
        elif isinstance(node, ast.Try):
            handled = [statement for handler in node.handlers for statement in handler.body]
            yield from _run([*node.body, *handled, *node.orelse, *node.finalbody])
        elif isinstance(node, ast.With):
            yield from _run(node.body)
        elif isinstance(node, ast.For | ast.While):
            yield from _run([*node.body, *node.orelse])


def _is_typing(test: ast.expr) -> bool:
    return ast.unparse(test).rpartition(".")[2] == "TYPE_CHECKING"


def _is_not_typing(test: ast.expr) -> bool:
    return (
        isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and _is_typing(test.operand)
    )


def _definitions(body: Iterable[ast.stmt], name: str) -> list[ast.stmt]:
    return [
        node
        for node in _run(body)
        if isinstance(node, Definition) and node.name == name and not _is_overload(node)
    ]


def _is_overload(node: Definition) -> bool:
    """Whether a function is there for type checkers only."""
    return isinstance(node, Function) and any(
        ast.unparse(decorator).rpartition(".")[2] == "overload" for decorator in node.decorator_list
    )


def _assignments(body: Iterable[ast.stmt], name: str) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for node in _run(body):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        names = (n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
        if any(n.id == name and isinstance(n.ctx, ast.Store) for n in names):
            found.append(node)
    return found
