# SPDX-License-Identifier: Apache-2.0
"""The wheel holds both packages with all their data, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("vllm_ascend", "vllm_ascend_evaluation")
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
METADATA = {
    "METADATA",
    "RECORD",
    "WHEEL",
    "entry_points.txt",
    "licenses/LICENSE",
    "licenses/NOTICE",
    "top_level.txt",
}


def test_the_wheel_holds_every_file_of_both_packages_and_nothing_else(tmp_path):
    tree, out = tmp_path / "tree", tmp_path / "out"
    out.mkdir()
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, tree / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(REPOSITORY / name, tree)
    (tree / "tests").mkdir()
    (tree / "tests" / "__init__.py").touch()
    expected = {
        file.relative_to(tree).as_posix() for name in PACKAGES for file in _files(tree / name)
    }
    subprocess.run([sys.executable, "-c", BUILD, out], cwd=tree, capture_output=True, check=True)
    (wheel,) = out.iterdir()
    names = set(zipfile.ZipFile(wheel).namelist())
    information = {name for name in names if ".dist-info/" in name}
    assert {name.partition(".dist-info/")[2] for name in information} == METADATA
    assert names - information == expected


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
