# SPDX-License-Identifier: Apache-2.0
"""Which files of a checkout are this project's, by their content alone.

``git clean -fdx`` removes the overlay's state and the files that joined, and leaves the replaced
ones, which git knows. Without the state nobody can tell what stood there before.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from vllm_ascend.deployment import own_package
from vllm_ascend.overlay.errors import OverlayError
from vllm_ascend.overlay.files import sha256
from vllm_ascend.overlay.known_heads import known_heads
from vllm_ascend.overlay.state import STATE_DIRECTORY
from vllm_ascend.overlay.surface import imported_modules, module_name
from vllm_ascend.patch.upstream.source import PACKAGE
from vllm_ascend.releases import SUPPORTED

_CHANGED = frozenset().union(*({*release.replaced, *release.extended} for release in SUPPORTED))


def files_of_ours(package: Path) -> tuple[str, ...]:
    """Return the files of a checkout's package that are this project's, of whatever version.

    A file is ours if it has the content that ours of that path has, or imports a module that no
    vllm-ascend has and we do. The second way tells the replaced ones of other versions, too.
    """
    source = own_package()
    alone = _names_of_ours_alone(source)
    modules = {module_name(path) for path in alone}
    # Where this runs from the checkout itself, all of its files have the content that "ours" has.
    others = None if source.samefile(package) else source
    candidates = sorted(alone | _CHANGED)
    return tuple(path for path in candidates if _is_ours(package, path, others, modules))


def _names_of_ours_alone(source: Path) -> frozenset[str]:
    """Return the Python files of ours of whose names no known vllm-ascend has one."""
    paths = {path.relative_to(source).as_posix() for path in source.rglob("*.py")}
    return frozenset(paths).difference(*(head.files for head in known_heads()))


def _is_ours(package: Path, relative: str, source: Path | None, modules: set[str]) -> bool:
    path = package / relative
    if not path.is_file() or path.is_symlink():
        return False
    own = source / relative if source else None
    if own is not None and own.is_file() and sha256(own) == sha256(path):
        return True
    try:
        return not modules.isdisjoint(imported_modules(path))
    except OverlayError:  # it is no Python, and so not ours
        return False


def refuse_left_behind(root: Path) -> None:
    """Refuse a checkout that has files of ours and nothing that says how to take them back.

    Raises:
        OverlayError: Says which, and how to get vllm-ascend's own.
    """
    paths = files_of_ours(root / PACKAGE)
    if paths:
        raise OverlayError(
            f"{root}: {describe_left_behind(paths)}. To get vllm-ascend's own files back: "
            f"{command_to_get_back(root, paths)}"
        )


def describe_left_behind(paths: tuple[str, ...]) -> str:
    """Say in words what such files are."""
    return (
        f"{len(paths)} files of this project stand there, but the overlay's state "
        f"({STATE_DIRECTORY}) is gone, as after `git clean -fdx`"
    )


def command_to_get_back(root: Path, paths: tuple[str, ...]) -> str:
    """Return the shell command that brings vllm-ascend's own files back."""
    git = ["git", "-C", str(root)]
    replaced = [f"{PACKAGE}/{path}" for path in paths if path in _CHANGED]
    commands = [shlex.join([*git, "checkout", "--", *replaced])] if replaced else []
    if len(replaced) < len(paths):
        # All that git does not know there: what joined is most of three hundred files.
        commands.append(shlex.join([*git, "clean", "-fd", PACKAGE]))
    return " && ".join(commands)
