# SPDX-License-Identifier: Apache-2.0
"""Tells vLLM of the tier's connector, so that ``--kv-transfer-config`` needs its name alone."""

from __future__ import annotations

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

CONNECTOR = "GranuleTierConnector"


def register_connector() -> None:
    """Register the connector; idempotent."""
    if CONNECTOR not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(CONNECTOR, "vllm_ascend.tier.connector", CONNECTOR)
