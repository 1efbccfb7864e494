# SPDX-License-Identifier: Apache-2.0
"""What the report says of a patch when something about its target was changed on purpose."""

from __future__ import annotations

import textwrap
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.ut.evaluation.port_report.trees import make_files, write_tree
from vllm_ascend.overlay.patch_list import ADDED, ADDED_FIELD, CHANGED, REPLACED, ListedPatch
from vllm_ascend.patch.table import source_digest
from vllm_ascend_evaluation.port_report import words
from vllm_ascend_evaluation.port_report.census import Cell, Section, make_section
from vllm_ascend_evaluation.port_report.files import open_files

POOL = '''
    class BlockPool:
        size: int

        def __init__(self, size): ...

        def free(self, blocks, first=False):
            """Free blocks."""
            return blocks
    '''
BASE = {
    "pool.py": POOL,
    "manager.py": "from vllm.pool import BlockPool\n\ndef make(): return BlockPool()\n",
    "layer.py": "class Cache: ...\n",
}
FREE = ListedPatch("vllm.pool:BlockPool.free", "retention", CHANGED)
MAKE = ListedPatch("vllm.manager:make", "retention", CHANGED)


@pytest.fixture
def judge(tmp_path):
    """Judges one patch on the base with some modules replaced; ``None`` takes one away."""

    def judge(
        entry: ListedPatch, base: dict[str, str] | None = BASE, **modules: str | None
    ) -> Cell:
        changed = {**BASE, **{f"{name}.py": text for name, text in modules.items()}}
        tree = {path: text for path, text in changed.items() if text is not None}
        original = None if base is None else make_files(tmp_path / "base", base)
        root = Path(mkdtemp(dir=tmp_path))  # none of what another call has written
        section = make_section([entry], original, [make_files(root, tree)])
        (row,) = section.rows
        return row.cells[0]

    return judge


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("Free blocks.", "Hand blocks back.", Cell("same")),
        ("return blocks", "return blocks  # as they are", Cell("same")),
        ("return blocks", "return list(blocks)", Cell("body")),
        ("first=False", "prepend=False", Cell("SIGNATURE", came=("prepend",), went=("first",))),
        ("def free", "@staticmethod\n        def free", Cell("SIGNATURE", changed=("KIND",))),
        ("def free", "async def free", Cell("SIGNATURE", changed=("ASYNC",))),
        ("def free", "@traced\n        def free", Cell("body")),
        ("def free", "def release", Cell("GONE")),
        ("class BlockPool", "class Pool", Cell("GONE")),
        ("def __init__(self, size): ...", "def __init__(self): ...", Cell("same")),
    ],
)
def test_a_changed_function(judge, old, new, expected):
    words_of = {
        "KIND": "a staticmethod, was a function",
        "ASYNC": "async, a function, was a function",
    }
    expected = Cell(**{**vars(expected), "changed": tuple(words_of[w] for w in expected.changed)})
    assert old in POOL
    assert judge(FREE, pool=POOL.replace(old, new)) == expected


def test_a_module_that_is_gone(judge):
    assert judge(FREE, pool=None) == Cell("module gone")


def test_a_class_that_has_moved(judge):
    cell = judge(FREE, pool=None, blocks=POOL)
    assert cell == Cell("module gone", moved_to=("vllm.blocks:BlockPool.free",))


def test_a_class_that_has_moved_and_can_be_imported_from_where_it_was(judge):
    cell = judge(FREE, pool="from vllm.blocks import BlockPool\n", blocks=POOL)
    assert cell == Cell("imported name", imported_from="vllm.blocks:BlockPool.free")
    without = POOL.replace("def free", "def release")
    cell = judge(FREE, pool="from vllm.blocks import BlockPool\n", blocks=without)
    assert cell == Cell("GONE", moved_to=("vllm.blocks:BlockPool",))


def test_a_class_that_stays_where_it_was_has_not_moved(judge):
    assert judge(FREE, None, pool=POOL.replace("def free", "def release")) == Cell("GONE")


def test_an_inherited_method_is_gone_from_the_class_and_found_in_its_base(tmp_path):
    tree = {
        "pool.py": "from vllm.common import Common\nclass BlockPool(Common): ...\n",
        "common.py": "class Common:\n    def free(self, blocks, first=False): return blocks\n",
    }
    base = make_files(tmp_path / "base", BASE)
    section = make_section([FREE], base, [make_files(tmp_path / "tree", tree)])
    assert section.rows[0].cells == (Cell("GONE", moved_to=("vllm.common:Common.free",)),)


def test_a_class_that_is_replaced(judge):
    entry = ListedPatch("vllm.pool:BlockPool", "specs", REPLACED)
    assert judge(entry) == Cell("same")
    assert judge(entry, pool=POOL.replace("size: int", "length: int")) == Cell(
        "body", came=("length",), went=("size",)
    )
    imported = ListedPatch("vllm.manager:BlockPool", "specs", REPLACED)
    assert judge(imported) == Cell("imported name", imported_from="vllm.pool:BlockPool")


@pytest.mark.parametrize("kind", [ADDED, ADDED_FIELD])
def test_what_is_added_is_native_or_absent(judge, kind):
    entry = ListedPatch("vllm.pool:BlockPool.ranks", "retention", kind)
    assert judge(entry) == Cell("absent")
    assert judge(entry, pool=POOL.replace("size: int", "ranks: int")) == Cell("NATIVE")
    assert judge(entry, pool="x = 1\n") == Cell("GONE")
    assert judge(entry, pool=None) == Cell("module gone")


@pytest.mark.parametrize(
    "evidence", ["vllm.pool:BlockPool.free(first)", "vllm.pool:BlockPool.size"]
)
def test_evidence_makes_native_what_would_be_added(judge, evidence):
    entry = ListedPatch("vllm.pool:BlockPool.ranks", "retention", ADDED, evidence)
    assert judge(entry) == Cell("NATIVE", has=evidence)
    assert judge(entry, pool="class BlockPool: ...\n") == Cell("absent")


def test_evidence_is_told_beside_what_became_of_a_changed_function(judge):
    """A port has to know both: that the tree has the feature, and what its function is like."""
    evidence = "vllm.pool:BlockPool.free(prepend)"
    entry = ListedPatch("vllm.pool:BlockPool.free", "retention", CHANGED, evidence)
    assert judge(entry) == Cell("same")
    cell = judge(entry, pool=POOL.replace("first=False", "first=False, prepend=False"))
    assert cell == Cell("SIGNATURE", came=("prepend",), has=evidence)


def test_evidence_may_be_inherited(judge):
    evidence = "vllm.manager:Manager.free"
    entry = ListedPatch("vllm.manager:make", "retention", CHANGED, evidence)
    manager = BASE["manager.py"] + "\nclass Manager(BlockPool): ...\n"
    assert judge(entry, manager=manager).has == evidence


def test_without_a_base_the_digest_tells(judge, tmp_path):
    namespace: dict = {}
    module = tmp_path / "module.py"
    module.write_text("def make(): return 1\n")
    exec(compile(module.read_text(), str(module), "exec"), namespace)
    entry = ListedPatch(
        "vllm.manager:make", "x", CHANGED, digests=(source_digest(namespace["make"]),)
    )
    assert judge(entry, None, manager="def make(): return 1\n") == Cell("same", by_digest=True)
    other = judge(entry, None, manager="def make():\n    return 1\n")
    assert other == Cell("other digest", by_digest=True)


def test_a_target_that_the_base_does_not_have_is_judged_by_its_digest(judge):
    """A patch for a later release has a target there only."""
    cell = judge(ListedPatch("vllm.new:make", "x", CHANGED), new="def make(): return 1\n")
    assert cell == Cell("other digest", by_digest=True)


def test_a_module_that_cannot_be_parsed_is_one_status_and_no_end(judge):
    assert judge(FREE, pool="def f(:\n") == Cell("cannot be read")


ALIASED = ListedPatch(
    *("vllm.pool:make", "retention", CHANGED),
    aliases=("vllm.manager:make", "vllm.worker:make"),
)
HOLDERS = {
    "pool.py": "def make(): ...\n",
    "manager.py": "from vllm.pool import make\n",
    "worker.py": "try:\n    from vllm.pool import make\nexcept ImportError:\n    make = None\n",
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"manager.py": "from vllm.pool import other\n"}, [("vllm.manager:make", "GONE")]),
        (
            {"manager.py": "if TYPE_CHECKING:\n    from vllm.pool import make\n"},
            [("vllm.manager:make", "GONE")],
        ),
        (
            {"worker.py": "def f():\n    from vllm.pool import make\n"},
            [("vllm.worker:make", "GONE")],
        ),
    ],
)
def test_an_alias_has_a_row_only_when_it_is_gone(tmp_path, changed, expected):
    base = make_files(tmp_path / "base", HOLDERS)
    tree = make_files(tmp_path / "tree", {**HOLDERS, **changed})
    section = make_section([ALIASED], base, [base, tree])
    assert [(row.target, row.cells[1].status) for row in section.holders] == expected
    assert all((row.kind, row.cells[0].status) == ("alias", "held") for row in section.holders)


def test_a_keeper_is_told_once_however_many_patches_name_it(tmp_path):
    keepers = ("vllm.gone:Cache",)
    entries = [
        ListedPatch(target, "specs", REPLACED, keepers=keepers)
        for target in ("vllm.layer:Cache", "vllm.manager:BlockPool")
    ]
    files = make_files(tmp_path, BASE)
    section = make_section(entries, files, [files])
    assert [(row.target, row.kind) for row in section.holders] == [("vllm.gone:Cache", "keeper")]
    assert section.holders[0].cells == (Cell("module gone"),)


def test_columns_are_called_by_version_or_else_by_name(tmp_path):
    version = {"_version.py": "__version__ = version = '0.30.0'\n"}
    trees = [
        make_files(tmp_path / "a", version),
        make_files(tmp_path / "b", version),
        make_files(tmp_path / "c", {}),
    ]
    section = make_section([], None, trees)
    assert [tree.label for tree in section.trees] == ["0.30.0 (1)", "0.30.0 (2)", "c"]
    assert [tree.version for tree in section.trees] == ["0.30.0", "0.30.0", None]


def test_patches_of_another_package_are_no_rows(tmp_path):
    other = ListedPatch("vllm_ascend.utils:f", "x", CHANGED)
    files = make_files(tmp_path, BASE)
    section = make_section([FREE, other, MAKE, FREE], files, [files])
    assert [row.target for row in section.rows] == [FREE.target, FREE.target, MAKE.target]


def section_of(root: Path, **changed: str) -> Section:
    """Return a section with a patch of every module of ``BASE``."""
    base = make_files(root / "base", BASE)
    tree = write_tree(root / "tree", {**BASE, **changed})
    cache = ListedPatch("vllm.layer:Cache", "specs", REPLACED)
    return make_section([FREE, MAKE, cache], base, [open_files("--vllm", tree, "vllm")])


def test_a_summary_counts_every_patch_once(tmp_path):
    tree = {"pool.py": POOL.replace("first", "last"), "layer.py": ""}
    counted = dict(words.counts(section_of(tmp_path, **tree)))
    assert counted == {
        "same": [1],
        "SIGNATURE": [1],
        "gone or moved": [1],
        "patches": [3],
        "undecided": [3],
    }


def test_details_put_together_trees_of_which_the_same_is_true(tmp_path):
    base = make_files(tmp_path / "base", BASE)
    pool = {"pool.py": textwrap.dedent(POOL).replace("first", "last")}
    trees = [make_files(tmp_path / name, pool) for name in ("x", "y")]
    section = make_section([FREE], base, [*trees, base])
    assert list(words.details(section.rows[0], section)) == [("x, y", "+last -first")]
