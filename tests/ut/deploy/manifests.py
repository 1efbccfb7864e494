# SPDX-License-Identifier: Apache-2.0
"""The rendered overlays, and the parts of them that the tests ask about."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.ut.deploy.kustomize import render

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
# One pod per node, on each of the releases.
SINGLE_NODES = ("single-node", "single-node-0.23.0", "single-node-0.30.0rc2")
OVERLAYS = (*SINGLE_NODES, "baseline", "canary", "multi-node-pd")
OPTIONAL_COMPONENTS = ("kv-events", "hugepages", "tier-host", "tier-disk", "tier-mooncake")
# Overlays whose flags an earlier vLLM does not have -> the one that has them.
OF_LATER_VLLM = {"single-node-0.30.0rc2": "0.30.0"}


@cache
def objects(overlay: str) -> tuple[dict[str, Any], ...]:
    """Return the objects of one overlay, or of ``monitoring``."""
    folder = DEPLOY / overlay if overlay == "monitoring" else DEPLOY / "overlays" / overlay
    return tuple(render(folder))


def add_component(component: str, folder: Path) -> Path:
    """Copy ``deploy/`` to a folder, with one optional component more in every overlay.

    Returns:
        The folder of the overlays.
    """
    shutil.copytree(DEPLOY, folder)
    for overlay in ("single-node", "multi-node-pd"):  # the others are made of these
        path = folder / "overlays" / overlay / "kustomization.yaml"
        spec = yaml.safe_load(path.read_text())
        spec["components"].append(f"../../components/{component}")
        path.write_text(yaml.safe_dump(spec))
    return folder / "overlays"


@dataclass(frozen=True)
class Workload:
    """One Deployment or LeaderWorkerSet.

    Attributes:
        body: The object.
        template: Its pod template.
        container: The one container of that template.
    """

    body: dict[str, Any]
    template: dict[str, Any]
    container: dict[str, Any]

    @property
    def name(self) -> str:
        """The object's name."""
        return self.body["metadata"]["name"]

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its pods."""
        return self.template["metadata"]["labels"]


def workloads(overlay: str) -> list[Workload]:
    """Return every Deployment and LeaderWorkerSet of an overlay."""
    return workloads_in(objects(overlay))


def workloads_in(bodies: Iterable[dict[str, Any]]) -> list[Workload]:
    """Return every Deployment and LeaderWorkerSet among objects."""
    found = []
    for body in bodies:
        if body["kind"] not in ("Deployment", "LeaderWorkerSet"):
            continue
        spec = body["spec"]
        template = spec.get("template") or spec["leaderWorkerTemplate"]["workerTemplate"]
        (container,) = template["spec"]["containers"]
        found.append(Workload(body, template, container))
    return found


def engines(overlay: str) -> list[Workload]:
    """Return the workloads that run vLLM's engine."""
    return [
        workload
        for workload in workloads(overlay)
        if workload.labels["app.kubernetes.io/component"] == "engine"
    ]


def config_map(overlay: str, prefix: str) -> dict[str, Any]:
    """Return the one config map of an overlay whose name starts with ``prefix``."""
    (found,) = (
        body
        for body in objects(overlay)
        if body["kind"] == "ConfigMap" and body["metadata"]["name"].startswith(prefix)
    )
    return found


def environment(overlay: str, workload: Workload) -> dict[str, str]:
    """Return the variables that Kubernetes would set in a workload's container, by value."""
    variables: dict[str, str] = {}
    for source in workload.container.get("envFrom", []):
        variables |= config_map(overlay, source["configMapRef"]["name"])["data"]
    for entry in workload.container.get("env", []):
        if "value" in entry:
            variables[entry["name"]] = entry["value"]
    return variables


def serve_config(overlay: str) -> str:
    """Return serve.yaml as the pods of an overlay see it."""
    return config_map(overlay, "vllm-launch")["data"]["serve.yaml"]


def rules() -> list[dict[str, Any]]:
    """Return every alerting and recording rule."""
    (body,) = (body for body in objects("monitoring") if body["kind"] == "PrometheusRule")
    return [rule for group in body["spec"]["groups"] for rule in group["rules"]]


def dashboard_text() -> str:
    """Return the dashboard's JSON."""
    return (DEPLOY / "monitoring" / "dashboard.json").read_text()
