# SPDX-License-Identifier: Apache-2.0
"""Where pods may run, what they may do there, and what a drain of their node may do to them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ut.deploy.manifests import OVERLAYS, Workload, engines, objects, workloads
from tests.ut.deploy.network import selects

DEVICE = "huawei.com/ascend-1980"
ALL_WORKLOADS = [(name, workload) for name in OVERLAYS for workload in workloads(name)]
ALL_ENGINES = [(name, workload) for name in OVERLAYS for workload in engines(name)]


def named(value: Any) -> str:
    """Name a test's parameter."""
    return getattr(value, "name", str(value))


each_workload = pytest.mark.parametrize(("overlay", "workload"), ALL_WORKLOADS, ids=named)
each_engine = pytest.mark.parametrize(("overlay", "workload"), ALL_ENGINES, ids=named)


def budgets(overlay: str) -> list[dict[str, Any]]:
    """Return the PodDisruptionBudgets of an overlay."""
    return [body["spec"] for body in objects(overlay) if body["kind"] == "PodDisruptionBudget"]


@each_engine
def test_engines_go_to_nodes_that_have_the_device(overlay: str, workload: Workload):
    pod = workload.template["spec"]
    assert pod["nodeSelector"] == {
        "accelerator": "huawei-Ascend910",
        "kubernetes.io/arch": "arm64",
    }
    # Kubernetes' own admission plugin for extended resources taints by the resource's name.
    (toleration,) = pod["tolerations"]
    assert toleration == {"key": DEVICE, "operator": "Exists", "effect": "NoSchedule"}
    assert DEVICE in workload.container["resources"]["limits"]


@each_workload
def test_no_pod_may_more_than_it_needs(overlay: str, workload: Workload):
    pod = workload.template["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    rights = workload.container["securityContext"]
    assert rights["allowPrivilegeEscalation"] is False
    assert "privileged" not in rights
    assert rights["capabilities"]["drop"] == ["ALL"]
    kept = ["DAC_OVERRIDE"] if workload in engines(overlay) else []
    assert rights["capabilities"].get("add", []) == kept


def test_the_proxy_is_nobody_and_writes_nowhere_but_in_tmp():
    (proxy,) = (w for w in workloads("multi-node-pd") if w.labels["role"] == "proxy")
    pod = proxy.template["spec"]
    assert "tolerations" not in pod, "it has no business on a node with NPUs"
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 65534
    assert proxy.container["securityContext"]["readOnlyRootFilesystem"]
    writable = {m["mountPath"] for m in proxy.container["volumeMounts"] if not m.get("readOnly")}
    assert writable == {"/tmp"}
    assert {"name": "HOME", "value": "/tmp"} in proxy.container["env"]


@each_workload
def test_every_engine_has_one_disruption_budget(overlay: str, workload: Workload):
    """More than one for a pod, and Kubernetes refuses to evict it at all."""
    found = [b for b in budgets(overlay) if selects(b["selector"], workload.labels)]
    assert len(found) == (workload in engines(overlay))
    for budget in found:
        # A group does not survive the loss of a pod; single nodes are alike.
        grouped = workload.body["kind"] == "LeaderWorkerSet"
        assert budget["maxUnavailable"] == (0 if grouped else 1)
        # A pod that does not load must not keep its node from being drained.
        assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_stable_and_canary_do_not_share_a_budget():
    (stable,), (canary,) = budgets("single-node"), budgets("canary")
    assert not selects(stable["selector"], engines("canary")[0].labels)
    assert not selects(canary["selector"], engines("single-node")[0].labels)
