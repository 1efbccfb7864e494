# SPDX-License-Identifier: Apache-2.0
"""What an overlay rests on in a checkout, function by function.

A file may change around a function and leave the function as it is. So a checkout that nobody here
has seen is judged by the functions that the overlay patches, extends or needs, not by its files.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vllm_ascend.overlay.patch_list import listed_patches
from vllm_ascend.patch.upstream.source import PACKAGE, definition_digest, lines_of, module_path
from vllm_ascend.releases import Release

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def rested_on(package: Path, release: Release) -> dict[str, dict[str, str]]:
    """Return the digests of the functions that the overlay rests on.

    Args:
        package: The ``vllm_ascend`` directory of a checkout.
        release: Which it is.

    Returns:
        File -> function or class in it -> digest. Files that ours take the place of are left out,
        and those that are no Python.

    Raises:
        OSError: A file cannot be read.
    """
    whole = {*release.extended, *release.left_out} - release.replaced
    single = [patch.target.partition(":")[::2] for patch in listed_patches(release)]
    wanted = {
        (module_path(package, module), name)
        for module, name in (*single, *(target.split(":") for target in release.needed_functions))
        if module.partition(".")[0] == PACKAGE
    }
    found: dict[str, dict[str, str]] = {}
    for file in sorted({*(package / path for path in whole), *(file for file, _ in wanted)}):
        path = file.relative_to(package).as_posix()
        functions = dict(_functions(file)) if file.is_file() else {}
        chosen = [n for n in functions if path in whole or (file, n) in wanted]
        if chosen and path not in release.replaced:
            found[path] = {name: functions[name] for name in chosen}
    return found


def changed_inside(
    package: Path, release: Release, known: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """Return what the overlay rests on and a checkout has changed or lacks, sorted.

    Args:
        package: See :func:`rested_on`.
        release: See there.
        known: What :func:`rested_on` said of a commit that is known.
    """
    now = rested_on(package, release)
    return [
        f"{path}: {name}"
        for path, functions in sorted(known.items())
        for name, digest in functions.items()
        if now.get(path, {}).get(name) != digest
    ]


def _functions(file: Path) -> Iterator[tuple[str, str]]:
    """Yield every function of a module with its digest, and every class without its methods."""
    try:
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text, filename=str(file))
    except (SyntaxError, ValueError):
        return
    lines = text.splitlines(keepends=True)
    for node in tree.body:
        if isinstance(node, _Function):
            yield node.name, definition_digest(lines, node)
        elif isinstance(node, ast.ClassDef):
            methods = [member for member in node.body if isinstance(member, _Function)]
            yield node.name, _digest_without(lines, node, methods)
            yield from ((f"{node.name}.{m.name}", definition_digest(lines, m)) for m in methods)


def _digest_without(lines: Sequence[str], node: ast.ClassDef, methods: Sequence[_Function]) -> str:
    left_out = {i for method in methods for i in lines_of(method)}
    rest = (lines[i] for i in lines_of(node) if i not in left_out)
    return hashlib.sha256("".join(line for line in rest if line.strip()).encode()).hexdigest()[:16]
