# SPDX-License-Identifier: Apache-2.0
"""Patches of modules that are imported later, on a package that is forgotten after."""

import importlib
import sys

import pytest

from vllm_ascend.patch.table import Add, PatchError, changes, source_digest
from vllm_ascend.patch.upstream import late

FEATURE = {"feature": "f", "upstream": "somewhere", "remove_when": "vLLM has it itself"}


def shape() -> str:
    return "theirs"


SOURCE = 'def shape() -> str:\n    return "theirs"\n'


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package ``fakelate`` of which nothing is imported; what it is waited for is forgotten."""
    folder = tmp_path / "fakelate"
    folder.mkdir()
    for name, source in {"__init__": "", "core": SOURCE}.items():
        (folder / f"{name}.py").write_text(source)
    (folder / "user.py").write_text("from fakelate.core import shape\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(late, "_WAITING", type(late._WAITING)(dict))
    monkeypatch.setattr(late, "_SET", {})
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "fakelate"]:
        del sys.modules[name]
    if late._FINDER in sys.meta_path:
        sys.meta_path.remove(late._FINDER)


def table() -> tuple:
    @changes(
        "fakelate.core:shape",
        FEATURE,
        upstream_sha256=(source_digest(shape),),
        aliases=("fakelate.user:shape",),
    )
    def wrap_shape(*, original):
        """It is wrong."""
        return f"ours instead of {original()}"

    flag = Add(target="fakelate.core:flag", replacement=True, why="It is missing.", **FEATURE)
    return wrap_shape, flag


def test_patches_are_set_with_the_import_and_the_finder_leaves(package):
    patches = table()
    late.install_when_imported(patches)
    late.install_when_imported(patches)  # once is enough
    assert "fakelate.core" not in sys.modules
    assert not any(map(late.is_set, patches))
    core = importlib.import_module("fakelate.core")
    assert all(map(late.is_set, patches))
    assert (core.shape(), core.flag) == ("ours instead of theirs", True)
    assert late._FINDER in sys.meta_path, "it waits for the alias"
    assert importlib.import_module("fakelate.user").shape is core.shape
    assert late._FINDER not in sys.meta_path


def test_what_is_imported_already_is_changed_at_once(package):
    user = importlib.import_module("fakelate.user")
    late.install_when_imported(table())
    assert user.shape() == "ours instead of theirs"
    assert user.shape is sys.modules["fakelate.core"].shape
    assert late._FINDER not in sys.meta_path


def test_another_source_is_refused_however_often_it_is_imported(package):
    (package / "core.py").write_text(SOURCE.replace("theirs", "somebody else's"))
    late.install_when_imported(table())
    for _ in range(2):
        with pytest.raises(PatchError, match=r"core:shape was replaced by somebody else"):
            importlib.import_module("fakelate.core")
        assert "fakelate.core" not in sys.modules


@pytest.mark.parametrize("is_there", (False, True))
def test_a_follower_is_imported_behind_its_module(package, is_there):
    """Workers of some releases import no module of ours by themselves."""
    if is_there:
        importlib.import_module("fakelate.core")
    late.import_behind("fakelate.core", "fakelate.user")
    assert ("fakelate.user" in sys.modules) == is_there
    importlib.import_module("fakelate.core")
    assert "fakelate.user" in sys.modules
