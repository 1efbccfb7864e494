# SPDX-License-Identifier: Apache-2.0
"""Decides where hits may end beside a KV connector, and which connectors can be used.

A hit that ends inside a block copies it before the step; a connector writes whole blocks, at
another time. So a request takes part of a block only if the connector brings it nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, supports_hma
from vllm.v1.request import Request

# Attributes with which the class of a connector says what it copes with; docs/kv-connectors.md says
# what each of them promises.
KNOWS_GRANULES = "knows_granules"
"""Requests may start inside a block, and request hashes may cover a granule, whatever the size of a
block."""
KNOWS_ROWS = "knows_rows"
"""Blocks may hold fewer rows than tokens: the ``block_size`` of a spec is not taken for tokens."""
TAKES_TAILS_ALONE = "takes_tails_alone"
"""Of windowed groups it reads and writes tails alone: the last rows before a prompt's end, or
before a boundary that the cache keeps. For all other places a table may hold null blocks, and a
block may belong to somebody else as soon as the step that computed it is over."""

BRINGS_TAILS = "brings_tails"
"""A request that another engine has computed is given all that it lacks. Into the blocks of its
table that have no name yet go rows, and the tail at its prompt's end. So rows that are here count
without a tail behind them."""

LEAST_GAIN_KEY = "least_gain_tokens"
"""The key of ``kv_connector_extra_config`` that sets the least gain of external tokens."""
DEFAULT_LEAST_GAIN_TOKENS = 256
"""So many tokens are computed while the rows are loaded that a copy of a block would have brought:
at most a whole block of every group (16,384 tokens, about 100 MB with DeepSeek-V4-Flash and 128
rows), which takes 10 to 25 ms at 4 to 10 GB/s; a rank computes about 10 tokens in a ms."""

TAKES_SPARE_TAILS = "takes_spare_tails"
"""It takes the tails, too, of every fourth boundary, while it has room for them."""

IS_A_CACHE = "is_a_cache"
"""What it holds depends on the weights, and has to go where vLLM empties its own cache for others:
before it sleeps, and where they are changed."""

NEEDS_COORDINATOR = "needs_coordinator"
"""This project's coordinator is in force, also with nothing set. vLLM's own may give the blocks of
one group's hit to another group's external tokens, and enters rows that have yet to be loaded."""

LOADS_BEHIND_ZEROING = "loads_behind_zeroing"
"""Workers have zeroed a step's new blocks when a load begins, also one beside the steps. Rows that
it leaves alone are zero, and not another group's bytes, which may be NaN."""

# Which of several connectors must declare it.
_OF_SEVERAL: Mapping[str, Callable[[list[bool]], bool]] = {
    KNOWS_GRANULES: all,
    TAKES_TAILS_ALONE: all,
    TAKES_SPARE_TAILS: any,
    IS_A_CACHE: any,
    NEEDS_COORDINATOR: any,
    LOADS_BEHIND_ZEROING: all,
    # The first one that has something loads it. Another one would leave out the rows of a block
    # that a hit ends inside, although nobody copies them.
    BRINGS_TAILS: itemgetter(0),
}

# Two names of one class of vllm-ascend.
_ASCEND_STORE = frozenset({"AscendStoreConnector", "MooncakeConnectorStoreV1"})
CANNOT_BE_USED = "cannot be used with DeepSeek-V4 in Ascend's layout"

Answer = tuple[int | None, bool]
"""Tokens that a connector brings (``None``: it cannot tell yet), and whether asynchronously."""

_NOTHING: Answer = (0, False)


def connectors(config: KVTransferConfig) -> Iterator[tuple[type, KVTransferConfig]]:
    """Yield the class and the configuration of a connector; of ``MultiConnector``, of each part.

    Raises:
        AttributeError, ImportError, ValueError: There is no connector of that name.
    """
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

    connector = KVConnectorFactory.get_connector_class(config)
    parts = config.kv_connector_extra_config.get("connectors")
    if not parts or not issubclass(connector, MultiConnector):
        yield connector, config
        return
    for part in parts:
        yield from connectors(KVTransferConfig(**part))


def declared(config: KVTransferConfig | None) -> frozenset[str]:
    """Return the attributes with which the configured connector's class says what it copes with.

    Of several connectors each must have one, or some, or the first; see ``_OF_SEVERAL``.

    Raises:
        ValueError: There is no connector of that name.
    """
    if config is None or config.kv_connector is None:
        return frozenset()
    parts = [connector for connector, _ in connectors(config)]
    return frozenset(
        attribute
        for attribute, of_several in _OF_SEVERAL.items()
        if of_several([bool(getattr(part, attribute, False)) for part in parts])
    )


def allows_partial_hits(config: KVTransferConfig | None) -> bool:
    """Whether a KV connector, if there is one, leaves it to us where hits end, and how hashes are.

    Raises as :func:`declared` does.
    """
    return config is None or KNOWS_GRANULES in declared(config)


def device_bytes(config: KVTransferConfig | None) -> int:
    """Return what a connector, or all parts of one, take of each worker's device memory, in bytes.

    That is beside the KV cache. A class tells by a class method of this name, which takes its
    configuration; vLLM has nothing like it.

    Raises:
        ValueError: There is no connector of that name, or a setting is not allowed.
    """
    if config is None or config.kv_connector is None:
        return 0
    parts = list(connectors(config))
    return sum(part.device_bytes(told) for part, told in parts if hasattr(part, "device_bytes"))


def check_row_layout(config: KVTransferConfig, option: str, *, hybrid_is_off: bool) -> None:
    """Check that a KV connector, asked for by ``option``, fits DeepSeek-V4 in Ascend's layout.

    Raises:
        ValueError: It does not; says what to change.
    """
    refuse_ascend_store(config, option)
    try:
        whole = KVConnectorFactory.get_connector_class(config)
        parts = tuple(connectors(config))
    except (AttributeError, ImportError, ValueError) as error:
        raise ValueError(f"{option}: {error}") from error
    for connector in (whole, *(part for part, _ in parts)):
        if not supports_hma(connector):
            raise _unfit(connector, option, "it moves KV caches of one kind alone", "SupportsHMA")
    for connector, _ in parts:
        if not getattr(connector, KNOWS_ROWS, False):
            why = "it is not known to tell the rows of a block from its tokens"
            promise = f"{KNOWS_ROWS} = True (docs/kv-connectors.md says what that promises)"
            raise _unfit(connector, option, why, promise)
    if hybrid_is_off:
        raise ValueError(
            f"the KV connector {whole.__name__} turns vLLM's hybrid KV cache manager off, without "
            "which DeepSeek-V4 cannot be served: add --no-disable-hybrid-kv-cache-manager"
        )


def _unfit(connector: type, option: str, why: str, needed: str) -> ValueError:
    """Return the error about a connector whose class lacks what is needed."""
    another = ""
    if option == "--kv-transfer-config":
        another = f", or name a connector whose class has {needed}"
    return ValueError(
        f"the KV connector {connector.__name__} {CANNOT_BE_USED}, because {why}: leave {option} "
        f"out{another}"
    )


def refuse_ascend_store(config: KVTransferConfig, option: str) -> None:
    """Refuse vllm-ascend's store with DeepSeek-V4, by its name: it need not be installed.

    Raises:
        ValueError: It is configured, alone or within another connector; says what takes its place.
    """
    extra = config.kv_connector_extra_config
    for part in extra.get("connectors") or ():
        refuse_ascend_store(KVTransferConfig(**part), option)
    if config.kv_connector not in _ASCEND_STORE:
        return
    instead = {
        "kv_connector": "GranuleTierConnector",
        "kv_role": config.kv_role,
        "kv_connector_extra_config": {"backend": "mooncake"},
    }
    raise ValueError(
        f"the KV connector {config.kv_connector} {CANNOT_BE_USED}: the tier takes its place, over "
        f"the same Mooncake master. Replace it in {option} by {json.dumps(instead)}"
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


def bind_kv_cache_manager(connector: Any, kv_cache_manager: Any) -> None:
    """Tell a connector, or each part of one, of the KV cache manager, if it wants to know.

    vLLM 0.30.0 does so itself, with the same method.
    """
    for part in getattr(connector, "_connectors", ()):
        bind_kv_cache_manager(part, kv_cache_manager)
    bind = getattr(connector, "bind_kv_cache_manager", None)
    if bind is not None and not hasattr(KVConnectorBase_V1, "bind_kv_cache_manager"):
        bind(kv_cache_manager)


def blocks_of_caches(connector: Any) -> set[int]:
    """Return the blocks that a connector, or a part of one, is loading from a cache.

    What of them cannot be loaded is computed, whatever ``kv_load_failure_policy`` says of others.
    """
    blocks = getattr(connector, "loading_block_ids", lambda: ())
    return set(blocks()).union(*map(blocks_of_caches, getattr(connector, "_connectors", ())))


def least_gain(config: KVTransferConfig | None) -> int:
    """Return by how many tokens external ones must end behind a hit that they replace.

    Raises:
        ValueError: The configured number is none, or negative.
    """
    if config is None:
        return DEFAULT_LEAST_GAIN_TOKENS
    told = config.get_from_extra_config(LEAST_GAIN_KEY, DEFAULT_LEAST_GAIN_TOKENS)
    if isinstance(told, bool) or not isinstance(told, int) or told < 0:
        raise ValueError(
            f'--kv-transfer-config: "{LEAST_GAIN_KEY}": {json.dumps(told)} is invalid: allowed are '
            "whole numbers of tokens from 0 on"
        )
    return told


class ConnectorQuery:
    """Asks a connector during the look-up, so that the hit can depend on the answer.

    vLLM's scheduler asks right behind the look-up, when the hit is settled. So it is asked earlier,
    for the hit that external tokens would follow, and the scheduler gets the answer that was kept:
    the connector is asked once, as before.
    """

    def __init__(
        self,
        ask: Callable[[Request, int], Answer],
        least_gain: int = 0,
        *,
        brings_tails: bool = False,
    ) -> None:
        """Take the connector's ``get_num_new_matched_tokens``.

        Args:
            least_gain: See :func:`least_gain`.
            brings_tails: See :data:`BRINGS_TAILS`.
        """
        self._ask, self._least_gain, self._brings_tails = ask, least_gain, brings_tails
        self._asked: tuple[Request, Answer] | None = None

    def forget(self) -> None:
        """A look-up starts: what was asked in an earlier one is no longer true."""
        self._asked = None

    def brings_tail(self, request: Request) -> bool:
        """Whether the tail of a request's prompt comes from the engine that has computed it."""
        return self._brings_tails and _is_handed_over(request)

    def brings_more(self, request: Request, whole_tokens: int, partial_tokens: int) -> bool:
        """Whether external tokens are worth more than a local hit that ends inside a block.

        They follow the ``whole_tokens`` that end with whole blocks. They must end behind its
        ``partial_tokens`` (0: there is no such hit), by the least gain: what is here costs a copy,
        they cost a load. What a connector cannot tell yet is waited for.
        """
        tokens, is_async = self._ask(request, whole_tokens)
        least = partial_tokens + max(self._least_gain, 1) if partial_tokens else 1
        is_longer = tokens is None or (tokens > 0 and whole_tokens + tokens >= least)
        self._asked = request, (tokens, is_async) if is_longer else _NOTHING
        return is_longer

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Answer:
        """Stand in for the connector's method; see vLLM's ``KVConnectorBase_V1``."""
        if request.skip_reading_prefix_cache and not _is_handed_over(request):
            return _NOTHING  # it wants log probabilities of every token of its prompt
        asked, self._asked = self._asked, None
        if asked is not None and asked[0] is request:
            return asked[1]
        return self._ask(request, num_computed_tokens)


def _is_handed_over(request: Request) -> bool:
    """Whether another engine has computed a request's prompt for this one."""
    return bool((request.kv_transfer_params or {}).get("do_remote_prefill"))
