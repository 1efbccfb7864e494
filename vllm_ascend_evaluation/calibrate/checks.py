# SPDX-License-Identifier: Apache-2.0
"""Whether a server can be calibrated, and whether it was left alone meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.server_access.server import ANSWERED, Server

_HITS = "vllm:prefix_cache_hits_total"


def check_idle(server: Server) -> None:
    """Check that nobody else is served.

    Raises:
        BadInputError: Somebody is, or the server does not say.
        ServerError: It cannot be reached.
    """
    num_live = server.num_live()
    if num_live is None:
        raise BadInputError(
            f"--url {server.url}: its /metrics do not tell vllm:num_requests_running, so nobody "
            "knows whether it is idle"
        )
    if num_live:
        raise BadInputError(
            f"--url {server.url}: {num_live} requests are running or waiting there; calibrate it "
            "while it is idle"
        )


def check_left_alone(
    url: str,
    before: Mapping[str, float],
    after: Mapping[str, float],
    num_requests: int,
    known_tokens: int,
) -> None:
    """Check that only requests of ours were counted meanwhile, and no hits but theirs.

    Args:
        url: Of the server.
        before: Its counters.
        after: The same, behind all requests.
        num_requests: Ours.
        known_tokens: Of them, which may be found in the cache.

    Raises:
        BadInputError: There were others, or more was found in the cache.
    """
    if _HITS not in after or ANSWERED not in after:
        raise BadInputError(
            f"--url {url}: its /metrics have no {_HITS} and {ANSWERED}, so nobody knows whether "
            "all was computed, and for whom"
        )
    num_hits = after[_HITS] - before.get(_HITS, 0.0) - known_tokens
    if num_hits > 0:
        raise BadInputError(
            f"--url {url}: {num_hits:.0f} tokens were found in its cache that were random and new: "
            "others use it, or it caches what should be computed"
        )
    num_others = after[ANSWERED] - before.get(ANSWERED, 0.0) - num_requests
    if num_others > 0:
        raise BadInputError(
            f"--url {url}: it answered {num_others:.0f} requests of others meanwhile; calibrate it "
            "while it is idle"
        )
