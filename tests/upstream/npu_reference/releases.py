# SPDX-License-Identifier: Apache-2.0
"""What the harness must know of a release of vllm-ascend: all that differs between them."""

from __future__ import annotations

from typing import NamedTuple

from tests.upstream.sources import release_here


class Names(NamedTuple):
    """What a release calls things.

    Attributes:
        window_cache: Module, and name there, of the layer that keeps windows of tokens.
    """

    window_cache: tuple[str, str]


_NAMES = {
    "0.20.2rc1": Names(window_cache=("vllm_ascend.ops.dsa", "DeepseekV4SWACache")),
    "0.23.0.post1": Names(
        window_cache=("vllm_ascend.models.deepseek_v4", "AscendDeepseekV4SWACache")
    ),
}


def names_here() -> Names:
    """Return the names of vllm-ascend's release for the vLLM that is installed."""
    return _NAMES[release_here()]
