# SPDX-License-Identifier: Apache-2.0
"""Who reaches which pod of an overlay: clients, Prometheus, its own pods, routers, others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import ZmqEventPublisher

from tests.ut.deploy.kustomize import render
from tests.ut.deploy.manifests import (
    OVERLAYS,
    Workload,
    add_component,
    engines,
    objects,
    workloads,
    workloads_in,
)
from tests.ut.deploy.network import Peer, allows

HTTP = 8000
CLIENT, SUBSCRIBER = ({f"vllm-dsv4-{role}": "true"} for role in ("client", "kv-events"))
PROMETHEUS = Peer({"app.kubernetes.io/name": "prometheus"}, "monitoring")
# Nobody of these is let in anywhere.
STRANGERS = [
    Peer({}),
    Peer({}, "other"),
    Peer(CLIENT, "other"),  # in a namespace of its own everybody may call a pod a client
    Peer(SUBSCRIBER, "other"),
    Peer({}, "monitoring"),
    Peer(PROMETHEUS.labels),
    Peer({"app.kubernetes.io/name": "vllm-dsv4", "role": "prefill"}, "other"),
]

SOME_PORTS = (22, HTTP, 5557, 5657, 13389, 36000)

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def policies(bodies: Any) -> list[dict[str, Any]]:
    """Return the NetworkPolicies among objects."""
    return [body for body in bodies if body["kind"] == "NetworkPolicy"]


def peer(workload: Workload) -> Peer:
    """Return a pod of a workload."""
    ports = {port["containerPort"]: port["name"] for port in workload.container["ports"]}
    return Peer(workload.labels, ports=ports)


def behind(service: dict[str, Any], bodies: Any) -> list[Workload]:
    """Return the workloads whose pods a Service may lead to."""
    selector = service["spec"]["selector"].items()
    return [workload for workload in workloads_in(bodies) if selector <= workload.labels.items()]


def service_named(start: str, bodies: Any) -> dict[str, Any]:
    """Return the one Service whose name is ``start``, or that with the canary's suffix."""
    names = {start, f"{start}-canary"}
    (found,) = (b for b in bodies if b["kind"] == "Service" and b["metadata"]["name"] in names)
    return found


@each_overlay
def test_clients_reach_the_api_and_nothing_else(overlay: str):
    rules = policies(objects(overlay))
    (entry,) = behind(service_named("vllm-dsv4", objects(overlay)), objects(overlay))
    for client in (Peer(CLIENT), Peer({}, "gateway", CLIENT)):
        for workload in workloads(overlay):
            reached = [p for p in SOME_PORTS if allows(rules, client, peer(workload), p)]
            assert reached == ([HTTP] if workload == entry else [])


@each_overlay
def test_prometheus_reaches_the_metrics_of_every_engine(overlay: str):
    rules = policies(objects(overlay))
    for engine in engines(overlay):
        assert allows(rules, PROMETHEUS, peer(engine), HTTP)
        assert not allows(rules, PROMETHEUS, peer(engine), 36000)


@each_overlay
def test_nobody_else_gets_in(overlay: str, tmp_path: Path):
    with_events = render(add_component("kv-events", tmp_path / "deploy") / overlay)
    for bodies in (objects(overlay), with_events):
        for workload in workloads_in(bodies):
            for stranger in STRANGERS:
                for port in SOME_PORTS:
                    assert not allows(policies(bodies), stranger, peer(workload), port)


def test_the_pods_of_a_pair_reach_each_other_on_every_port():
    rules = policies(objects("multi-node-pd"))
    pods = [peer(workload) for workload in workloads("multi-node-pd")]
    for source in pods:
        for target in pods:
            assert all(allows(rules, source, target, port) for port in (HTTP, 13389, 36000, 65535))


def test_single_nodes_have_nothing_to_say_to_each_other():
    rules = policies((*objects("single-node"), *objects("canary")))
    stable, canary = peer(engines("single-node")[0]), peer(engines("canary")[0])
    assert not allows(rules, stable, canary, HTTP)
    assert not allows(rules, canary, stable, HTTP)


@each_overlay
def test_pods_ask_for_names_and_reach_nothing_outside(overlay: str):
    rules = policies(objects(overlay))
    outside = Peer({}, "kube-system")
    for workload in workloads(overlay):
        assert allows(rules, peer(workload), outside, 53, "UDP")
        assert allows(rules, peer(workload), outside, 53)
        assert not allows(rules, peer(workload), outside, 443)


@each_overlay
def test_routers_reach_the_events_of_every_rank(overlay: str, tmp_path: Path):
    bodies = render(add_component("kv-events", tmp_path / "deploy") / overlay)
    service = service_named("vllm-dsv4-kv-events", bodies)
    assert service["spec"]["clusterIP"] == "None", "a router has to follow every pod"
    (publisher,) = behind(service, bodies)
    assert publisher.labels["role"] == {"multi-node-pd": "prefill"}.get(overlay, "single")
    flags = dict(flag.split("=", 1) for flag in publisher.container["args"] if "=" in flag)
    config = KVEventsConfig(**json.loads(flags["--kv-events-config"]))
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    named = {port: name for port, name in peer(publisher).ports.items() if name in ports}
    assert {name: port for port, name in named.items()} == ports
    for rank in range(int(flags["--data-parallel-size"])):
        for base, name in ((config.endpoint, "kv-events"), (config.replay_endpoint, "kv-replay")):
            endpoint = ZmqEventPublisher.offset_endpoint_port(base, rank)
            port = int(endpoint.rsplit(":", 1)[1])
            assert port == ports[name] + rank
            for router in (Peer(SUBSCRIBER), Peer({}, "routers", SUBSCRIBER)):
                assert allows(policies(bodies), router, peer(publisher), port)
            assert not allows(policies(bodies), Peer(CLIENT), peer(publisher), port)
            assert not allows(policies(objects(overlay)), Peer(SUBSCRIBER), peer(publisher), port)
    assert not allows(policies(bodies), Peer(SUBSCRIBER), peer(publisher), HTTP)


def test_the_canarys_events_are_its_own(tmp_path: Path):
    bodies = render(add_component("kv-events", tmp_path / "deploy") / "canary")
    for service in (body for body in bodies if body["kind"] == "Service"):
        assert not behind(service, objects("single-node"))
