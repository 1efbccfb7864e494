# SPDX-License-Identifier: Apache-2.0
"""What a KV connector changes: where hits may end, and which connectors can be used.

A hit that ends inside a block copies it before the step; a connector writes whole blocks, at
another time. So a request takes part of a block only if the connector brings it nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import supports_hma
from vllm.v1.request import Request

from vllm_ascend.releases import running_release

KNOWS_GRANULES = "knows_granules"
"""The attribute with which a connector class says that requests may start inside a block, and that
request hashes may cover a granule, whatever the size of a block."""

CANNOT_BE_USED = "cannot be used with DeepSeek-V4 in Ascend's layout"

# vLLM's, which divide tokens by `block_size`; of compressed groups that counts rows here.
_COUNT_NO_ROWS = ("OffloadingConnector", "SimpleCPUOffloadConnector")

Answer = tuple[int | None, bool]
"""Tokens that a connector brings (``None``: it cannot tell yet), and whether asynchronously."""

_NOTHING: Answer = (0, False)


def knows_granules(config: KVTransferConfig | None) -> bool:
    """Whether the configured connector, or each of several, has :data:`KNOWS_GRANULES`.

    Raises:
        ValueError: There is no connector of that name.
    """
    if config is None or config.kv_connector is None:
        return False
    parts = config.kv_connector_extra_config.get("connectors")
    if parts:
        return all(knows_granules(KVTransferConfig(**part)) for part in parts)
    return getattr(KVConnectorFactory.get_connector_class(config), KNOWS_GRANULES, False)


def allows_partial_hits(config: KVTransferConfig | None) -> bool:
    """Whether a KV connector, if there is one, leaves it to us where hits end, and how hashes are.

    Raises as :func:`knows_granules` does.
    """
    return config is None or knows_granules(config)


def check_row_layout(config: KVTransferConfig, option: str, *, hybrid_is_off: bool) -> None:
    """Check that a KV connector, asked for by ``option``, fits DeepSeek-V4 in Ascend's layout.

    Raises:
        ValueError: It does not; says what to change.
    """
    try:
        connector = KVConnectorFactory.get_connector_class(config)
    except (AttributeError, ImportError, ValueError) as error:
        raise ValueError(f"{option}: {error}") from error
    subject = f"the KV connector {connector.__name__}"
    if not supports_hma(connector):
        or_another = ", or name a connector whose class has SupportsHMA"
        raise ValueError(
            f"{subject} {CANNOT_BE_USED}, because it moves KV caches of one kind alone: leave "
            f"{option} out{or_another if option == '--kv-transfer-config' else ''}"
        )
    if config.kv_connector in _COUNT_NO_ROWS:
        raise ValueError(
            f"{subject} {CANNOT_BE_USED}, because it counts tokens per block where this layout "
            f"counts rows: leave {option} out"
        )
    _check_needed_settings(config)
    if hybrid_is_off:
        raise ValueError(
            f"{subject} turns vLLM's hybrid KV cache manager off, without which DeepSeek-V4 "
            "cannot be served: add --no-disable-hybrid-kv-cache-manager"
        )


def _check_needed_settings(config: KVTransferConfig) -> None:
    """Check what a connector, or each of several, is told; raises as its caller does."""
    for part in config.kv_connector_extra_config.get("connectors") or ():
        _check_needed_settings(KVTransferConfig(**part))
    known = running_release().needed_settings
    for base in KVConnectorFactory.get_connector_class(config).__mro__:
        for key, needed in known.get(base.__name__, {}).items():
            told = config.get_from_extra_config(key, needed.value)
            if str(told) != str(needed.value):
                raise ValueError(
                    f'the KV connector {base.__name__} with "{key}": {json.dumps(told)} '
                    f"{CANNOT_BE_USED}, because {needed.why}: leave the key out of "
                    "kv_connector_extra_config"
                )


def look_up_limit(num_tokens: int, transfer_params: Mapping[str, Any] | None) -> int:
    """Return the most tokens that a request may hit, so that one is left to compute::

        in general                          [0, num_tokens - 1)
        a prefill instance's own, at first  [0, num_tokens - 2)

    That drops the last token, which the decode instance computes, after the look-up.
    """
    params = transfer_params or {}
    will_be_shortened = params.get("do_remote_decode") and not params.get("_p_side_truncated")
    return max(num_tokens - (2 if will_be_shortened else 1), 0)


class ConnectorQuery:
    """Asks a connector during the look-up, so that the hit can depend on the answer.

    vLLM's scheduler asks right behind the look-up, when the hit is settled. So it is asked earlier,
    for the hit that external tokens would follow, and the scheduler gets the answer that was kept:
    the connector is asked once, as before.
    """

    def __init__(self, ask: Callable[[Request, int], Answer]) -> None:
        """Take the connector's ``get_num_new_matched_tokens``."""
        self._ask = ask
        self._asked: tuple[Request, Answer] | None = None

    def forget(self) -> None:
        """A look-up starts: what was asked in an earlier one is no longer true."""
        self._asked = None

    def brings_tokens(self, request: Request, num_local_tokens: int) -> bool:
        """Whether tokens follow, or may follow, behind a local hit that ends with whole blocks."""
        self._asked = request, self._ask(request, num_local_tokens)
        return self._asked[1] != _NOTHING

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Answer:
        """Stand in for the connector's method; see vLLM's ``KVConnectorBase_V1``."""
        asked, self._asked = self._asked, None
        if asked is not None and asked[0] is request:
            return asked[1]
        return self._ask(request, num_computed_tokens)
