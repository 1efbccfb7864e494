# SPDX-License-Identifier: Apache-2.0
"""A release stands in one file, which can be deleted: no other one knows of it."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vllm_ascend.releases
from vllm_ascend.releases import SUPPORTED

FOLDER = Path(vllm_ascend.releases.__file__).parent
MODULES = {release.vllm: f"v{release.vllm.replace('.', '_')}" for release in SUPPORTED}
each_release = pytest.mark.parametrize("release", SUPPORTED, ids=lambda release: release.vllm)

# The package of releases without the other files, in the place of ours.
ONLY = """
import importlib.util, sys
import vllm_ascend
folder, vllm = sys.argv[1:]
spec = importlib.util.spec_from_file_location(
    "vllm_ascend.releases", f"{folder}/__init__.py", submodule_search_locations=[folder]
)
sys.modules[spec.name] = vllm_ascend.releases = importlib.util.module_from_spec(spec)
spec.loader.exec_module(vllm_ascend.releases)
(release,) = vllm_ascend.releases.SUPPORTED
assert release.vllm == vllm == vllm_ascend.releases.describe_supported()
assert release.digests and release.native
"""


def test_there_is_a_file_for_each():
    assert {file.stem for file in FOLDER.glob("v*.py")} == set(MODULES.values())


@each_release
def test_a_release_inherits_and_imports_nothing_of_another(release):
    others = set(MODULES.values()) - {MODULES[release.vllm]}
    for base in type(release).__mro__:
        assert base.__module__.rpartition(".")[2] not in others
    tree = ast.parse((FOLDER / f"{MODULES[release.vllm]}.py").read_text())
    named = {alias.name for node in ast.walk(tree) for alias in getattr(node, "names", ())}
    named |= {getattr(node, "module", None) or "" for node in ast.walk(tree)}
    assert not {name.rpartition(".")[2] for name in named if isinstance(name, str)} & others


@each_release
def test_what_is_shared_names_no_release(release):
    for file in FOLDER.glob("*.py"):
        if file.stem not in MODULES.values():
            text = file.read_text()
            assert MODULES[release.vllm] not in text and type(release).__name__ not in text


@each_release
def test_without_the_files_of_the_others_a_release_is_whole(release, tmp_path):
    others = [f"{module}.py" for vllm, module in MODULES.items() if vllm != release.vllm]
    folder = tmp_path / "releases"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__", *others))
    arguments = [sys.executable, "-c", ONLY, str(folder), release.vllm]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
