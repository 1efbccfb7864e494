# SPDX-License-Identifier: Apache-2.0
"""Whether a checkout still keeps the compressors' states in blocks of the pool.

A hit reads the states in front of it. Where they are in a ring of the request's own, or in
checkpoints beside the pool, what is cached here lacks them: such a checkout is refused.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from vllm_ascend.patch.upstream.source import module_path
from vllm_ascend.releases import Release


def states_outside(package: Path, release: Release) -> list[str]:
    """Say which states are not in the pool, a sentence each; none if all are.

    Args:
        package: The ``vllm_ascend`` directory of a checkout.
        release: Which it is.
    """
    return [
        f"it keeps the compressor's state outside the pool's blocks ({what}), where no hit finds it"
        for target, wanted in release.pooled_states.items()
        if (what := _what_else(package, target, wanted))
    ]


def _what_else(package: Path, target: str, wanted: str) -> str:
    """Say what a function returns instead of specs of a class; empty if it does not."""
    module, _, name = target.partition(":")
    file = module_path(package, module)
    path, function = file.relative_to(package).as_posix(), _find(file, name)
    if function is None:
        return f"{path} has no {name}"
    returned = sorted({_name_of(node.value) for node in _returns(function)}) or ["None"]
    return "" if returned == [wanted] else f"{path}: {name} returns {', '.join(returned)}"


def _find(file: Path, name: str) -> ast.FunctionDef | None:
    try:
        node: ast.AST = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    for part in name.split("."):
        members = (
            member
            for member in getattr(node, "body", ())
            if isinstance(member, ast.ClassDef | ast.FunctionDef) and member.name == part
        )
        if (found := next(members, None)) is None:
            return None
        node = found
    return node if isinstance(node, ast.FunctionDef) else None


def _returns(function: ast.FunctionDef) -> Iterator[ast.Return]:
    return (node for node in ast.walk(function) if isinstance(node, ast.Return))


def _name_of(value: ast.expr | None) -> str:
    """Return what is constructed, or else the expression itself."""
    if value is None:
        return "None"
    return ast.unparse(value.func if isinstance(value, ast.Call) else value)
