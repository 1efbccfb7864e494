# SPDX-License-Identifier: Apache-2.0
"""Planning and installing on fake modules: every rule, and that refusal changes nothing."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from vllm_ascend.patch.installer import Plan, plan, require_supported_vllm
from vllm_ascend.patch.planner import APPLIED, LEFT_TO_VLLM, NOT_AVAILABLE
from vllm_ascend.patch.table import Add, PatchError, Wrap, source_digest
from vllm_ascend.releases import find_release, supported

CORE = """
def free(blocks):
    return ["free", *blocks]

class Base:
    def inherited(self):
        return "base"

class Pool(Base):
    def size(self):
        return 1

    @classmethod
    def kind(cls):
        return cls.__name__

    @staticmethod
    def unit():
        return "block"
"""
USER = "from fakevllm.core import free\n"


class SealedModule(ModuleType):
    """A module that refuses new globals, so that an installation fails in the middle."""

    def __setattr__(self, name, value):
        if name != "__class__":
            raise AttributeError(f"sealed: {name}")
        super().__setattr__(name, value)


@pytest.fixture
def fake(tmp_path):
    """A package ``fakevllm`` with modules ``core`` and ``user``, importable and forgotten after."""
    names = ["fakevllm", "fakevllm.core", "fakevllm.user"]
    sources = {"__init__": "", "core": CORE, "user": USER}
    (tmp_path / "fakevllm").mkdir()
    for stem, source in sources.items():
        (tmp_path / "fakevllm" / f"{stem}.py").write_text(source)
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))
    for name in names:
        sys.modules.pop(name, None)


def load(name: str):
    return importlib.import_module(name)


COMMON = {
    "feature": "f",
    "why": "because",
    "upstream": "somewhere",
    "remove_when": "vLLM has it itself",
}


def add(target: str, value=42, **kwargs) -> Add:
    return Add(target=f"fakevllm.core:{target}", replacement=value, **{**COMMON, **kwargs})


def wrapped(*args, original, **kwargs):
    return "wrapped", original(*args, **kwargs)


def wrap(target: str, **kwargs) -> Wrap:
    module, _, path = "fakevllm.core", "", target
    owner = load(module)
    *owners, name = path.split(".")
    for part in owners:
        owner = getattr(owner, part)
    digest = source_digest(getattr(owner, name))
    arguments = {**COMMON, "upstream_sha256": (digest,), "aliases": (), **kwargs}
    return Wrap(target=f"{module}:{path}", replacement=wrapped, **arguments)


@contextmanager
def running(version: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vllm.__version__", version)
        yield


def do_install(*patches, version: str = "0.20.2") -> Plan:
    with running(version):
        return plan(patches).install()


def do_plan(*patches, version: str = "0.20.2") -> Plan:
    with running(version):
        return plan(patches)


def snapshot() -> dict[str, dict]:
    core = load("fakevllm.core")
    return {
        "core": dict(vars(core)),
        "Pool": dict(vars(core.Pool)),
        "user": dict(vars(load("fakevllm.user"))),
    }


def test_install_and_undo_restore_exactly(fake):
    before = snapshot()
    core = load("fakevllm.core")
    installation = do_install(
        add("Pool.extra"),
        add("Pool.tool", classmethod(lambda cls: cls.__name__)),
        wrap("Pool.size"),
        wrap("Pool.kind"),
        wrap("Pool.unit"),
        wrap("free", aliases=("fakevllm.user:free",)),
    )
    assert core.Pool.extra == 42
    assert core.Pool.tool() == "Pool"
    assert core.Pool().size() == ("wrapped", 1)
    assert core.Pool.kind() == ("wrapped", "Pool")
    assert core.Pool.unit() == ("wrapped", "block")
    assert load("fakevllm.user").free is core.free
    assert core.free([1]) == ("wrapped", ["free", 1])
    installation.undo()
    assert snapshot() == before
    installation.undo()  # idempotent


def test_installing_again_returns_the_live_installation(fake):
    table = (wrap("Pool.size"),)
    first = do_install(*table)
    assert do_install(*table) is first
    assert load("fakevllm.core").Pool().size() == ("wrapped", 1)
    first.undo()
    second = do_install(*table)
    assert second is not first
    second.undo()


def test_an_alias_module_imported_later_holds_the_replacement(fake):
    installation = do_install(wrap("free", aliases=("fakevllm.user:free",)))
    assert load("fakevllm.user").free([1]) == ("wrapped", ["free", 1])
    sys.modules.pop("fakevllm.user")
    installation.undo()


@pytest.mark.parametrize("version", ["0.20.2", "0.20.2+cpu", "0.20.2+empty"])
def test_builds_of_the_supported_version(fake, version):
    assert [row.status for row in do_plan(add("Pool.extra"), version=version).rows] == [APPLIED]


def test_planning_changes_nothing(fake):
    before = snapshot()
    do_plan(add("Pool.extra"), wrap("Pool.size"))
    assert snapshot() == before


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (lambda: [add("Pool.size")], "Pool.size exists already"),
        (lambda: [add("Gone.size")], "Gone.size does not exist"),
        (lambda: [wrap("Pool.inherited")], r"not defined on its owner \(it is inherited\)"),
        (
            lambda: [wrap("Pool.size", upstream_sha256=("0" * 16,))],
            "Pool.size is not vLLM 0.20.2's",
        ),
        (lambda: [add("Pool.extra"), add("Pool.extra")], "Pool.extra is named twice"),
        (lambda: [wrap("free")], "fakevllm.user:free holds fakevllm.core:free and is not declared"),
        (
            lambda: [wrap("free", aliases=("fakevllm.user:free", "fakevllm.user:other"))],
            "fakevllm.user:other does not hold fakevllm.core:free",
        ),
        (
            lambda: [wrap("Pool.size", upstream_sha256=("0" * 16,)), add("free")],
            "Pool.size is not vLLM.*; .*free exists already",
        ),
    ],
)
def test_a_mismatch_is_refused_and_changes_nothing(fake, table, complaint):
    patches = table()
    before = snapshot()
    with pytest.raises(PatchError, match=complaint) as error:
        do_install(add("Pool.fine"), *patches)
    assert "nothing was changed" in str(error.value)
    assert snapshot() == before


def test_a_failure_in_the_middle_is_rolled_back(fake):
    before = snapshot()
    table = (add("Pool.extra"), wrap("Pool.size"), add("flag"))
    load("fakevllm.core").__class__ = SealedModule
    with pytest.raises(AttributeError, match="sealed"):
        do_install(*table)
    assert snapshot() == before
    load("fakevllm.core").__class__ = ModuleType
    do_install(*table).undo()  # the failed attempt left no trace of being installed


def test_undo_refuses_to_take_back_somebody_elses_patch(fake):
    installation = do_install(add("Pool.extra"), wrap("Pool.size"))
    core = load("fakevllm.core")
    ours = core.Pool.size
    core.Pool.size = lambda self: 99
    with pytest.raises(PatchError, match=r"patched again by somebody else: Pool\.size"):
        installation.undo()
    assert core.Pool.extra == 42
    core.Pool.size = ours
    installation.undo()


def test_undo_reaches_modules_imported_since(fake):
    """They took the replacement through ``from ... import``, declared as an alias or not."""
    original = load("fakevllm.core").free
    table = (wrap("free", aliases=("fakevllm.user:free",)), add("flag", value=False))
    installation = do_install(*table)
    user = load("fakevllm.user")
    user.unrelated = False
    assert user.free is not original
    installation.undo()
    assert user.free is original
    assert user.unrelated is False
    do_install(*table).undo()


def test_a_table_in_force_is_recognised_by_identity(fake):
    table = (add("Pool.extra"), wrap("Pool.size"))
    checked = do_plan(*table)
    installation = checked.install()
    assert checked.install() is installation
    assert do_plan(*reversed(table)) is checked
    assert do_install(*reversed(table)) is installation
    installation.undo()
    assert do_plan(*table) is not checked


def test_another_table_for_the_same_targets_is_refused(fake):
    installation = do_install(add("Pool.extra", 1), wrap("Pool.size"))
    with pytest.raises(PatchError, match=r"Pool\.extra exists already"):
        do_install(add("Pool.extra", 2))
    with pytest.raises(PatchError, match=r"Pool\.size is not vLLM"):
        do_install(wrap("Pool.size", upstream_sha256=("0" * 16,)))
    installation.undo()


def test_a_plan_that_the_world_has_outrun_is_refused(fake):
    core = load("fakevllm.core")
    checked = do_plan(add("Pool.extra"), wrap("Pool.size"))
    core.Pool.size = theirs = lambda self: 99
    with pytest.raises(PatchError, match=r"changed since it was planned: Pool\.size"):
        checked.install()
    assert core.Pool.size is theirs
    assert not hasattr(core.Pool, "extra")


# What a release leaves out, and vLLMs that are none of the supported releases.


@pytest.fixture
def release(monkeypatch):
    """A supported release that has two things itself and lacks one."""

    class Made(type(find_release("0.20.2"))):
        vllm = "0.98.0"
        native = {"fakevllm.core:Pool.extra": "it has it", "fakevllm.core:free": "it has it"}
        absent = {"fakevllm.core:Pool.other": "it has no pools"}

    made = Made()
    monkeypatch.setattr(supported, "SUPPORTED", (*supported.SUPPORTED, made))
    return made


def test_what_a_release_has_itself_is_left_to_it(fake, release):
    before = snapshot()
    installation = do_install(
        add("Pool.extra"), wrap("free"), add("Pool.other", feature="ours"), version=release.vllm
    )
    assert [row.status for row in installation.rows] == [
        LEFT_TO_VLLM,
        LEFT_TO_VLLM,
        NOT_AVAILABLE,
    ]
    assert [row.reason for row in installation.rows][1:] == ["it has it", "it has no pools"]
    assert snapshot() == before
    assert installation.summary() == "vLLM 0.98.0: patches 2 left to vLLM, 1 not available"
    installation.undo()


def test_what_vllm_ascend_has_put_in_vllms_place_can_be_left_to_it(fake, release, monkeypatch):
    core = load("fakevllm.core")
    known = wrap("free", aliases=("fakevllm.user:free",))
    digest = source_digest(load("fakevllm.user").free)
    monkeypatch.setattr(type(release), "native", {})
    monkeypatch.setattr(type(release), "left_to_wrappers", {"fakevllm.core:free": digest})
    before = snapshot()
    installation = do_install(known, version=release.vllm)
    assert snapshot() == before
    assert [row.status for row in installation.rows] == [LEFT_TO_VLLM]
    installation.undo()
    monkeypatch.setattr(type(release), "left_to_wrappers", {"fakevllm.core:free": "another"})
    installation = do_install(known, version=release.vllm)
    assert core.free is not before["core"]["free"]
    installation.undo()


@pytest.mark.parametrize(
    "version", ["0.19.1", "0.21.0", "0.20.1", "0.20.20", "0.20.2.post1", "0.20.2rc1", "0.24.0"]
)
def test_a_vllm_that_is_not_supported_is_refused(fake, version):
    complaint = rf"written for vLLM 0\.20\.2.* running vLLM {version}; nothing was changed$"
    with pytest.raises(PatchError, match=complaint):
        do_plan(add("Pool.extra"), version=version)
    with pytest.raises(PatchError, match=complaint), running(version):
        require_supported_vllm()


@pytest.mark.parametrize("version", ["0.20.2+cpu", "0.23.0"])
def test_a_supported_vllm_is_not_refused(version):
    with running(version):
        require_supported_vllm()


def test_the_digest_ignores_where_a_function_is_indented(tmp_path):
    body = "def f():\n    return 1\n"
    nested = "class C:\n" + "".join(f"    {line}\n" for line in body.splitlines())
    digests = []
    for name, source, path in [("flat", body, "f"), ("nested", nested, "C.f")]:
        file = Path(tmp_path, f"{name}.py")
        file.write_text(source)
        spec = importlib.util.spec_from_file_location(f"digest_{name}", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        value = module
        for part in path.split("."):
            value = getattr(value, part)
        digests.append(source_digest(value))
    assert digests[0] == digests[1]
