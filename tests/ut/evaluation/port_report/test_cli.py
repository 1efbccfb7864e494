# SPDX-License-Identifier: Apache-2.0
"""The command: what it prints at which width, what it writes, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.ut.evaluation.port_report.trees import write_tree
from vllm_ascend.__main__ import app
from vllm_ascend.doctor import children
from vllm_ascend.overlay import patch_list
from vllm_ascend.overlay.patch_list import ADDED, CHANGED, ListedPatch

VERSION = "__version__ = version = '{}'\n"
# An import of a tree ends the test at once.
TRAP = "raise SystemExit('imported')\n"
POOL = "class BlockPool:\n    def free_all_of_them_at_once(self, blocks, first=False): ...\n"
ENTRIES = (
    ListedPatch("vllm.pool:BlockPool.free_all_of_them_at_once", "retention", CHANGED),
    ListedPatch("vllm.pool:BlockPool.ranks", "retention", ADDED),
    ListedPatch("vllm.manager:make", "retention", CHANGED, aliases=("vllm.engine:make",)),
    ListedPatch("vllm_ascend.utils:refresh_block_size", "layout", CHANGED, digests=("0" * 16,)),
)


def release(root: Path, version: str, **modules: str) -> Path:
    tree = {"__init__.py": TRAP, "_version.py": VERSION.format(version), "pool.py": POOL}
    return write_tree(root / version, {**tree, **{f"{n}.py": t for n, t in modules.items()}})


@pytest.fixture
def trees(tmp_path, monkeypatch) -> list[str]:
    """A base that is installed, two releases of vLLM and one of vllm-ascend; their options."""
    make = "def make(): ...\n"
    base = release(tmp_path, "0.1", manager=make, engine="from vllm.manager import make\n")
    monkeypatch.setattr(patch_list, "all_patches", lambda: ENTRIES)
    monkeypatch.setattr(children, "find_package", lambda name, environ: base / name)
    changed = {"pool": POOL.replace("first", "last")}
    second = release(tmp_path, "0.2", manager=make, engine="from vllm.manager import make\n")
    third = release(tmp_path, "0.3", maker=make, **changed)
    ascend = {"__init__.py": TRAP, "utils.py": "def refresh_block_size(): ...\n"}
    fourth = write_tree(tmp_path / "ascend", ascend, "vllm_ascend")
    return ["--vllm", str(second), "--vllm", str(third), "--vllm-ascend", str(fourth)]


def run(*arguments: str, columns: int = 80):
    return CliRunner().invoke(
        app, ["port-report", *arguments], env={"COLUMNS": str(columns)}, catch_exceptions=False
    )


EXPECTED = """\
vLLM, compared with 0.1
                         0.2  0.3
  same                     2    0
  SIGNATURE                0    1
  absent                   1    1
  gone or moved            0    1
  patches                  3    3
  undecided                2    2
  aliases, keepers gone    0    1

vllm-ascend, by the digests of the patches only (more with --base-vllm-ascend)
                 ascend
  other digest        1
  gone or moved       0
  patches             1
  undecided           1

vLLM, target by target
                                        0.2          0.3
  vllm.pool
    BlockPool.free_all_of_them_at_once  same         SIGNATURE
    BlockPool.ranks                     absent       absent
  vllm.manager
    make                                same         module gone

vLLM, aliases and keepers that are gone
          0.2          0.3
  vllm.engine
    make  held         module gone

vLLM, what is different
  vllm.pool
    BlockPool.free_all_of_them_at_once
      0.3: +last -first
  vllm.manager
    make
      0.3: moved to vllm.maker:make

vllm-ascend, target by target
                        ascend
  vllm_ascend.utils
    refresh_block_size  other digest

"""


def test_numbers_come_first_then_targets_then_details(trees):
    result = run(*trees)
    assert (result.exit_code, result.stdout) == (0, EXPECTED)


def test_on_a_phone_trees_stand_below_each_other(trees):
    result = run(*trees, columns=45)
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 45
    start = lines.index("    BlockPool.free_all_of_them_at_once")
    assert lines[start + 1 : start + 3] == ["      0.2: same", "      0.3: SIGNATURE"]
    assert "      0.2, 0.3: absent" in lines


def test_json_and_the_page_say_what_the_terminal_says(trees, tmp_path):
    out = tmp_path / "new" / "report.json"
    page = tmp_path / "report.md"
    result = run(*trees, "--json", str(out), "--markdown", str(page))
    assert result.stdout == f"{EXPECTED}written to {out}\nwritten to {page}\n"
    report = json.loads(out.read_text())
    vllm, ascend = report["sections"]
    assert (report["schema"], vllm["base"]["version"], ascend["base"]) == (1, "0.1", None)
    assert [tree["version"] for tree in vllm["trees"]] == ["0.2", "0.3"]
    assert vllm["trees"][0]["counts"]["same"] == 2
    cell = vllm["rows"][0]["cells"]["0.3"]
    assert (cell["status"], cell["came"], cell["went"]) == ("SIGNATURE", ["last"], ["first"])
    assert vllm["holders"][0]["kind"] == "alias"
    assert ascend["rows"][0]["cells"]["ascend"]["by_digest"]
    text = page.read_text()
    assert "| `vllm.manager:make` | retention | changed | same | module gone |\n" in text
    assert "- `vllm.manager:make`, 0.3: `moved to vllm.maker:make`\n" in text
    assert "- *SIGNATURE*: another signature\n" in text


def test_the_same_trees_give_the_same_files(trees, tmp_path):
    files = [(tmp_path / f"{n}.json", tmp_path / f"{n}.md") for n in range(2)]
    for out, page in files:
        run(*trees, "--json", str(out), "--markdown", str(page))
    (first, page), (second, other_page) = files
    assert first.read_bytes() == second.read_bytes()
    assert page.read_bytes() == other_page.read_bytes()


def test_a_base_of_vllm_ascend_replaces_the_digests(trees):
    result = run(*trees, "--base-vllm-ascend", trees[-1])
    assert "vllm-ascend, compared with ascend\n" in result.stdout
    assert "other digest" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "nothing to look at: give --vllm PATH or --vllm-ascend PATH"),
        (("--vllm", "nowhere"), "--vllm nowhere: does not exist; expected a folder"),
        (("--vllm-ascend", "."), "--vllm-ascend .: holds no package vllm_ascend; expected"),
        (("--base-vllm", "."), "--base-vllm .: holds no package vllm; expected a folder"),
        (("--base-vllm-ascend", "."), "--base-vllm-ascend .: holds no package vllm_ascend"),
        (("--json", "."), "--json .: is a folder, expected a file to write"),
        (("--markdown", "file/page.md"), "--markdown file: is a file, expected a folder"),
        (("--json", "x", "--markdown", "./x"), "--markdown x: is the file of --json as well"),
    ],
)
def test_bad_input_is_one_error_and_writes_nothing(trees, tmp_path, monkeypatch, arguments, told):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "file").touch()
    monkeypatch.chdir(empty)
    given = trees[:2] if arguments and "--vllm" not in arguments else []
    result = run("--json", "new/report.json", *given, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {told}")
    assert len(result.stderr.splitlines()) == 1
    assert [path.name for path in empty.iterdir()] == ["file"]


def test_without_a_vllm_to_compare_with_it_asks_for_one(trees, monkeypatch):
    monkeypatch.setattr(children, "find_package", lambda name, environ: None)
    result = run(*trees)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "error: --base-vllm: this Python has no vLLM: name the folder of the one that the patches "
        "are for\n"
    )
    assert run(*trees[4:]).exit_code == 0  # of vllm-ascend alone


def test_the_current_folder_is_not_the_base(tmp_path, monkeypatch):
    """It may hold the tree that is looked at."""
    trap = write_tree(tmp_path, {"__init__.py": TRAP})
    monkeypatch.chdir(trap)
    found = children.find_package("vllm", dict(os.environ))
    assert found is not None and found.parent != trap
