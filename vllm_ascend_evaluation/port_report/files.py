# SPDX-License-Identifier: Apache-2.0
"""The files of a package that is not installed: in a folder, a wheel or a source distribution."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.overlay.release import version_told

_ARCHIVE_ERRORS = (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class PackageFiles:
    """A package's Python files as text, and what its version is.

    Attributes:
        package: ``vllm`` or ``vllm_ascend``.
        origin: The folder or archive.
        paths: Its Python files, with slashes, from ``package/`` on, sorted.
        read: Path -> text; ``None`` if there is no such file.
        version: As its files tell it; ``None`` if they do not.
    """

    package: str
    origin: Path
    paths: tuple[str, ...]
    read: Callable[[str], str | None]
    version: str | None


def open_files(option: str, path: Path, package: str) -> PackageFiles:
    """Return the files of a package.

    Args:
        option: Where the path was given, for messages.
        path: A folder or archive that holds the package.
        package: ``vllm`` or ``vllm_ascend``.

    Raises:
        BadInputError: It cannot be read, or does not hold the package.
    """
    try:
        if path.is_dir():
            return _from_folder(option, path, package)
        if not path.exists():
            raise BadInputError(f"{option} {path}: does not exist; {_expected(package)}")
    except OSError as error:
        raise BadInputError(f"{option} {path}: {error.strerror}") from error
    return _from_archive(option, path, package)


def _expected(package: str) -> str:
    return f"expected a folder, a wheel or a .tar.gz that holds {package}/__init__.py"


def _from_folder(option: str, root: Path, package: str) -> PackageFiles:
    if not (root / package / "__init__.py").is_file():
        raise BadInputError(f"{option} {root}: holds no package {package}; {_expected(package)}")

    def read(path: str) -> str | None:
        file = root / path
        return _decoded(file.read_bytes()) if file.is_file() else None

    found = sorted(path.relative_to(root).as_posix() for path in (root / package).rglob("*.py"))
    return PackageFiles(package, root, tuple(found), read, version_told(package, read))


def _from_archive(option: str, file: Path, package: str) -> PackageFiles:
    try:
        if zipfile.is_zipfile(file):
            contents = dict(_zip_members(file))
        elif tarfile.is_tarfile(file):
            contents = dict(_tar_members(file))
        else:
            raise BadInputError(
                f"{option} {file}: is neither a folder nor an archive; {_expected(package)}"
            )
    except _ARCHIVE_ERRORS as error:
        raise BadInputError(f"{option} {file}: cannot be read ({error})") from error
    root = _root(contents, package)
    if root is None:
        raise BadInputError(f"{option} {file}: holds no package {package}; {_expected(package)}")
    texts = {name[len(root) :]: text for name, text in contents.items() if name.startswith(root)}
    found = sorted(name for name in texts if name.startswith(f"{package}/") and _is_python(name))
    version = version_told(package, texts.get)
    return PackageFiles(package, file, tuple(found), texts.get, version)


def _zip_members(file: Path) -> Iterator[tuple[str, str]]:
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if _is_wanted(name):
                yield name, _decoded(archive.read(name))


def _tar_members(file: Path) -> Iterator[tuple[str, str]]:
    with tarfile.open(file) as archive:
        for member in archive:
            if member.isfile() and _is_wanted(member.name):
                content = archive.extractfile(member)
                assert content is not None, "a regular file"
                yield member.name, _decoded(content.read())


def _is_python(name: str) -> bool:
    return name.endswith(".py")


def _is_wanted(name: str) -> bool:
    return _is_python(name) or name.endswith("PKG-INFO")


def _root(names: Iterable[str], package: str) -> str | None:
    """Return what stands before the package in an archive: nothing, or a folder for everything."""
    mark = f"{package}/__init__.py"
    marked = [name for name in names if name == mark or name.endswith(f"/{mark}")]
    if not marked:
        return None
    nearest = min(marked, key=lambda name: len(PurePosixPath(name).parts))
    return nearest.removesuffix(mark)


def _decoded(content: bytes) -> str:
    # As Python reads sources: one kind of line end. What is no text is no Python either, and the
    # parser will say so.
    text = content.decode("utf-8-sig", errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")
