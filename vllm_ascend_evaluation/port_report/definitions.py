# SPDX-License-Identifier: Apache-2.0
"""Whether two definitions are the same, by their syntax; comments and docstrings do not count."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from vllm_ascend.patch.upstream.source import Definition

SAME = "same"
BODY = "body"
SIGNATURE = "SIGNATURE"

Function = ast.FunctionDef | ast.AsyncFunctionDef

# Decorators that change how a function is called.
_KINDS = ("classmethod", "staticmethod", "property", "cached_property")


@dataclass(frozen=True)
class Comparison:
    """What became of a definition.

    Attributes:
        status: ``SAME``, ``BODY`` or ``SIGNATURE``.
        came: Parameters of a function, or members of a class, that are new.
        went: Those that are no longer there.
        changed: What else is different about the signature, in a few words each.
    """

    status: str
    came: tuple[str, ...] = ()
    went: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


def without_docstrings(tree: ast.Module) -> ast.Module:
    """Take the docstrings out of a syntax tree, in place, and return it."""
    for node in ast.walk(tree):
        if isinstance(node, Definition) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return tree


def compare(old: Sequence[ast.stmt], new: Sequence[ast.stmt]) -> Comparison:
    """Compare all statements that bind a name in one module with those in another.

    Several are branches of an ``if`` or ``try``, or the parts of a property. Annotations, defaults
    and what is returned are parts of a signature.

    Args:
        old: At least one.
        new: At least one.
    """
    if [*map(ast.dump, old)] == [*map(ast.dump, new)]:
        return Comparison(SAME)
    before, after = old[-1], new[-1]
    if isinstance(before, ast.ClassDef) and isinstance(after, ast.ClassDef):
        return _compare_classes(before, after)
    if [*map(_signature, old)] == [*map(_signature, new)]:
        return Comparison(BODY)
    if isinstance(before, Function) and isinstance(after, Function):
        return _compare_signatures(before, after)
    return Comparison(SIGNATURE, changed=(f"{_kind(after)}, was {_kind(before)}",))


def has_parameter(nodes: Iterable[ast.stmt], name: str) -> bool:
    """Whether a function, or the constructor of a class, takes a parameter of that name."""
    functions = list(nodes)
    for node in list(functions):
        if isinstance(node, ast.ClassDef):
            functions += [n for n in node.body if isinstance(n, Function) and n.name == "__init__"]
    return any(isinstance(f, Function) and name in _parameters(f.args) for f in functions)


def _compare_signatures(old: Function, new: Function) -> Comparison:
    before, after = _parameters(old.args), _parameters(new.args)
    changed = [
        f"{name}: {after[name]}, was {before[name]}"
        for name in after
        if name in before and after[name] != before[name]
    ]
    kept = [name for name in before if name in after]
    if kept != [name for name in after if name in before]:
        changed.append("another order")
    if _text(old.returns) != _text(new.returns):
        changed.append(f"returns {_text(new.returns)}, was {_text(old.returns)}")
    if _kind(old) != _kind(new):
        changed.append(f"{_kind(new)}, was {_kind(old)}")
    came, went = _minus(after, before), _minus(before, after)
    if not (came or went or changed):
        changed.append("other branches or parts of a property")
    return Comparison(SIGNATURE, came, went, tuple(changed))


def _compare_classes(old: ast.ClassDef, new: ast.ClassDef) -> Comparison:
    """Compare classes: they are replaced as a whole, so that members tell more than a signature."""
    before, after = dict.fromkeys(_members(old)), dict.fromkeys(_members(new))
    return Comparison(BODY, _minus(after, before), _minus(before, after))


def _minus(these: Iterable[str], those: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(name for name in these if name not in those)


def _members(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, Definition):
            yield statement.name
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id


def _signature(node: ast.stmt) -> tuple[object, ...]:
    if not isinstance(node, Function):
        return (_kind(node),)
    return (_kind(node), *_parameters(node.args).items(), _text(node.returns))


def _parameters(arguments: ast.arguments) -> dict[str, str]:
    """Return name -> kind, annotation and default, in words."""
    positional = [*arguments.posonlyargs, *arguments.args]
    missing = [None] * (len(positional) - len(arguments.defaults))
    defaults = [*missing, *arguments.defaults]
    found = {}
    for ordinal, (argument, default) in enumerate(zip(positional, defaults, strict=True)):
        kind = "by position only " if ordinal < len(arguments.posonlyargs) else ""
        found[argument.arg] = kind + _described(argument, default)
    if arguments.vararg is not None:
        found[f"*{arguments.vararg.arg}"] = _described(arguments.vararg, None)
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found[argument.arg] = f"by keyword only {_described(argument, default)}"
    if arguments.kwarg is not None:
        found[f"**{arguments.kwarg.arg}"] = _described(arguments.kwarg, None)
    return found


def _described(argument: ast.arg, default: ast.expr | None) -> str:
    return _text(argument.annotation) + (f" = {_text(default)}" if default is not None else "")


def _text(node: ast.expr | None) -> str:
    return "untyped" if node is None else ast.unparse(node)


def _kind(node: ast.stmt) -> str:
    if isinstance(node, ast.ClassDef):
        return "a class"
    if not isinstance(node, Function):
        return "a value"
    names = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    kinds = [f"a {kind}" for kind in _KINDS if kind in names] or ["a function"]
    return f"async, {kinds[0]}" if isinstance(node, ast.AsyncFunctionDef) else kinds[0]
