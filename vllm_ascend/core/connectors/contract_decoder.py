# SPDX-License-Identifier: Apache-2.0
"""How a decode side reads a prefill side's metadata: only if both lay their KV cache out alike."""

from __future__ import annotations

from typing import Any

import msgspec

from vllm_ascend.core.connectors.kv_transfer_contract import (
    ContractError,
    KVTransferContract,
    check,
)

# The field of the metadata that describes the prefill side's layout.
CONTRACT_FIELD = "kv_transfer_contract"


class ContractDecoder:
    """Decodes a prefill side's metadata, after it was found to fit.

    vllm-ascend's own decoder passes over the field that it does not know, so a decode side
    without this patch still understands.
    """

    def __init__(
        self, decoder: Any, contract: KVTransferContract, page_bytes: list[int] | None
    ) -> None:
        """Take vllm-ascend's decoder, and of this side the contract and the tensors.

        ``page_bytes`` are the bytes of a block in every registered tensor, in order; ``None`` where
        the other side holds only some of the layers.
        """
        self._decoder = decoder
        self._contract = contract
        self._page_bytes = page_bytes

    def decode(self, encoded: bytes) -> Any:
        """Return the metadata.

        Raises:
            ContractError: The other side lays its KV cache out differently.
        """
        metadata = self._decoder.decode(encoded)
        remote_name = f"prefill engine {metadata.engine_id} on {metadata.local_ip}"
        described = msgspec.msgpack.decode(encoded).get(CONTRACT_FIELD)
        if described is None:
            self._check_what_it_says(metadata, remote_name)
        else:
            remote = KVTransferContract.from_dict(described)
            check(self._contract, remote, remote_name=remote_name)
        if self._page_bytes is not None and list(metadata.block_lens) != self._page_bytes:
            raise ContractError(
                f"KV transfer refused: {remote_name} holds other tensors: bytes of a block in each "
                f"{self._page_bytes} here, {list(metadata.block_lens)} there"
            )
        return metadata

    def _check_what_it_says(self, metadata: Any, remote_name: str) -> None:
        """The other side runs without this patch: it tells its block size only."""
        here, there = self._contract.block_size, metadata.block_size
        if here != there:
            raise ContractError(
                f"KV transfer refused: {remote_name} has block_size {there}, here it is {here}. "
                "Start both sides with the same --block-size"
            )
