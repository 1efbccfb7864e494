# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile: hadolint's view, what it copies, and what it runs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser

from tests.ut.deploy.manifests import DEPLOY, ROOT
from vllm_ascend.releases import WITH_OVERLAY

DOCKERFILE = DEPLOY / "Dockerfile"


def instructions(name: str) -> list[str]:
    """Return the values of all instructions of a kind."""
    with DOCKERFILE.open("rb") as file:
        structure = DockerfileParser(fileobj=file).structure
    return [line["value"] for line in structure if line["instruction"] == name]


def argument_defaults() -> dict[str, str]:
    """Return the build arguments and their defaults."""
    return dict(value.split("=", 1) for value in instructions("ARG"))


def test_hadolint_finds_nothing():
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_it_derives_from_the_official_a3_image_at_a_pinned_tag():
    defaults = argument_defaults()
    assert instructions("FROM") == ["${BASE_IMAGE}:${BASE_TAG}"]
    assert defaults["BASE_IMAGE"] == "quay.io/ascend/vllm-ascend"
    assert re.fullmatch(r"v0\.20\.2\w*-a3", defaults["BASE_TAG"])


def test_the_pods_use_the_tag_of_that_base():
    image = (DEPLOY / "components/image/kustomization.yaml").read_text()
    (tag,) = re.findall(r"newTag: (.*)", image)
    assert tag.endswith(argument_defaults()["BASE_TAG"])
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version is not None
    assert tag.startswith(f"{version[1]}-")


def test_what_it_copies_exists_and_is_sent_to_the_builder():
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignore if line.startswith("!")}
    copied = {source for value in instructions("COPY") for source in value.split()[:-1]}
    assert copied == allowed
    for source in copied:
        assert (ROOT / source).exists()


def test_the_other_base_that_it_names_is_one_that_the_overlay_takes():
    named = re.findall(r"BASE_TAG=v(\d+\.\d+\.\d+)\S*-a3", DOCKERFILE.read_text())
    assert set(named) == {release.vllm for release in WITH_OVERLAY}


def test_it_installs_nothing():
    assert not any("pip" in value or "apt" in value for value in instructions("RUN"))


def test_the_overlay_is_checked_after_it_was_applied():
    (run,) = instructions("RUN")
    steps = [step.split() for step in re.split(r"&&", run)]
    assert [step[:5] for step in steps] == [
        ["python3", "-m", "vllm_ascend", "overlay", "apply"],
        ["python3", "-m", "vllm_ascend", "overlay", "status"],
    ]
    assert {step[5] for step in steps} == {'"${CHECKOUT}"'}


def test_it_runs_in_our_tree_and_leaves_it():
    first, last = instructions("WORKDIR")
    assert first == "${BACKPORT}"
    assert last != first
    launch = (DEPLOY / "base" / "launch.sh").read_text()
    assert f"BACKPORT:-{argument_defaults()['BACKPORT']}}}" in launch


@pytest.mark.parametrize("command", ["overlay", "doctor"])
def test_the_commands_that_the_image_needs_exist(command: str):
    done = subprocess.run(
        [sys.executable, "-m", "vllm_ascend", command, "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
