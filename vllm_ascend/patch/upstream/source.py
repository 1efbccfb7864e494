# SPDX-License-Identifier: Apache-2.0
"""A checkout of vllm-ascend judged by its source files, none of which is imported."""

from __future__ import annotations

import ast
import hashlib
import textwrap
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

PACKAGE = "vllm_ascend"
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def module_path(package: Path, module: str) -> Path:
    """Return the file of a module of vllm-ascend, whether it exists or not."""
    path = package.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def source_digest_in_file(path: Path, qualified_name: str) -> str | None:
    """Return what :func:`~vllm_ascend.patch.table.source_digest` would say, without an import.

    ``None`` if the file has no definition of that name (``"function"``, ``"Class.method"``).

    Raises:
        OSError, SyntaxError: The file cannot be read or parsed.
    """
    lines, node = _parsed(path, path.stat().st_mtime_ns)
    for name in qualified_name.split("."):
        found = [n for n in node.body if isinstance(n, Definition) and n.name == name]
        if not found:
            return None
        node = found[-1]  # as an import would leave it
    assert isinstance(node, Definition)
    return definition_digest(lines, node)


def definition_digest(lines: Sequence[str], node: Definition) -> str:
    """Return what :func:`vllm_ascend.patch.table.source_digest` says of the imported definition.

    Args:
        lines: Those of the module, with their ends.
        node: The definition in it.
    """
    source = textwrap.dedent("".join(lines[i] for i in lines_of(node)))
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def lines_of(node: Definition) -> range:
    """Return the places of a definition's lines in its module, decorators included."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return range(first - 1, node.end_lineno or first)


@cache
def _parsed(path: Path, _mtime: int) -> tuple[list[str], ast.Module | Definition]:
    text = path.read_text(encoding="utf-8")
    return text.splitlines(keepends=True), ast.parse(text, filename=str(path))


def misfits(package: Path, digests: Mapping[str, Collection[str]]) -> list[str]:
    """Say which patches do not fit a checkout, and why, in a sentence each.

    Args:
        package: Its ``vllm_ascend`` directory.
        digests: Target -> digests that the original may have, none if it must not exist. Only
            targets in vllm-ascend's own modules are looked at.
    """
    problems: list[str] = []
    for target, known in digests.items():
        module, _, name = target.partition(":")
        if module.partition(".")[0] != PACKAGE:
            continue
        path = module_path(package, module)
        try:
            digest = source_digest_in_file(path, name)
        except (OSError, SyntaxError) as error:
            problems.append(f"{target}: {path.name} cannot be read ({error})")
            continue
        if digest is None and known:
            problems.append(f"{target} does not exist")
        elif digest is not None and not known:
            problems.append(f"{target} exists already")
        elif digest is not None and digest not in known:
            problems.append(f"{target} is another one than was patched (digest {digest})")
    return problems
