# SPDX-License-Identifier: Apache-2.0
"""The settings that two engines must share before one reads the other's KV cache pages.

Pages are moved as bytes, block by block: with other block sizes every byte arrives, in the wrong
place, and the decoder goes on from garbage without an error. So it does with another model's rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import msgspec
from vllm.config import VllmConfig
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import KVCacheConfig

from vllm_ascend.core.layout.kv_cache_groups import has_row_layout
from vllm_ascend.core.layout.specs import (
    granule_tokens,
    group_specs,
    kind_in_words,
    tokens_per_block,
)
from vllm_ascend.kv_transfer.model_identity import model_identity

# The field of a prefill side's metadata that describes its layout.
CONTRACT_FIELD = "kv_transfer_contract"

# The groups are compared one by one; the rest names blocks.
_NOT_COMPARED = ("groups", "hash_block_size", "hash_algorithm")
# Compared where both sides can tell, or have any.
_IF_KNOWN = ("weights", "drafts", "computed_with")


class ContractError(ValueError):
    """The two sides lay their KV caches out differently; nothing was transferred."""


@dataclass(frozen=True)
class GroupContract:
    """One KV cache group."""

    kind: str  # what it holds, in words
    tokens_per_block: int
    page_bytes: int  # of a layer


@dataclass(frozen=True)
class KVTransferContract:
    """How an engine lays its KV cache out, how it names blocks, and what computes their rows."""

    block_size: int  # --block-size
    layout: str  # whether compressed blocks count "rows" (Ascend) or "tokens" (vLLM)
    granule: int  # the finest unit in which hits are measured, in tokens
    groups: tuple[GroupContract, ...]
    hash_block_size: int  # tokens per request hash
    hash_algorithm: str
    weights: str = ""  # see kv_transfer/model_identity.py; empty: nobody can tell
    drafts: str = ""  # the same of a draft model; empty: there is none
    computed_with: str = ""  # options that change rows

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON or MessagePack."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> KVTransferContract:
        """Return what :meth:`to_dict` was given.

        Raises:
            ContractError: Something is missing, or not what it should be: another version wrote it.
        """
        try:
            groups = tuple(GroupContract(**group) for group in values["groups"])
            return cls(**{**values, "groups": groups})
        except (KeyError, TypeError) as error:
            raise ContractError(
                f"the other side's KV cache description is unreadable: {error!r}"
            ) from error


def describe(kv_cache_config: KVCacheConfig, vllm_config: VllmConfig) -> KVTransferContract:
    """Return an engine's contract; the same in its scheduler and in its workers."""
    specs, cache_config = group_specs(kv_cache_config), vllm_config.cache_config
    # Looked up on its module: it is one of the patched functions.
    _, hash_block_size = kv_cache_utils.resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    identity = model_identity(vllm_config)
    return KVTransferContract(
        block_size=cache_config.block_size,
        layout="rows" if has_row_layout(specs) else "tokens",
        granule=granule_tokens(specs),
        groups=tuple(
            GroupContract(kind_in_words(spec), tokens_per_block(spec), spec.page_size_bytes)
            for spec in specs
        ),
        hash_block_size=hash_block_size,
        hash_algorithm=str(cache_config.prefix_caching_hash_algo),
        weights=identity.weights,
        drafts=identity.drafts if identity.weights else "",
        computed_with=_computed_with(vllm_config),
    )


def _computed_with(vllm_config: VllmConfig) -> str:
    """Return the options that change rows and cannot be seen in the layout, in words.

    Not vLLM's hash of the model: prefill and decode may well differ in what has no part in rows.
    """
    model, cache_dtype = vllm_config.model_config, vllm_config.cache_config.cache_dtype
    dtype = str(model.dtype).removeprefix("torch.")
    options = {
        "--dtype": dtype,
        "--quantization": model.quantization,
        "--hf-overrides": model.hf_overrides if isinstance(model.hf_overrides, dict) else "other",
        "--kv-cache-dtype": dtype if cache_dtype == "auto" else cache_dtype,
    }
    return json.dumps(options, sort_keys=True, default=str)


def check(
    local: KVTransferContract, remote: KVTransferContract, *, remote_name: str = "the other side"
) -> None:
    """Check that pages of the one can be read by the other, which gets them by block id.

    Names of blocks need not agree for that; who finds blocks by name compares digests.

    Raises:
        ContractError: They cannot; it names every difference.
    """
    differences = list(_differences(local, remote))
    if differences:
        raise ContractError(
            f"KV transfer refused, {remote_name} has another KV cache: "
            + "; ".join(differences)
            + ". Start both sides with the same model files, --block-size, --speculative-config "
            "and VLLM_ASCEND_DSV4_* variables"
        )


def _differences(local: KVTransferContract, remote: KVTransferContract) -> Iterator[str]:
    yield from _unequal_fields("", local, remote)
    if len(local.groups) != len(remote.groups):
        yield f"{len(local.groups)} KV cache groups here, {len(remote.groups)} there"
        return
    for i, (ours, theirs) in enumerate(zip(local.groups, remote.groups, strict=True)):
        yield from _unequal_fields(f"group {i} ({ours.kind}) ", ours, theirs)


def _unequal_fields(where: str, local: Any, remote: Any) -> Iterator[str]:
    for name in (field.name for field in fields(local) if field.name not in _NOT_COMPARED):
        here, there = getattr(local, name), getattr(remote, name)
        if name in _IF_KNOWN and not (here and there):
            continue
        if here != there:
            yield f"{where}{name} {here} here, {there} there"


class ContractDecoder:
    """Decodes a prefill side's metadata, only if both sides lay their KV cache out alike.

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
