# SPDX-License-Identifier: Apache-2.0
"""What a checkout says that it is; one for another vLLM is refused, with what is supported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.ut.overlay.miniature import COMMIT, know, snapshot
from vllm_ascend.__main__ import app
from vllm_ascend.overlay import apply, make_plan, status
from vllm_ascend.overlay.known_heads import known_heads
from vllm_ascend.overlay.release import Release, read_release, unsupported
from vllm_ascend.releases import SUPPORTED, WITH_OVERLAY, find_release

# As vllm-ascend's builds, source distributions and repository have it.
VERSION_PY = """__all__ = ["__version__", "version"]
TYPE_CHECKING = False
__version__: str
version: str
__version__ = version = '0.26.0'
__version_tuple__ = version_tuple = (0, 26, 0)
"""
PKG_INFO = "Metadata-Version: 2.4\nName: vllm_ascend\nVersion: 0.26.0.post1\n"
DOCKERFILE = "FROM quay.io/ascend/cann\nARG VLLM_TAG=v0.26.0\nRUN git clone -b $VLLM_TAG\n"
HEAD = "ref: refs/heads/releases/v0.26.0\n"
ANOTHER = "this is vllm-ascend 0.26.0 for vLLM 0.26.0; supported here: vllm-ascend 0.20.2rc"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, Release(None, None)),
        ({"vllm_ascend/_version.py": VERSION_PY}, Release("0.26.0", "0.26.0")),
        ({"vllm_ascend/_version.py": "version = '0.9.1'\n"}, Release("0.9.1", "0.9.1")),
        ({"vllm_ascend/_version.py": "garbage"}, Release(None, None)),
        ({"PKG-INFO": PKG_INFO}, Release("0.26.0.post1", "0.26.0")),
        ({"vllm_ascend.egg-info/PKG-INFO": PKG_INFO}, Release("0.26.0.post1", "0.26.0")),
        ({".git/HEAD": HEAD}, Release("0.26.0", "0.26.0")),
        ({".git/HEAD": "5cb98caaa\n"}, Release(None, None)),
        ({"Dockerfile": DOCKERFILE}, Release(None, "0.26.0")),
        ({"Dockerfile": "ARG VLLM_TAG=main\n"}, Release(None, None)),
        # Of a version between two releases the Dockerfile knows more.
        (
            {"PKG-INFO": "Version: 0.20.3.dev7+g1a2b\n", "Dockerfile": "ARG VLLM_TAG=v0.20.2\n"},
            Release("0.20.3.dev7+g1a2b", "0.20.2"),
        ),
    ],
)
def test_a_checkout_tells_its_release(tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert read_release(tmp_path) == expected


@pytest.mark.parametrize("text", ("", "0.20.2", "0.20.2rc1", "0.20.2rc2.dev3+g792ea0c6d"))
def test_what_is_supported_or_cannot_be_told_is_let_through(checkout, text):
    (checkout / "vllm_ascend" / "_version.py").write_text(f"version = '{text}'\n")
    assert unsupported(checkout) == ""
    make_plan(checkout).refuse_misfit(allow_unknown=False)


@pytest.mark.parametrize(
    "release", [r for r in SUPPORTED if r not in WITH_OVERLAY], ids=lambda release: release.vllm
)
def test_a_vllm_that_is_served_without_vllm_ascend_alone_is_refused(checkout, release):
    (checkout / "vllm_ascend" / "_version.py").write_text(f"version = '{release.vllm}'\n")
    (checkout / "vllm_ascend" / "envs.py").write_text("NAMES = ('another',)\n")
    assert f"for vLLM {release.vllm}; supported here: vllm-ascend 0.20.2rc" in unsupported(checkout)


@pytest.fixture
def another(checkout: Path) -> Path:
    """A checkout of vllm-ascend 0.26.0, of no known commit."""
    (checkout / "vllm_ascend" / "_version.py").write_text(VERSION_PY)
    (checkout / "vllm_ascend" / "envs.py").write_text("NAMES = ('another',)\n")
    return checkout


@pytest.mark.parametrize("arguments", (("plan",), ("apply",), ("apply", "--allow-unknown")))
def test_another_release_is_refused_in_one_line(another, arguments):
    before = snapshot(another)
    result = CliRunner().invoke(app, ["overlay", *arguments, str(another)])
    assert result.exit_code == 2
    (line,) = result.output.strip().splitlines()
    assert line.startswith("error: ") and ANOTHER in line
    assert snapshot(another) == before


def test_status_says_what_is_there_instead(another):
    result = CliRunner().invoke(app, ["overlay", "status", str(another)])
    assert result.exit_code == 1 and ANOTHER in result.output
    told = json.loads(CliRunner().invoke(app, ["overlay", "status", "--json", str(another)]).output)
    assert told["state"] == "absent" and ANOTHER in told["unsupported"]


def test_an_overlay_in_force_is_judged_by_its_own_files(checkout):
    apply(make_plan(checkout))
    (checkout / "vllm_ascend" / "_version.py").write_text(VERSION_PY)
    assert status(checkout).state == "applied"
    assert make_plan(checkout).files


def test_a_known_commit_is_told_by_its_files(checkout, monkeypatch):
    """What a build wrote before another commit was checked out says nothing."""
    (checkout / "vllm_ascend" / "_version.py").write_text("version = '0.20.2rc1'\n")
    know(checkout, monkeypatch, "0.26.0")
    (line,) = CliRunner().invoke(app, ["overlay", "apply", str(checkout)]).output.splitlines()
    assert f"this is vllm-ascend 0.26.0rc1 (commit {COMMIT[:8]}) for vLLM 0.26.0" in line
    assert "supported here: vllm-ascend 0.20.2rc for vLLM 0.20.2" in line


def test_a_supported_commit_is_accepted_whatever_a_build_wrote_there(checkout):
    (checkout / "vllm_ascend" / "_version.py").write_text(VERSION_PY)
    make_plan(checkout).refuse_misfit(allow_unknown=False)


def test_heads_are_known_with_every_file_that_is_replaced():
    """The real digests that ship, not the miniature's."""
    heads = known_heads()
    assert {(head.commit[:8], head.version, head.vllm) for head in heads} == {
        ("367b8e62", "0.20.2rc1", "0.20.2"),
        ("792ea0c6", "0.20.2rc", "0.20.2"),
        ("1cdb8c4d", "0.23.0.post1", "0.23.0"),
        ("8fde6d4e", "0.30.0rc2", "0.30.0"),
    }
    supported = [head for head in heads if head.is_supported]
    assert len(supported) == 4
    for head in supported:
        release = find_release(head.vllm)
        assert release is not None
        assert release.replaced | release.extended.keys() <= head.files.keys()
        # One of two commits of a release is enough; the other one's files are those of its branch.
        assert head.functions or head.commit.startswith("792ea0c6")
        for target in release.needed_functions:
            module, _, name = target.partition(":")
            path = f"{module.removeprefix('vllm_ascend.').replace('.', '/')}.py"
            assert name in head.functions[path]
