# SPDX-License-Identifier: Apache-2.0
"""An overlay is put on whole or not at all, and taken off without a trace."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.ut.overlay.miniature import COMMIT, snapshot
from vllm_ascend.__main__ import app
from vllm_ascend.deployment import own_package
from vllm_ascend.overlay import OverlayError, apply, make_plan, revert, state, status
from vllm_ascend.releases import SUPPORTED

REPOSITORY = Path(__file__).parents[3]


def put_on(checkout: Path) -> bool:
    plan = make_plan(checkout)
    plan.refuse_misfit(allow_unknown=False)
    return apply(plan)


def test_every_file_of_ours_is_in_its_place(checkout):
    before = snapshot(checkout)
    assert put_on(checkout)
    package = checkout / "vllm_ascend"
    for file in make_plan(checkout).files:
        assert (package / file.path).read_bytes() == (own_package() / file.path).read_bytes()
    for path in ("__init__.py", "envs.py", "platform.py", "patch/platform/__init__.py"):
        assert (package / path).read_bytes() == before[f"vllm_ascend/{path}"][1]
    assert not (package / "models" / "tiny").exists()
    assert (package / "core" / "plan" / "scheduler_facts.py").is_file()
    found = status(checkout)
    assert (found.state, found.head, found.modified) == ("applied", COMMIT, ())


def test_what_was_there_is_restored_byte_for_byte(checkout):
    """Content, modes and times, and no file or folder more."""
    before = snapshot(checkout)
    put_on(checkout)
    assert snapshot(checkout) != before
    compiled = checkout / "vllm_ascend" / "overlay" / "__pycache__"
    compiled.mkdir()
    (compiled / "plan.cpython-311.pyc").touch()
    assert revert(checkout)
    assert snapshot(checkout) == before
    assert status(checkout).state == "absent"


@pytest.fixture
def outside(checkout: Path) -> Path:
    """A file beside a checkout with an overlay."""
    put_on(checkout)
    file = checkout.parent / "outside" / "profile"
    file.parent.mkdir()
    file.write_text("somebody else's")
    return file


def rewrite_manifest(checkout: Path, change) -> None:
    path = checkout / state.STATE_DIRECTORY / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("command", [revert, status, put_on], ids=lambda one: one.__name__)
@pytest.mark.parametrize("key", ["files", "directories"])
@pytest.mark.parametrize(
    "name",
    ["../../outside/profile", "core/../../../outside/profile", "{outside}", "link/profile", "", 1],
    ids=["up", "up from below", "absolute", "link", "empty", "number"],
)
def test_a_manifest_that_names_what_is_outside_is_refused(checkout, outside, name, key, command):
    (checkout / "vllm_ascend" / "link").symlink_to(outside.parent)
    name = name.format(outside=outside) if isinstance(name, str) else name
    digest = hashlib.sha256(outside.read_bytes()).hexdigest()
    entry = {"path": name, "replaces": False, "sha256": digest, "original_sha256": None}
    rewrite_manifest(checkout, lambda it: it[key].append(entry if key == "files" else name))
    before = snapshot(checkout.parent)
    with pytest.raises(OverlayError, match=r"manifest\.json cannot be read .* nothing was changed"):
        command(checkout)
    assert snapshot(checkout.parent) == before


def test_twice_is_as_good_as_once(checkout):
    before = snapshot(checkout)
    assert put_on(checkout)
    once = snapshot(checkout)
    assert not put_on(checkout)
    assert snapshot(checkout) == once
    assert revert(checkout)
    assert not revert(checkout)
    assert snapshot(checkout) == before
    assert put_on(checkout)


FAILING = {"staging": (shutil, "copyfile"), "swapping": (os, "replace"), "linking": (os, "mkdir")}


@pytest.mark.parametrize("part", FAILING)
def test_a_failure_at_any_point_leaves_nothing(checkout, monkeypatch, part):
    """As on a full disk or a target that turns out to be read-only."""
    before = snapshot(checkout)
    module, name = FAILING[part]
    original = getattr(module, name)
    plan = make_plan(checkout)
    for fails_at in (0, 1, 2, len(plan.files) // 2, len(plan.files)):
        calls = iter(range(10**6))

        def failing(*args, _calls=calls, _at=fails_at, **kwargs):
            if next(_calls) == _at:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(module, name, failing)
            try:
                done = apply(plan)
            except OverlayError as error:
                assert "nothing was changed" in str(error) and "No space left" in str(error)
                done = False
        if done:  # the call was never made, or one of a directory that was there already
            revert(checkout)
        assert snapshot(checkout) == before


def run(*arguments: str):
    return CliRunner().invoke(app, ["overlay", *arguments])


def kill_apply(checkout: Path, at: str) -> None:
    """Apply in a process that ends where a statement says so."""
    code = f"""
        import os, sys
        from pathlib import Path
        import pytest
        from tests.ut.overlay.miniature import know
        from vllm_ascend.overlay import apply, make_plan
        root = Path(sys.argv[1])
        know(root, pytest.MonkeyPatch())
        plan = make_plan(root)
        original, calls = os.replace, iter(range(10**6))
        def replace(*paths):
            call = next(calls)  # 0 puts the manifest in its place
            {at} and os._exit(9)
            original(*paths)
        os.replace = replace
        apply(plan)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(checkout)]
    killed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert killed.returncode == 9, killed.stderr


def test_a_process_killed_while_it_is_staging_has_changed_nothing_and_says_so(checkout):
    before = snapshot(checkout)
    kill_apply(checkout, "call == 0")
    result = run("status", str(checkout))
    assert result.exit_code == 1
    first, second = result.output.splitlines()
    assert first == "interrupted: 0 files of ours"
    assert "interrupted before it replaced anything: run `overlay apply` again, or" in second
    assert "`overlay revert`, which removes .vllm-ascend-backport" in second
    assert run("revert", str(checkout)).output == "reverted\n"
    assert snapshot(checkout) == before
    assert status(checkout).state == "absent"
    kill_apply(checkout, "call == 0")
    assert put_on(checkout)
    assert status(checkout).state == "applied"


@pytest.mark.parametrize("renames", (1, 40, 90))
def test_a_process_killed_in_the_middle_is_recovered(checkout, renames):
    before = snapshot(checkout)
    kill_apply(checkout, f"call > {renames}")
    assert status(checkout).state == "half-applied"
    with pytest.raises(OverlayError, match="half of an overlay: run `overlay revert` first"):
        put_on(checkout)
    assert revert(checkout)
    assert snapshot(checkout) == before


PARTS = {"staging": (shutil, "copymode"), "swapping": (os, "replace")}


def interrupt(monkeypatch, part: str, call: int) -> None:
    """Let a user interrupt a part at one of its calls."""
    module, name = PARTS[part]
    original, calls = getattr(module, name), iter(range(10**6))

    def interrupted(*args):
        if next(calls) == call:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(module, name, interrupted)


@pytest.mark.parametrize("part", PARTS)
def test_an_interrupted_apply_is_taken_back_and_says_so(checkout, monkeypatch, part):
    before = snapshot(checkout)
    with monkeypatch.context() as patch:
        interrupt(patch, part, 3)
        result = run("apply", str(checkout))
    told = f"interrupted: overlay apply {checkout}: no file is changed\n"
    assert (result.exit_code, result.output) == (130, told)
    assert snapshot(checkout) == before


def test_an_interrupted_revert_says_what_is_there(checkout, monkeypatch):
    before = snapshot(checkout)
    put_on(checkout)
    with monkeypatch.context() as patch:
        interrupt(patch, "swapping", 3)
        result = run("revert", str(checkout))
    told = f"overlay revert {checkout}: half of the overlay is there; run `overlay revert`\n"
    assert (result.exit_code, result.output) == (130, f"interrupted: {told}")
    assert "interrupted: run `overlay revert`" in run("status", str(checkout)).output
    assert run("revert", str(checkout)).exit_code == 0
    assert snapshot(checkout) == before


def test_apply_and_revert_print_one_line_each(checkout):
    assert run("apply", str(checkout)).output.splitlines()[0].startswith("applied: ")
    assert run("revert", str(checkout)).output == "reverted\n"


def test_a_revert_that_fails_goes_on_where_it_stopped(checkout, monkeypatch):
    before = snapshot(checkout)
    put_on(checkout)
    original, calls = Path.unlink, iter(range(10**6))

    def failing(self, *args, **kwargs):
        if next(calls) == 20:
            raise PermissionError(errno.EACCES, "Permission denied")
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", failing)
        with pytest.raises(OverlayError, match=r"try again: .*Permission denied"):
            revert(checkout)
    assert status(checkout).state == "half-applied"
    assert revert(checkout)
    assert snapshot(checkout) == before


def test_a_change_to_our_files_is_not_lost_silently(checkout):
    before = snapshot(checkout)
    put_on(checkout)
    (checkout / "vllm_ascend" / "core" / "plan" / "scheduler_facts.py").write_text("# by hand\n")
    assert status(checkout).modified == ("core/plan/scheduler_facts.py",)
    with pytest.raises(OverlayError, match=r"core/plan/scheduler_facts\.py"):
        revert(checkout)
    with pytest.raises(OverlayError, match="changed since"):
        put_on(checkout)
    assert revert(checkout, discard_changes=True)
    assert snapshot(checkout) == before


def test_files_of_others_in_our_folders_stay(checkout):
    put_on(checkout)
    note = checkout / "vllm_ascend" / "overlay" / "note.txt"
    note.write_text("mine")
    assert revert(checkout)
    assert note.read_text() == "mine"


def test_an_original_is_kept_for_every_file_replaced(checkout):
    replaced = {file.path for file in make_plan(checkout).files if file.replaces}
    assert replaced == SUPPORTED[0].replaced
