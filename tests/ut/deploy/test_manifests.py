# SPDX-License-Identifier: Apache-2.0
"""What the overlays ask of a cluster is valid, complete and the same wherever it must be."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from tests.ut.deploy.custom_resources import CUSTOM_RESOURCES
from tests.ut.deploy.kustomize import render
from tests.ut.deploy.manifests import (
    DEPLOY,
    OPTIONAL_COMPONENTS,
    OVERLAYS,
    Workload,
    add_component,
    config_map,
    engines,
    environment,
    objects,
    workloads,
)
from tests.ut.deploy.probe_script import probe
from vllm_ascend.core.policy.switches import PrefixCacheConfig
from vllm_ascend.prefix_cache_config import VARIABLES, load_config

# The oldest release with what the manifests use that is still widely run, and the newest known.
KUBERNETES_VERSIONS = ("1.28", "1.37")
SWITCHES = {variable.name for variable in VARIABLES}

ALL_WORKLOADS = [(name, workload) for name in OVERLAYS for workload in workloads(name)]
ALL_ENGINES = [(name, workload) for name in OVERLAYS for workload in engines(name)]


def workload_id(value: Any) -> str:
    """Name a test's parameter."""
    return value.name if isinstance(value, Workload) else str(value)


each_workload = pytest.mark.parametrize(("overlay", "workload"), ALL_WORKLOADS, ids=workload_id)
each_engine = pytest.mark.parametrize(("overlay", "workload"), ALL_ENGINES, ids=workload_id)


def validate(body: dict[str, Any], version: str) -> None:
    """Check an object against Kubernetes' schema, or its custom resource's."""
    schema = CUSTOM_RESOURCES.get((body["apiVersion"], body["kind"]))
    if schema is None:
        kubernetes_validate.validate(body, version, strict=True)
        return
    jsonschema.validate(body, schema)
    if body["kind"] == "LeaderWorkerSet":
        template = body["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        pod_template = {"apiVersion": "v1", "kind": "PodTemplate", "template": template}
        kubernetes_validate.validate(pod_template, version, strict=True)


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("overlay", [*OVERLAYS, "monitoring"])
def test_every_object_fits_its_schema(overlay: str, version: str):
    assert objects(overlay)
    for body in objects(overlay):
        validate(body, version)


@pytest.mark.parametrize("component", OPTIONAL_COMPONENTS)
def test_every_object_fits_its_schema_with_a_component_more(component: str, tmp_path: Path):
    folder = add_component(component, tmp_path / "deploy")
    for overlay in OVERLAYS:
        for body in render(folder / overlay):
            for version in KUBERNETES_VERSIONS:
                validate(body, version)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "leaderWorkerTemplate", "restartPolicy"), "Always"),
        (("spec", "leaderWorkerTemplate", "workerTemplate", "spec", "container"), []),
        (("spec", "leaderWorkerTemplate", "leader"), {}),
        (("spec", "replicas"), "1"),
    ],
)
def test_the_schema_of_a_leader_worker_set_notices(path: tuple[str, ...], value: Any):
    (body,) = (w.body for w in engines("multi-node-pd") if "prefill" in w.name)
    broken = json.loads(json.dumps(body))
    place = broken
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        validate(broken, KUBERNETES_VERSIONS[0])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_switch_is_one_of_ours_with_an_allowed_value(overlay: str):
    data = config_map(overlay, "prefix-cache-switches")["data"]
    assert data.keys() <= SWITCHES
    assert load_config(data).apply_dsv4_patch


def test_every_switch_is_in_the_switches_file_at_least_as_a_comment():
    text = (DEPLOY / "base" / "switches.env").read_text()
    assert set(re.findall(r"^#?([A-Z0-9_]+)=", text, re.M)) == SWITCHES
    # With the comment signs gone the values must be allowed, too.
    load_config(dict(re.findall(r"^#?([A-Z0-9_]+)=(.*)$", text, re.M)))


def test_every_step_of_the_canary_can_be_taken():
    lines = (DEPLOY / "overlays/canary/switches.env").read_text().splitlines()
    pairs = [re.fullmatch(r"#?([A-Z0-9_]+)=(.*)", line) for line in lines]
    environ: dict[str, str] = {}
    for name, value in (pair.groups() for pair in pairs if pair):
        assert name in SWITCHES
        environ[name] = value
        load_config(environ)


def test_the_baseline_has_every_switch_unset():
    data = config_map("baseline", "prefix-cache-switches")["data"]
    assert load_config(data) == PrefixCacheConfig(apply_dsv4_patch=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_ranks_are_chosen_by_cache_but_where_a_rollout_starts(overlay: str):
    data = config_map(overlay, "prefix-cache-switches")["data"]
    by_cache = overlay not in ("baseline", "canary")
    assert load_config(data).dp_routing == ("cache" if by_cache else None)


@each_engine
def test_switches_come_from_the_one_config_map(overlay: str, workload: Workload):
    switches = config_map(overlay, "prefix-cache-switches")["metadata"]["name"]
    sources = [source["configMapRef"]["name"] for source in workload.container["envFrom"]]
    assert switches in sources
    elsewhere = {entry["name"] for entry in workload.container["env"]}
    elsewhere |= config_map(overlay, "npu-environment")["data"].keys()
    assert not elsewhere & SWITCHES


@each_engine
def test_hash_seed_is_equal_on_all_nodes(overlay: str, workload: Workload):
    assert environment(overlay, workload)["PYTHONHASHSEED"] == "0"


@each_workload
def test_references_point_at_objects_that_exist(overlay: str, workload: Workload):
    present = {b["metadata"]["name"] for b in objects(overlay) if b["kind"] == "ConfigMap"}
    wanted = {s["configMapRef"]["name"] for s in workload.container.get("envFrom", [])}
    volumes = workload.template["spec"]["volumes"]
    wanted |= {v["configMap"]["name"] for v in volumes if "configMap" in v}
    assert wanted <= present
    mounted = {mount["name"] for mount in workload.container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in volumes}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_service_finds_pods_and_their_port(overlay: str):
    by_lws = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}  # set by its controller
    for body in objects(overlay):
        if body["kind"] != "Service":
            continue
        selector = body["spec"]["selector"].items()
        found = [
            w for w in workloads(overlay) if selector <= (w.labels | by_lws_of(w, by_lws)).items()
        ]
        assert len(found) == 1, body["metadata"]["name"]
        ports = {port["name"] for port in found[0].container["ports"]}
        assert {port["targetPort"] for port in body["spec"]["ports"]} <= ports


def by_lws_of(workload: Workload, labels: dict[str, str]) -> dict[str, str]:
    """Return ``labels`` for a LeaderWorkerSet's leader, nothing for other pods."""
    return labels if workload.body["kind"] == "LeaderWorkerSet" else {}


def test_a_leader_worker_set_leaves_its_own_name_to_its_headless_service():
    services = {b["metadata"]["name"] for b in objects("multi-node-pd") if b["kind"] == "Service"}
    assert not services & {w.name for w in engines("multi-node-pd")}


def test_the_canary_is_another_deployment_that_shares_the_stable_service():
    (stable,), (canary,) = engines("single-node"), engines("canary")
    assert stable.name != canary.name
    assert stable.body["spec"]["selector"] != canary.body["spec"]["selector"]
    service = next(b for b in objects("single-node") if b["kind"] == "Service")
    assert service["spec"]["selector"].items() <= canary.labels.items()
    alone = next(b for b in objects("canary") if b["kind"] == "Service")
    assert not alone["spec"]["selector"].items() <= stable.labels.items()
    canary_maps = {b["metadata"]["name"] for b in objects("canary") if b["kind"] == "ConfigMap"}
    stable_maps = {b["metadata"]["name"] for b in objects("single-node")}
    assert not canary_maps & stable_maps


@each_workload
def test_a_deployment_selects_its_own_pods(overlay: str, workload: Workload):
    if workload.body["kind"] == "Deployment":
        wanted = workload.body["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= workload.labels.items()


@each_workload
def test_images_are_pinned(overlay: str, workload: Workload):
    _, _, tag = workload.container["image"].rpartition(":")
    assert re.fullmatch(r"\d+\.\d+\.\d+-v[\w.]+-a3", tag)


@each_workload
def test_probes_leave_time_to_load_and_to_drain(overlay: str, workload: Workload):
    startup = workload.container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 3600
    assert "readinessProbe" in workload.container
    liveness = workload.container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60
    assert "drain" in workload.container["lifecycle"]["preStop"]["exec"]["command"]
    assert workload.template["spec"]["terminationGracePeriodSeconds"] > 600
    if workload in engines(overlay):
        ready_within = int(environment(overlay, workload)["VLLM_ENGINE_READY_TIMEOUT_S"])
        assert ready_within >= 3600


@each_workload
def test_probe_commands_are_ones_that_the_script_has(overlay: str, workload: Workload):
    commands = [
        workload.container["lifecycle"]["preStop"]["exec"]["command"],
        *(
            workload.container[name]["exec"]["command"]
            for name in ("startupProbe", "readinessProbe", "livenessProbe")
            if "exec" in workload.container[name]
        ),
    ]
    scripts = config_map(overlay, "vllm-launch")["data"]
    for interpreter, script, *arguments in commands:
        assert interpreter == "python3"
        folder, _, name = script.rpartition("/")
        assert name in scripts
        assert folder in {mount["mountPath"] for mount in workload.container["volumeMounts"]}
        probe.parser().parse_args(arguments)


@each_engine
def test_resources_are_upstreams(overlay: str, workload: Workload):
    resources = workload.container["resources"]
    assert resources["limits"]["huawei.com/ascend-1980"] == "16"
    assert resources["requests"]["huawei.com/ascend-1980"] == "16"
    assert resources["limits"]["memory"] == "512Gi"
    shm = next(v for v in workload.template["spec"]["volumes"] if v["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "512Gi"}
    mounts = {m["name"]: m["mountPath"] for m in workload.container["volumeMounts"]}
    assert mounts["shm"] == "/dev/shm"
    host_paths = [v for v in workload.template["spec"]["volumes"] if "hostPath" in v]
    assert len(host_paths) == 7
    for volume in host_paths:  # the driver's files are seen where they are on the host
        assert mounts[volume["name"]] == volume["hostPath"]["path"]


def test_all_engines_mount_the_same_volumes():
    volumes = [json.dumps(w.template["spec"]["volumes"][1:]) for _, w in ALL_ENGINES]
    assert len(set(volumes)) == 1
