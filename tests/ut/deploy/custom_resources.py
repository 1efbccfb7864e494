# SPDX-License-Identifier: Apache-2.0
"""JSON schemas of the custom resources in ``deploy/``: the fields used, and no other.

From the public API references of LeaderWorkerSet v1 and of the Prometheus operator's
``monitoring.coreos.com/v1``. Pod templates are left to Kubernetes' own schema.
"""

from __future__ import annotations

from typing import Any

LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION = {"type": "string", "pattern": "^([0-9]+(ms|[smhdwy]))+$"}
COUNT = {"type": "integer", "minimum": 0}


def closed(properties: dict[str, Any], *, required: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the schema of an object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def resource(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a custom resource with this ``spec``."""
    metadata = closed({"name": {"type": "string"}, "labels": LABELS}, required=("name",))
    fields = {"apiVersion": {}, "kind": {}, "metadata": metadata, "spec": spec}
    return closed(fields, required=("apiVersion", "kind", "metadata", "spec"))


LEADER_WORKER_SET = resource(
    closed(
        {
            "replicas": COUNT,
            "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
            "rolloutStrategy": closed(
                {
                    "type": {"enum": ["RollingUpdate"]},
                    "rollingUpdateConfiguration": closed(
                        {"partition": COUNT, "maxUnavailable": COUNT, "maxSurge": COUNT}
                    ),
                },
                required=("type",),
            ),
            "leaderWorkerTemplate": closed(
                {
                    "size": {"type": "integer", "minimum": 1},
                    "restartPolicy": {
                        "enum": [
                            "Default",
                            "RecreateGroupOnPodRestart",
                            "RecreateGroupAfterStart",
                            "None",
                        ]
                    },
                    "leaderTemplate": {"type": "object"},
                    "workerTemplate": {"type": "object"},
                },
                required=("workerTemplate",),
            ),
        },
        required=("leaderWorkerTemplate",),
    )
)

POD_MONITOR = resource(
    closed(
        {
            "selector": closed(
                {
                    "matchLabels": LABELS,
                    "matchExpressions": {
                        "type": "array",
                        "items": closed(
                            {
                                "key": {"type": "string"},
                                "operator": {"enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
                                "values": {"type": "array", "items": {"type": "string"}},
                            },
                            required=("key", "operator"),
                        ),
                    },
                }
            ),
            "podTargetLabels": {"type": "array", "items": {"type": "string"}},
            "podMetricsEndpoints": {
                "type": "array",
                "minItems": 1,
                "items": closed(
                    {
                        "port": {"type": "string"},
                        "path": {"type": "string", "pattern": "^/"},
                        "interval": DURATION,
                    },
                    required=("port",),
                ),
            },
        },
        required=("selector", "podMetricsEndpoints"),
    )
)

RECORD = closed(
    {"record": {"type": "string", "pattern": "^[a-z_:0-9]+$"}, "expr": {"type": "string"}},
    required=("record", "expr"),
)
ALERT = closed(
    {
        "alert": {"type": "string", "pattern": "^[A-Z][A-Za-z]+$"},
        "expr": {"type": "string"},
        "for": DURATION,
        "labels": LABELS,
        "annotations": LABELS,
    },
    required=("alert", "expr"),
)
PROMETHEUS_RULE = resource(
    closed(
        {
            "groups": {
                "type": "array",
                "items": closed(
                    {
                        "name": {"type": "string"},
                        "rules": {"type": "array", "items": {"anyOf": [RECORD, ALERT]}},
                    },
                    required=("name", "rules"),
                ),
            }
        },
        required=("groups",),
    )
)

CUSTOM_RESOURCES = {
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): LEADER_WORKER_SET,
    ("monitoring.coreos.com/v1", "PodMonitor"): POD_MONITOR,
    ("monitoring.coreos.com/v1", "PrometheusRule"): PROMETHEUS_RULE,
}
