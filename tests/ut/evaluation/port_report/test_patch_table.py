# SPDX-License-Identifier: Apache-2.0
"""Every patch of every table is listed, and looked up in a real release."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tools.patch_ledger import collect_patches
from vllm_ascend.overlay.patch_list import ListedPatch, all_patches, kind_of
from vllm_ascend.patch.table import Add
from vllm_ascend.releases import SUPPORTED
from vllm_ascend_evaluation.port_report.census import make_section
from vllm_ascend_evaluation.port_report.files import open_files

REPOSITORY = Path(__file__).parents[4]
NEXT = REPOSITORY / ".venv-vllm" / "0.23.0"


@pytest.fixture(scope="module")
def entries() -> tuple[ListedPatch, ...]:
    return all_patches()


def test_every_patch_of_every_table_is_there(entries):
    patches = collect_patches()
    assert {entry.target for entry in entries} == {patch.target for patch in patches}
    by_target = {entry.target: entry for entry in entries}
    additions = {patch.target for patch in patches if isinstance(patch, Add)}
    for patch in patches:
        entry = by_target[patch.target]
        assert (entry.feature, entry.package) == (patch.feature, patch.package)
        assert entry.adds == (patch.target in additions)
        assert entry.kind == kind_of(patch) or entry.adds
        assert entry.superseded_by == patch.superseded_by or entry.adds
        for release in SUPPORTED:
            assert set(entry.digests) >= {*release.digests_of(patch.target)}
        assert set(entry.aliases) >= set(getattr(patch, "aliases", ()))
        assert set(entry.keepers) >= set(getattr(patch, "keepers", ()))


def test_the_table_is_read_without_vllm():
    """A vLLM whose modules the patches lack (0.30.0) would otherwise end the report."""
    code = (
        "import sys; sys.modules['vllm'] = None; "
        "from vllm_ascend.overlay.patch_list import all_patches; "
        "print(len(all_patches()))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert int(result.stdout) > 90


@pytest.mark.skipif(not NEXT.is_dir(), reason="vLLM 0.23.0 is not unpacked: make other-vllm")
def test_the_real_0_23_0(entries):
    """What was found by hand of some targets."""
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None
    base = open_files("--base-vllm", Path(spec.origin).parents[1], "vllm")
    section = make_section(entries, base, [open_files("--vllm", NEXT, "vllm")])
    assert [tree.label for tree in section.trees] == ["0.23.0"]
    cells = {row.target: row.cells[0] for row in section.rows}
    core = "vllm.v1.core"
    assert cells[f"{core}.kv_cache_utils:generate_block_hash_extra_keys"].status == "same"
    assert cells[f"{core}.sched.scheduler:Scheduler.__init__"].status == "body"
    freed = cells[f"{core}.block_pool:BlockPool.free_blocks"]
    assert (freed.status, freed.came, freed.went) == ("SIGNATURE", ("prepend",), ())
    assert freed.has == f"{core}.block_pool:BlockPool.free_blocks(prepend)"
    assert cells[f"{core}.kv_cache_utils:FreeKVCacheBlockQueue.prepend_n"].status == "NATIVE"
    copies = f"{core}.kv_cache_manager:KVCacheManager.take_kv_cache_block_copies"
    assert cells[copies].status == "absent"
    layers = "vllm.model_executor.layers"
    moved = cells[f"{layers}.deepseek_compressor:CompressorStateCache"]
    assert moved.status == "module gone"
    assert moved.moved_to == ("vllm.models.deepseek_v4.compressor:CompressorStateCache",)
    imported = cells[f"{layers}.attention.mla_attention:MLAAttentionSpec"]
    assert imported.status == "imported name"
    assert imported.imported_from == "vllm.v1.kv_cache_interface:MLAAttentionSpec"
    gone = {row.target: row.cells[0].status for row in section.holders}
    keeper = "vllm.model_executor.models.extract_hidden_states:MLAAttentionSpec"
    assert gone[keeper] == "GONE"


@pytest.mark.parametrize("release", SUPPORTED, ids=lambda release: release.vllm)
def test_a_supported_release_leaves_no_patch_undecided(entries, release):
    folder = REPOSITORY / ".venv-vllm" / release.vllm
    if not folder.is_dir():
        spec = find_spec("vllm")
        assert spec is not None and spec.origin is not None
        folder = Path(spec.origin).parents[1]
    files = open_files("--vllm", folder, "vllm")
    if files.version is None or files.version.partition("+")[0] != release.vllm:
        pytest.skip(f"vLLM {release.vllm} is not unpacked: make other-vllm")
    (tree,) = make_section(entries, None, [files]).trees
    assert tree.undecided == ()
