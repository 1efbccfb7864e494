# SPDX-License-Identifier: Apache-2.0
"""The overlays render, and as Kustomize itself renders them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.ut.deploy.kustomize import apply_operation, render
from tests.ut.deploy.manifests import DEPLOY, OVERLAYS, add_component

FOLDERS = [f"overlays/{name}" for name in OVERLAYS] + ["monitoring"]


def kustomize_command() -> list[str] | None:
    """Return the command that renders a folder, or ``None`` where none is installed."""
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    if shutil.which("kubectl"):
        return ["kubectl", "kustomize"]
    return None


def by_identity(bodies: list[dict]) -> dict[tuple[str, str], dict]:
    """Index objects by kind and name."""
    return {(body["kind"], body["metadata"]["name"]): body for body in bodies}


def render_with_kustomize(folder: Path) -> list[dict]:
    """Render a folder with the real thing, or skip the test."""
    command = kustomize_command()
    if command is None:
        pytest.skip("neither kustomize nor kubectl is installed")
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("folder", FOLDERS)
def test_our_renderer_agrees_with_kustomize(folder: str):
    assert by_identity(render(DEPLOY / folder)) == by_identity(
        render_with_kustomize(DEPLOY / folder)
    )


@pytest.fixture(params=["kv-events", "hugepages"])
def overlays_with_component(request, tmp_path: Path) -> tuple[str, Path]:
    """The overlays with one optional component more."""
    return request.param, add_component(request.param, tmp_path / "deploy")


def test_optional_components_reach_the_engines(overlays_with_component):
    component, folder = overlays_with_component
    expected = {"kv-events": "kv-events-config", "hugepages": "hugepages-2Mi"}[component]
    for overlay in OVERLAYS:
        bodies = render(folder / overlay)
        touched = {body["metadata"]["name"] for body in bodies if expected in yaml.safe_dump(body)}
        everyone = {
            "single-node": {"vllm-dsv4"},
            "baseline": {"vllm-dsv4"},
            "canary": {"vllm-dsv4-canary"},
            "multi-node-pd": {"vllm-dsv4-prefill", "vllm-dsv4-decode"},
        }[overlay]
        # A decode instance caches no prefixes, so it has no events to publish.
        silent = {"vllm-dsv4-decode"} if component == "kv-events" else set()
        assert touched == everyone - silent


def test_optional_components_render_as_kustomize_renders_them(overlays_with_component):
    _, folder = overlays_with_component
    for overlay in OVERLAYS:
        path = folder / overlay
        assert by_identity(render(path)) == by_identity(render_with_kustomize(path))


def test_an_unknown_field_is_refused_instead_of_ignored(tmp_path: Path):
    (tmp_path / "kustomization.yaml").write_text("namePrefix: x-\n")
    with pytest.raises(NotImplementedError, match="namePrefix"):
        render(tmp_path)


def test_a_patch_of_a_place_that_does_not_exist_is_an_error():
    with pytest.raises(KeyError):
        apply_operation({"spec": {}}, {"op": "replace", "path": "/spec/replicas", "value": 1})
