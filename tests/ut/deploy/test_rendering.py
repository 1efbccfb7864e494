# SPDX-License-Identifier: Apache-2.0
"""The overlays render, and as Kustomize itself renders them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ut.deploy.kustomize import apply_operation, render
from tests.ut.deploy.manifests import (
    DEPLOY,
    OPTIONAL_COMPONENTS,
    OVERLAYS,
    SINGLE_NODES,
    add_component,
    serve_config,
)
from vllm_ascend.tier.settings import read_settings

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


@pytest.fixture(params=OPTIONAL_COMPONENTS)
def overlays_with_component(request, tmp_path: Path) -> tuple[str, Path]:
    """The overlays with one optional component more."""
    return request.param, add_component(request.param, tmp_path / "deploy")


def test_optional_components_reach_the_engines(overlays_with_component):
    component, folder = overlays_with_component
    expected = {
        "kv-events": "kv-events-config",
        "hugepages": "hugepages-2Mi",
        "tier-host": "GranuleTierConnector",
        "tier-disk": "/var/lib/vllm-tier",
        "tier-mooncake": "GranuleTierConnector",
    }[component]
    for overlay in OVERLAYS:
        bodies = render(folder / overlay)
        touched = {body["metadata"]["name"] for body in bodies if expected in yaml.safe_dump(body)}
        everyone = {
            "canary": {"vllm-dsv4-canary"},
            "multi-node-pd": {"vllm-dsv4-prefill", "vllm-dsv4-decode"},
        }.get(overlay, {"vllm-dsv4"})
        silent: set[str] = {
            # A router chooses where a prompt is computed: by the events of prefill.
            "kv-events": {"vllm-dsv4-decode"},
            # Prefill and decode have a connector already.
            "tier-host": {"vllm-dsv4-prefill", "vllm-dsv4-decode"},
            "tier-disk": {"vllm-dsv4-prefill", "vllm-dsv4-decode"},
            "tier-mooncake": {"vllm-dsv4-prefill", "vllm-dsv4-decode"},
        }.get(component, set())
        assert touched == everyone - silent


@pytest.mark.parametrize("component", ["tier-host", "tier-disk"])
@pytest.mark.parametrize("overlay", SINGLE_NODES)
def test_the_tier_of_all_ranks_fits_in_what_the_component_adds_to_the_memory(
    overlay, component, tmp_path
):
    folder = add_component(component, tmp_path / "deploy")
    before, after = (_engine(root / overlay) for root in (DEPLOY / "overlays", folder))
    flags = dict(arg.split("=", 1) for arg in after["args"] if "=" in arg)
    transfer = json.loads(flags["--kv-transfer-config"])
    gib = read_settings(transfer["kv_connector_extra_config"]).gib
    assert "--no-disable-hybrid-kv-cache-manager" in after["args"]
    limits = [int(engine["resources"]["limits"]["memory"][:-2]) for engine in (before, after)]
    assert int(flags["--data-parallel-size"]) * gib <= limits[1] - limits[0]


@pytest.mark.parametrize("overlay", SINGLE_NODES)
def test_the_disk_of_a_tier_is_a_folder_of_the_node_that_holds_what_all_ranks_write(
    overlay, tmp_path
):
    folder = add_component("tier-disk", tmp_path / "deploy")
    engine = _engine(folder / overlay)
    flags = dict(arg.split("=", 1) for arg in engine["args"] if "=" in arg)
    transfer = json.loads(flags["--kv-transfer-config"])
    disk = read_settings(transfer["kv_connector_extra_config"]).disk
    assert disk is not None
    (mount,) = (mount for mount in engine["volumeMounts"] if mount["mountPath"] == disk.path)
    assert not mount.get("readOnly")
    pod = _pod(folder / overlay)
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == mount["name"])
    # A folder that Kubernetes makes would be on the node's root, if the disk is not mounted.
    assert volume["hostPath"]["type"] == "Directory"
    assert disk.gib * (1 << 30) < 0.95 * 3.84e12, "file systems keep some for themselves"


@pytest.mark.parametrize("overlay", SINGLE_NODES)
def test_the_pods_of_a_mooncake_store_find_its_master(overlay, tmp_path, monkeypatch):
    folder = add_component("tier-mooncake", tmp_path / "deploy")
    before, after = (_engine(root / overlay) for root in (DEPLOY / "overlays", folder))
    flags = dict(arg.split("=", 1) for arg in after["args"] if "=" in arg)
    for variable in after["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value", "10.0.0.1"))
    transfer = json.loads(flags["--kv-transfer-config"])
    mooncake = read_settings(transfer["kv_connector_extra_config"]).mooncake
    assert mooncake is not None
    (service,) = (
        body["spec"]
        for body in render(folder / overlay)
        if (body["kind"], body["metadata"]["name"]) == ("Service", "vllm-dsv4-mooncake")
    )
    ports = {port["name"]: port["port"] for port in service["ports"]}
    assert mooncake.master_server_address == f"vllm-dsv4-mooncake:{ports['rpc']}"
    assert f":{ports['metadata']}/" in mooncake.metadata_server
    assert mooncake.local_hostname == "10.0.0.1", "others reach the pod by its address"
    master = _engine(folder / overlay, "vllm-dsv4-mooncake")
    listens = {port["name"]: port["containerPort"] for port in master["ports"]}
    assert {f"--port={listens['rpc']}"} < set(master["args"])
    num_workers = int(flags["--data-parallel-size"]) * int(flags["--tensor-parallel-size"])
    given = num_workers * (mooncake.global_segment_size + mooncake.local_buffer_size)
    limits = [int(engine["resources"]["limits"]["memory"][:-2]) for engine in (before, after)]
    assert given <= (limits[1] - limits[0]) << 30


def _engine(folder: Path, name: str = "vllm-dsv4") -> dict[str, Any]:
    return _pod(folder, name)["containers"][0]


def _pod(folder: Path, name: str = "vllm-dsv4") -> dict[str, Any]:
    (body,) = (
        body
        for body in render(folder)
        if (body["kind"], body["metadata"]["name"]) == ("Deployment", name)
    )
    return body["spec"]["template"]["spec"]


def test_optional_components_render_as_kustomize_renders_them(overlays_with_component):
    _, folder = overlays_with_component
    for overlay in OVERLAYS:
        path = folder / overlay
        assert by_identity(render(path)) == by_identity(render_with_kustomize(path))


def test_a_releases_serve_yaml_repeats_the_bases_but_for_what_it_is_there_for():
    """Kustomize cannot merge the text of a file: the component has the whole of it again."""
    base, release = (
        yaml.safe_load(serve_config(overlay))
        for overlay in ("single-node", "single-node-0.30.0rc2")
    )
    differ = {name for name in base | release if base.get(name) != release.get(name)}
    assert differ == {"model", "block-size", "speculative-config", "attention-config"}


def test_an_unknown_field_is_refused_instead_of_ignored(tmp_path: Path):
    (tmp_path / "kustomization.yaml").write_text("namePrefix: x-\n")
    with pytest.raises(NotImplementedError, match="namePrefix"):
        render(tmp_path)


def test_a_patch_of_a_place_that_does_not_exist_is_an_error():
    with pytest.raises(KeyError):
        apply_operation({"spec": {}}, {"op": "replace", "path": "/spec/replicas", "value": 1})
