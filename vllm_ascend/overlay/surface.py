# SPDX-License-Identifier: Apache-2.0
"""Whether the rest of a checkout and our modules still fit each other, by their source alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from vllm_ascend.deployment import own_package
from vllm_ascend.overlay.errors import OverlayError
from vllm_ascend.patch.upstream.source import PACKAGE
from vllm_ascend.releases import Release

# A class of ours that another module constructs, with keywords that it must take.
_CONSTRUCTED = ("worker/npu_input_batch.py", "worker/block_table.py", "MultiGroupBlockTable")


def missing_names(package: Path, release: Release) -> list[str]:
    """Say what the checkout expects of the modules that we replace, and we of those that stay.

    Args:
        package: The checkout's ``vllm_ascend`` directory, without an overlay.
        release: Which it is.

    Returns:
        One sentence each; none if everything fits.

    Raises:
        OverlayError: A file of it is no Python.
    """
    replaced = sorted(release.replaced)
    needed = (*replaced, *release.extended)
    problems = [f"{path} does not exist" for path in needed if not (package / path).is_file()]
    problems += [
        f"{path} does not import {module}, which installs the patches"
        for path, module in release.hooks.items()
        if module not in set(imported_modules(package / path))
    ]
    theirs = [path for path in release.left_out if (package / path).is_file()]
    problems += _lacking(package, release.replaced, own_package(), replaced, "ours")
    problems += _lacking(own_package(), frozenset(release.left_out), package, theirs, "it")
    return [*problems, *(_foreign_keywords(package) if _CONSTRUCTED[1] in replaced else ())]


def _lacking(
    readers: Path, without: frozenset[str], package: Path, paths: Sequence[str], whose: str
) -> Iterator[str]:
    """Yield what files below ``readers`` import of ``package``'s modules that those do not have."""
    had = {module_name(path): _defined_names(package / path) for path in paths}
    for path in sorted(readers.rglob("*.py")) if had else ():
        relative = path.relative_to(readers).as_posix()
        if relative in without:
            continue
        for module, name in _imported_names(path):
            if module in had and name not in had[module]:
                yield f"{relative} imports {name} of {module}, which {whose} lacks"


def _foreign_keywords(package: Path) -> Iterator[str]:
    caller, module, name = _CONSTRUCTED
    taken = _constructor_arguments(own_package() / module, name)
    for node in ast.walk(_parse(package / caller)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            for keyword in node.keywords:
                if keyword.arg is not None and keyword.arg not in taken:
                    yield f"{caller} passes {keyword.arg} to {name}, which ours does not take"


def module_name(path: str) -> str:
    """Return what a file of the package is imported as; ``path`` is relative to the package."""
    path = path.removesuffix("/__init__.py")
    return f"{PACKAGE}.{path.removesuffix('.py').replace('/', '.')}"


def _parse(path: Path) -> ast.Module:
    if not path.is_file():
        return ast.Module(body=[], type_ignores=[])
    try:
        return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    except (SyntaxError, ValueError) as error:
        raise OverlayError(f"{path} cannot be read as Python: {error}") from error


def _imported_names(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(_parse(path)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)


def imported_modules(path: Path) -> Iterator[str]:
    """Yield what a file imports: modules, and names in modules, which may be modules too.

    Raises:
        OverlayError: The file is no Python.
    """
    for node in ast.walk(_parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _defined_names(path: Path) -> set[str]:
    """Return the names of a module's top level, imported ones as well."""
    names: set[str] = set()
    for node in _parse(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def _constructor_arguments(path: Path, class_name: str) -> set[str]:
    for node in _parse(path).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                    arguments = member.args
                    return {a.arg for a in (*arguments.args, *arguments.kwonlyargs)}
    return set()
