# SPDX-License-Identifier: Apache-2.0
"""All patch tables are read, by a child that does not see what the current folder holds."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ut.evaluation.port_report.trees import write_tree
from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.patch import ledger
from vllm_ascend.patch.ledger import collect_patches
from vllm_ascend.patch.table import Add, AddField, PatchError, Rebind, Wrap
from vllm_ascend_evaluation.port_report import patch_table
from vllm_ascend_evaluation.port_report.census import make_section
from vllm_ascend_evaluation.port_report.files import open_files
from vllm_ascend_evaluation.port_report.patch_table import (
    ADDED,
    ADDED_FIELD,
    CHANGED,
    REPLACED,
    PatchTable,
    entry_of,
    read_patch_table,
)

REPOSITORY = Path(__file__).parents[4]
NEXT = REPOSITORY / ".venv-vllm" / "0.23.0"
COMMON = {"feature": "x", "why": "", "upstream": "", "remove_when": "", "replacement": None}


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> PatchTable:
    """The real tables, read where the current folder holds a vLLM that must not be imported."""
    trap = write_tree(tmp_path_factory.mktemp("trap"), {"__init__.py": "raise SystemExit(3)\n"})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(trap)
        return read_patch_table()


def test_every_patch_of_every_table_is_there(table):
    patches = collect_patches()
    assert {entry.target for entry in table.entries} == {patch.target for patch in patches}
    by_target = {entry.target: entry for entry in table.entries}
    for patch in patches:
        entry = by_target[patch.target]
        alone = entry_of(patch)
        assert (entry.feature, entry.evidence) == (alone.feature, alone.evidence)
        assert set(entry.digests) >= set(alone.digests)
        assert set(entry.aliases) >= set(getattr(patch, "aliases", ()))
        assert set(entry.keepers) >= set(getattr(patch, "keepers", ()))


def test_the_base_is_the_vllm_that_is_installed(table):
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None
    assert table.vllm == Path(spec.origin).parents[1]


@pytest.mark.parametrize(
    ("patch", "kind"),
    [
        (Add(target="vllm.a:B.c", **COMMON), ADDED),
        (AddField(target="vllm.a:B.c", type=int, **COMMON), ADDED_FIELD),
        (Wrap(target="vllm.a:B.c", upstream_sha256="0", **COMMON), CHANGED),
        (Rebind(target="vllm.a:B.c", upstream_sha256="0", **COMMON), REPLACED),
    ],
)
def test_kinds_are_those_of_the_ledger(patch, kind):
    entry = entry_of(patch)
    assert (entry.kind, entry.package) == (kind, "vllm")
    assert entry.adds == isinstance(patch, Add)


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        ({"lacks": "vllm"}, ModuleNotFoundError, "No module named 'vllm'"),
        ({"failed": "not vLLM 0.20.2"}, BadInputError, "tables cannot be read: not vLLM 0.20.2"),
        ({"died": "exit code 1: PatchError"}, BadInputError, "cannot be read: exit code 1: Patch"),
    ],
)
def test_a_child_that_fails_is_told(monkeypatch, answer, error, told):
    monkeypatch.setattr(patch_table.children, "ask", lambda *args, **options: answer)
    with pytest.raises(error, match=told):
        read_patch_table()


def test_an_installed_vllm_that_does_not_fit_is_one_sentence(monkeypatch):
    """Not the traceback of the child that was refused."""

    def refuse():
        raise PatchError("the patches do not fit the running vLLM 0.23.0")

    monkeypatch.setattr(ledger, "collect_patches", refuse)
    assert patch_table._answer() == {"failed": "the patches do not fit the running vLLM 0.23.0"}


@pytest.mark.skipif(not NEXT.is_dir(), reason="vLLM 0.23.0 is not unpacked: make other-vllm")
def test_the_real_0_23_0(table):
    """What was found by hand of some targets."""
    base = open_files("--base-vllm", table.vllm, "vllm")
    section = make_section(table.entries, base, [open_files("--vllm", NEXT, "vllm")])
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
