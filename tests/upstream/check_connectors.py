# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout (see forks.py): which of all registered connectors are let in."""

from __future__ import annotations

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from vllm_ascend.core.connectors.connector_rules import (
    KNOWS_GRANULES,
    TAKES_TAILS_ALONE,
    check_row_layout,
    declared,
)
from vllm_ascend.distributed.kv_transfer import (  # type: ignore[import-not-found]
    register_connector,
)

EXAMINED = {"GranuleTierConnector", "MooncakeHybridConnector"}

if "MooncakeHybridConnector" not in KVConnectorFactory._registry:
    register_connector()


def config(name: str, *parts: str) -> KVTransferConfig:
    told = [{"kv_connector": part, "kv_role": "kv_both"} for part in parts]
    return KVTransferConfig(
        kv_connector=name,
        kv_role="kv_both",
        kv_connector_extra_config={"connectors": told} if told else {},
    )


def is_let_in(asked: KVTransferConfig) -> bool:
    try:
        check_row_layout(asked, "--kv-transfer-config", hybrid_is_off=False)
    except ValueError:
        return False
    return True


def test_those_that_were_examined_are_let_in():
    """Whoever examines another one, or finds one here after an update, changes this test."""
    assert {name for name in KVConnectorFactory._registry if is_let_in(config(name))} == EXAMINED


def test_several_in_one_are_judged_by_their_parts():
    both = config("MultiConnector", "MooncakeHybridConnector", "GranuleTierConnector")
    assert is_let_in(both)
    assert {KNOWS_GRANULES, TAKES_TAILS_ALONE} <= declared(both)


@pytest.mark.parametrize("part", ["MooncakeLayerwiseConnector", "NixlConnector"])
def test_a_part_that_was_not_examined_is_named(part):
    asked = config("MultiConnector", "MooncakeHybridConnector", part)
    name = KVConnectorFactory.get_connector_class_by_name(part).__name__
    with pytest.raises(ValueError, match=f"the KV connector {name} cannot be used"):
        check_row_layout(asked, "--kv-transfer-config", hybrid_is_off=False)
