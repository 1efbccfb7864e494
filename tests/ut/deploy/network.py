# SPDX-License-Identifier: Apache-2.0
"""What NetworkPolicies allow, decided as Kubernetes documents it.

A pod that a policy with the type selects is denied all that no rule of any such policy allows.
Covered are the selectors and ports that ``deploy/`` uses; anything else is an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

OWN_NAMESPACE = "vllm"


@dataclass(frozen=True)
class Peer:
    """One end of a connection.

    Attributes:
        labels: Of the pod.
        namespace: Where it is; the policies' own by default.
        namespace_labels: Beside ``kubernetes.io/metadata.name``, which every namespace has.
        ports: The names of its container's ports, by number.
    """

    labels: dict[str, str]
    namespace: str = OWN_NAMESPACE
    namespace_labels: dict[str, str] = field(default_factory=dict)
    ports: dict[int, str] = field(default_factory=dict)


def allows(
    policies: Iterable[dict[str, Any]], source: Peer, target: Peer, port: int, protocol: str = "TCP"
) -> bool:
    """Whether policies of ``OWN_NAMESPACE`` let ``source`` connect to a port of ``target``."""
    bodies = list(policies)
    return _one_way(bodies, "Egress", source, target, target, port, protocol) and _one_way(
        bodies, "Ingress", target, source, target, port, protocol
    )


def _one_way(
    policies: list[dict[str, Any]],
    direction: str,
    isolated: Peer,
    other: Peer,
    target: Peer,
    port: int,
    protocol: str,
) -> bool:
    if isolated.namespace != OWN_NAMESPACE:
        return True
    specs = [
        body["spec"]
        for body in policies
        if direction in body["spec"]["policyTypes"]
        and selects(body["spec"]["podSelector"], isolated.labels)
    ]
    peers = {"Egress": "to", "Ingress": "from"}[direction]
    rules = [rule for spec in specs for rule in spec.get(direction.lower(), [])]
    return not specs or any(
        (peers not in rule or any(_is_peer(peer, other) for peer in rule[peers]))
        and ("ports" not in rule or any(_is_port(p, target, port, protocol) for p in rule["ports"]))
        for rule in rules
    )


def _is_peer(peer: dict[str, Any], other: Peer) -> bool:
    assert peer.keys() <= {"podSelector", "namespaceSelector"}
    if "namespaceSelector" in peer:
        named = {"kubernetes.io/metadata.name": other.namespace}
        if not selects(peer["namespaceSelector"], other.namespace_labels | named):
            return False
    elif other.namespace != OWN_NAMESPACE:
        return False
    return selects(peer.get("podSelector", {}), other.labels)


def _is_port(rule: dict[str, Any], target: Peer, port: int, protocol: str) -> bool:
    if rule["protocol"] != protocol:
        return False
    if isinstance(rule["port"], str):
        return target.ports.get(port) == rule["port"]
    return rule["port"] <= port <= rule.get("endPort", rule["port"])


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a label selector takes something with these labels."""
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        _holds(expression, labels) for expression in selector.get("matchExpressions", [])
    )


def _holds(expression: dict[str, Any], labels: dict[str, str]) -> bool:
    match expression["operator"]:
        case "In":
            return labels.get(expression["key"]) in expression["values"]
        case "DoesNotExist":
            return expression["key"] not in labels
        case other:
            raise NotImplementedError(other)
