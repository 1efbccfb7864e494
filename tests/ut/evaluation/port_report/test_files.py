# SPDX-License-Identifier: Apache-2.0
"""A release is read as it comes: unpacked, as a wheel, as a source distribution, as a checkout."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.ut.evaluation.port_report.trees import write_tree
from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.port_report.files import open_files

MODULES = {
    "a.py": "def f(): ...\n",
    "sub/__init__.py": "",
    "_version.py": "__version__ = version = '0.30.0'\n",
}
PATHS = ("vllm/__init__.py", "vllm/_version.py", "vllm/a.py", "vllm/sub/__init__.py")


def as_wheel(root: Path) -> Path:
    archive = root.parent / "vllm-0.30.0-py3-none-any.whl"
    with zipfile.ZipFile(archive, "w") as wheel:
        for file in root.rglob("*"):
            wheel.write(file, file.relative_to(root))
    return archive


def as_source_distribution(root: Path) -> Path:
    archive = root.parent / "vllm-0.30.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(root, "vllm-0.30.0")
    return archive


@pytest.mark.parametrize("packed", [lambda root: root, as_wheel, as_source_distribution])
def test_the_same_files_however_they_are_packed(tmp_path, packed):
    root = write_tree(tmp_path / "tree", MODULES)
    write_tree(root, {"vllm/__init__.py": "# a test's own\n"}, "tests")
    (root / "vllm" / "kernel.so").write_bytes(b"\0")
    files = open_files("--vllm", packed(root), "vllm")
    assert files.paths == PATHS
    assert files.read("vllm/a.py") == MODULES["a.py"]
    assert files.read("vllm/nowhere.py") is None
    assert files.version == "0.30.0"


@pytest.mark.parametrize(
    ("file", "text", "version"),
    [
        ("vllm/_version.py", "version = '0.9.1'\n", "0.9.1"),
        ("vllm/_version.py", "garbage", None),
        ("PKG-INFO", "Name: vllm\nVersion: 0.23.0.post1\n", "0.23.0.post1"),
        ("vllm.egg-info/PKG-INFO", "Name: vllm\nVersion: 0.23.0\n", "0.23.0"),
        (".git/HEAD", "ref: refs/heads/releases/v0.23.0\n", "0.23.0"),
        (".git/HEAD", "ref: refs/heads/main\n", None),
    ],
)
def test_the_version_is_what_the_files_tell(tmp_path, file, text, version):
    root = write_tree(tmp_path, {})
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_text(text)
    assert open_files("--vllm", root, "vllm").version == version


def test_line_ends_and_marks_of_windows_are_read_as_python_reads_them(tmp_path):
    root = write_tree(tmp_path, {})
    (root / "vllm" / "a.py").write_bytes(b"\xef\xbb\xbfx = 1\r\ny = 2\r\n")
    assert open_files("--vllm", root, "vllm").read("vllm/a.py") == "x = 1\ny = 2\n"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: None, "does not exist; expected a folder, a wheel or a .tar.gz"),
        (lambda path: path.mkdir(), "holds no package vllm; expected a folder, a wheel"),
        (lambda path: path.write_text("text"), "is neither a folder nor an archive; expected"),
        (lambda path: zipfile.ZipFile(path, "w").close(), "holds no package vllm; expected"),
        (lambda path: write_tree(path, {}, "vllm_ascend"), "holds no package vllm; expected"),
    ],
)
def test_what_is_no_release_is_one_error(tmp_path, make, told):
    path = tmp_path / "given"
    make(path)
    with pytest.raises(BadInputError) as error:
        open_files("--base-vllm", path, "vllm")
    assert str(error.value).startswith(f"--base-vllm {path}: {told}")
    assert "vllm/__init__.py" in str(error.value)


@pytest.mark.parametrize("packed", [as_wheel, as_source_distribution])
def test_an_archive_that_ends_early_is_one_error(tmp_path, packed):
    archive = packed(write_tree(tmp_path / "tree", {"a.py": "".join(map(str, range(5000)))}))
    content = archive.read_bytes()
    archive.write_bytes(content[: len(content) // 2])
    with pytest.raises(
        BadInputError, match=f"--vllm {archive}: (cannot be read|is neither a folder)"
    ):
        open_files("--vllm", archive, "vllm")
