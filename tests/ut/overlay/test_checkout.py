# SPDX-License-Identifier: Apache-2.0
"""Which checkouts are accepted, and what is said of the others."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.ut.overlay.miniature import COMMIT, know, make_checkout, snapshot
from vllm_ascend.__main__ import app
from vllm_ascend.overlay import OverlayError, apply, make_plan, revert
from vllm_ascend.overlay import checkout as overlay_checkout
from vllm_ascend.overlay.patch_list import listed_patches
from vllm_ascend.releases import WITH_OVERLAY, Release


def run(*arguments: str):
    return CliRunner().invoke(app, ["overlay", *arguments])


def edit(checkout: Path, path: str, old: str, new: str) -> None:
    file = checkout / "vllm_ascend" / path
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def refusal(checkout: Path, *, allow_unknown: bool = False) -> str:
    with pytest.raises(OverlayError) as error:
        make_plan(checkout).refuse_misfit(allow_unknown=allow_unknown)
    return str(error.value)


def test_a_known_checkout_is_recognised_without_git(checkout):
    planned = make_plan(checkout)
    assert planned.checkout.head == COMMIT
    planned.refuse_misfit(allow_unknown=False)
    apply(planned)
    assert make_plan(checkout).checkout.head == COMMIT  # also under the overlay


def test_what_builds_write_does_not_count(checkout):
    (checkout / "vllm_ascend" / "_build_info.py").write_text("__device_type__ = 'A3'\n")
    assert make_plan(checkout).checkout.head == COMMIT


def test_a_change_around_what_the_overlay_rests_on_is_told_and_taken(checkout):
    edit(checkout, "models/deepseek_v4.py", "Model", "MyModel")
    edit(checkout, "utils.py", "def", "# of somebody's\ndef")
    for command in ("plan", "apply"):
        said = run(command, str(checkout)).output
        assert "no known state of vllm-ascend: 2 files differ from commit 01234567" in said
        assert "npu-check" in said and "would refuse" not in said
    assert "nothing to do" in run("apply", str(checkout)).output


def test_a_change_inside_what_the_overlay_rests_on_is_refused_unless_told_otherwise(
    tmp_path, monkeypatch
):
    release = next(r for r in WITH_OVERLAY if "worker/block_table.py" in r.left_out)
    checkout = make_checkout(tmp_path / "vllm-ascend", release)
    know(checkout, monkeypatch, release.vllm)
    edit(checkout, "worker/block_table.py", "pass", "size = 1")
    message = refusal(checkout)
    assert "worker/block_table.py: MultiGroupBlockTable differs from commit 01234567" in message
    assert "--allow-unknown" in message
    said = run("plan", str(checkout)).output
    assert "worker/block_table.py: MultiGroupBlockTable" in said
    assert "apply would refuse this; apply --allow-unknown would not" in said
    told = json.loads(run("plan", str(checkout), "--json").output)
    assert told["refuses"] is True and told["allow_unknown_helps"] is True
    assert run("apply", str(checkout)).exit_code == 2
    assert "applied:" in run("apply", "--allow-unknown", str(checkout)).output
    # Also under the overlay.
    said = run("plan", str(checkout)).output
    assert "worker/block_table.py: MultiGroupBlockTable" in said and "no function" not in said


def test_a_change_in_a_file_that_ours_takes_the_place_of_is_refused_unless_told_otherwise(checkout):
    edit(checkout, "worker/block_table.py", "original", "changed")
    assert "worker/block_table.py differs from commit 01234567" in refusal(checkout)
    make_plan(checkout).refuse_misfit(allow_unknown=True)


def test_where_no_functions_are_on_record_every_change_is_refused(checkout, monkeypatch):
    (head,) = overlay_checkout.known_heads()
    bare = (dataclasses.replace(head, functions={}),)
    monkeypatch.setattr(overlay_checkout, "known_heads", lambda: bare)
    edit(checkout, "models/deepseek_v4.py", "Model", "MyModel")
    assert "any function (none is on record) differs from commit 01234567" in refusal(checkout)


MISFITS = {
    "a patched function changed": (
        ("utils.py", "128", "256"),
        "vllm_ascend.utils:refresh_block_size is another one",
    ),
    "a patched function is gone": (
        ("utils.py", "refresh_block_size", "other"),
        "vllm_ascend.utils:refresh_block_size does not exist",
    ),
    "a name that ours lacks is imported": (
        ("models/deepseek_v4.py", "class", "from vllm_ascend.worker.block_table import X\nclass"),
        "models/deepseek_v4.py imports X of vllm_ascend.worker.block_table, which ours lacks",
    ),
    "an argument that ours does not take": (
        ("worker/npu_input_batch.py", "kernel_sizes", "kernel_shapes"),
        "passes kernel_shapes to MultiGroupBlockTable",
    ),
    "nobody installs the patches": (
        ("patch/platform/__init__.py", "patch_kv_cache_interface", "patch_other"),
        "patch/platform/__init__.py does not import",
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_checkout_that_does_not_fit_is_always_refused(checkout, misfit):
    change, message = MISFITS[misfit]
    edit(checkout, *change)
    before = snapshot(checkout)
    assert message in refusal(checkout, allow_unknown=True)
    assert "apply would refuse this, with --allow-unknown too" in run("plan", str(checkout)).output
    assert snapshot(checkout) == before


@pytest.mark.parametrize("content", (b"def (", b"\xff", b"x = '\x00'"))
def test_a_file_that_is_no_python_is_refused_in_one_line(checkout, content):
    (checkout / "vllm_ascend" / "models" / "deepseek_v4.py").write_bytes(content)
    result = run("plan", str(checkout))
    assert result.exit_code == 2
    (line,) = result.output.strip().splitlines()
    assert line.startswith("error: ") and "deepseek_v4.py cannot be read as Python" in line


def test_a_replaced_file_that_is_missing_is_named(checkout):
    (checkout / "vllm_ascend" / "worker" / "block_table.py").unlink()
    assert "worker/block_table.py does not exist" in refusal(checkout, allow_unknown=True)


def test_a_link_in_the_way_is_refused(checkout, tmp_path):
    """The overlay would write through it, into somebody else's files."""
    elsewhere = tmp_path / "elsewhere"
    (checkout / "vllm_ascend" / "worker").rename(elsewhere)
    (checkout / "vllm_ascend" / "worker").symlink_to(elsewhere)
    with pytest.raises(OverlayError, match="worker is a link"):
        make_plan(checkout)


def test_a_link_to_the_checkout_is_followed(checkout, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(checkout)
    assert make_plan(link).checkout.root == checkout.resolve()


def test_a_file_of_the_same_name_is_not_overwritten(checkout):
    (checkout / "vllm_ascend" / "core" / "kv_cache_coordinator.py").write_text("# theirs\n")
    with pytest.raises(OverlayError, match=r"core/kv_cache_coordinator.py is in the way"):
        make_plan(checkout)


@pytest.mark.parametrize("path", ("nowhere", "."))
def test_what_is_no_checkout_is_refused_in_one_line(tmp_path, path):
    result = run("apply", str(tmp_path / path))
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1 and "error:" in result.output


def test_this_projects_own_tree_is_no_checkout():
    own = Path(__file__).parents[3]
    assert run("apply", str(own)).exit_code == 2


def test_the_commands_say_what_they_did(checkout):
    assert run("status", str(checkout)).exit_code == 1
    planned = json.loads(run("plan", str(checkout), "--json").output)
    assert planned["checkout"]["head"] == COMMIT
    assert planned["refuses"] is False
    assert all(entry["why"] for entry in (*planned["files"], *planned["patches"]))
    told = ["target", "feature", "why", "digests"]
    assert all([*entry] == told for entry in planned["patches"])
    text = run("plan", str(checkout)).output
    assert "replaces" in text and "joins" in text and "refresh_block_size" in text
    assert "applied:" in run("apply", str(checkout)).output
    result = run("status", str(checkout), "--json")
    assert result.exit_code == 0 and json.loads(result.output)["state"] == "applied"
    assert "nothing to do" in run("apply", str(checkout)).output
    assert "reverted" in run("revert", str(checkout)).output
    assert "nothing to do" in run("revert", str(checkout)).output


each_release = pytest.mark.parametrize("release", WITH_OVERLAY, ids=lambda r: r.vllm)


@each_release
def test_every_patch_says_why(release):
    patches = listed_patches(release)
    assert any(patch.package == "vllm_ascend" for patch in patches)
    assert all(patch.why and patch.feature for patch in patches)
    assert not {patch.target for patch in patches} & {*release.native, *release.absent}


@each_release
def test_each_release_has_its_own_modules_replaced(release, tmp_path, monkeypatch):
    """What stays vllm-ascend's own is not written over."""
    checkout = make_checkout(tmp_path / "vllm-ascend", release)
    know(checkout, monkeypatch, release.vllm)
    before = snapshot(checkout)
    planned = make_plan(checkout)
    planned.refuse_misfit(allow_unknown=False)
    extended = {file.path for file in planned.files if file.appended}
    assert extended == release.extended.keys()
    assert {file.path for file in planned.files if file.replaces} - extended == release.replaced
    assert not {file.path for file in planned.files} - extended & release.left_out.keys()
    apply(planned)
    for path in extended:
        content = (checkout / "vllm_ascend" / path).read_text()
        assert content.startswith(f"# the original {path}\n\n{release.extended[path][0]}  # noqa")
    assert revert(checkout)
    assert snapshot(checkout) == before


def staying() -> list[tuple[Release, str]]:
    return [
        (release, path)
        for release in WITH_OVERLAY
        for path in ("core/kv_cache_interface.py", "worker/block_table.py")
        if path in release.left_out
    ]


@pytest.mark.parametrize(
    ("release", "path"), staying(), ids=[f"{release.vllm}-{path}" for release, path in staying()]
)
def test_what_our_modules_miss_in_those_that_stay_is_named(release, path, tmp_path, monkeypatch):
    checkout = make_checkout(tmp_path / "vllm-ascend", release)
    (checkout / "vllm_ascend" / path).write_text("")
    know(checkout, monkeypatch, release.vllm)
    module = f"vllm_ascend.{path.removesuffix('.py').replace('/', '.')}"
    assert f"of {module}, which it lacks" in refusal(checkout, allow_unknown=True)
