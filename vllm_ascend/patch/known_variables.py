# SPDX-License-Identifier: Apache-2.0
"""vLLM knows of our environment variables: it warns of none of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm_ascend.prefix_cache_config import AUTO, VARIABLES, value_of


def register_with_vllm() -> None:
    """Tell vLLM that our variables exist, so that it does not warn about unknown ones.

    Idempotent. A name that vLLM itself already knows (a later release) keeps vLLM's reader, which
    reads nothing where the value is one that only we know (``auto``), or blank.
    """
    from vllm.envs import environment_variables

    for variable in VARIABLES:
        reader = environment_variables.get(variable.name)
        if not isinstance(reader, _Reader):
            environment_variables[variable.name] = _Reader(variable.name, reader)


@dataclass(frozen=True)
class _Reader:
    """Reads a variable of ours for vLLM, by vLLM's own reader if it has one."""

    name: str
    vllms: Callable[[], Any] | None

    def __call__(self) -> Any:
        if self.vllms is None:
            return value_of(self.name)
        if value_of(self.name) in ("", AUTO):
            return None
        return self.vllms()
