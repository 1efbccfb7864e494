# SPDX-License-Identifier: Apache-2.0
"""The ledger follows the tables, and the tables follow the house rules."""

import importlib
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import vllm_ascend
from tools import patch_ledger as ledger
from vllm_ascend.patch import platform, worker
from vllm_ascend.patch.upstream import installation as upstream
from vllm_ascend.patch.worker import patch_deepseek_compressor
from vllm_ascend.releases import SUPPORTED
from vllm_ascend.row_layout import patch_spec_classes
from vllm_ascend_evaluation.models import patches as cpu_patches

# What is in force somewhere: beside vLLM, on the CPU, or over a checkout of vllm-ascend.
PATCHES = (
    *platform.PATCHES,
    *worker.PATCHES,
    *cpu_patches.PATCHES,
    *patch_deepseek_compressor.PATCHES,
    *patch_spec_classes.PATCHES,
    *upstream.TABLE,
)


def test_every_patch_module_is_in_force():
    found = (*ledger.collect_patches(), *ledger.collect_patches(cpu_patches))
    assert {patch.target for patch in found} == {p.target for p in PATCHES}


def test_every_patch_file_is_walked():
    for room in ledger.ROOMS:
        files = {path.stem for path in Path(room.__file__).parent.rglob("patch_*.py")}
        assert {name.rpartition(".")[2] for name in ledger.patch_modules(room)} == files
    package = Path(vllm_ascend.__file__).parent
    rooms = {path.relative_to(package).parts[0] for path in package.rglob("patch_*.py")}
    assert {f"vllm_ascend.{room}" for room in rooms - {"overlay"}} == {
        room.__name__ for room in ledger.ROOMS
    }


def test_a_patch_file_without_a_table_is_refused(tmp_path, monkeypatch):
    """Also in a package of its own, and a table may be empty if it says so."""
    package = tmp_path / "ledgerpackage" / "worker"
    package.mkdir(parents=True)
    for path in (package.parent, package):
        (path / "__init__.py").touch()
    (package / "patch_empty.py").write_text("PATCHES = ()\n")
    (package / "helper.py").write_text("raise AssertionError('not a patch file')\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        root = importlib.import_module("ledgerpackage")
        assert list(ledger.patch_modules(root)) == ["ledgerpackage.worker.patch_empty"]
        assert ledger.collect_patches(root) == ()
        (package / "patch_untold.py").touch()
        importlib.invalidate_caches()
        with pytest.raises(AttributeError, match=r"patch_untold.*PATCHES"):
            ledger.collect_patches(root)
    finally:
        for name in [n for n in sys.modules if n.split(".")[0] == "ledgerpackage"]:
            del sys.modules[name]


def test_rendering_is_deterministic():
    assert ledger.render(ledger.collect_patches()) == ledger.render(ledger.collect_patches())


def test_the_shipped_ledger_is_up_to_date():
    assert ledger.main(["--check"]) == 0


def test_a_stale_ledger_is_noticed_and_mended(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ledger, "LEDGER", tmp_path / "docs" / "patches.md")
    monkeypatch.setattr(ledger, "PATCH_LIST", tmp_path / "overlay" / "patches.json")
    assert ledger.main(["--check"]) == 1
    assert "patches.md, patches.json stale" in capsys.readouterr().err
    assert ledger.main([]) == 0
    assert ledger.main(["--check"]) == 0


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.target.partition(":")[2])
def test_entries_are_complete(patch):
    assert patch.why.endswith(".")
    assert re.fullmatch(r"vllm-project/(vllm|vllm-ascend)#\d+|none: .+", patch.upstream)
    if not re.fullmatch(r"vLLM('s)? .+|vllm-ascend('s)? .+", patch.remove_when):
        requirement = Requirement(patch.remove_when)
        for release in SUPPORTED:
            has_it = requirement.specifier.contains(release.vllm)
            assert has_it == (patch.target in release.native), f"vLLM {release.vllm}"
        assert patch.superseded_by, "a patch that can go must know when"


def test_the_ledger_says_why_and_which_releases_do_without():
    of_target: dict[tuple[str, str], str] = {}
    heading = ""
    for line in ledger.render(PATCHES).splitlines():
        if line.startswith("## "):
            heading = ""
        elif line.endswith(":"):
            heading = line
        elif line.startswith("- "):
            targets, _, why = line.rpartition("`: ") if "`: " in line else line.rpartition("): ")
            for target in re.findall(r"`([^`]+)`", targets + "`"):
                of_target[target, why] = heading
    for patch in PATCHES:
        left, _, needless = of_target[patch.target, patch.why].lower().partition("not on")
        for release in SUPPORTED:
            assert (release.vllm in left) == (patch.target in release.native)
            is_there = release.vllm_ascend or patch.package != "vllm_ascend"
            assert (release.vllm in needless) == bool(is_there and patch.target in release.absent)


def test_the_ledger_names_holders():
    text = ledger.render(PATCHES)
    assert "`vllm.v1.core.kv_cache_manager:get_kv_cache_coordinator`" in text
