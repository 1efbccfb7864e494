# SPDX-License-Identifier: Apache-2.0
"""A KV connector that neither finds nor moves anything: a scheduler that has one goes with it.

What the configured connector would load cannot be known without its pool; what having one does to
block sizes and partial hits can.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)


class IdleConnector(KVConnectorBase_V1, SupportsHMA):
    """See the module."""

    knows_rows = True

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Load nothing."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Wait for nothing."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Save nothing."""

    def wait_for_save(self) -> None:
        """Wait for nothing."""

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Find nothing."""
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Remember nothing."""

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Tell the workers nothing."""
        return KVConnectorMetadata()

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Let the blocks go at once."""
        return False, None


class IdleGranuleConnector(IdleConnector):
    """One that copes with requests that start inside a block."""

    knows_granules = True


class IdleTailConnector(IdleConnector):
    """One beside which compressor state may be sparse."""

    takes_tails_alone = True


class IdleGranuleTailConnector(IdleGranuleConnector, IdleTailConnector):
    """One that declares both."""


STAND_INS = {
    (False, False): IdleConnector,
    (True, False): IdleGranuleConnector,
    (False, True): IdleTailConnector,
    (True, True): IdleGranuleTailConnector,
}
"""Whether a connector knows granules, and takes tails alone -> what stands in for it."""
