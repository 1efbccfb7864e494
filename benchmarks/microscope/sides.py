# SPDX-License-Identifier: Apache-2.0
"""The sides of the comparison: which code, which switches, which layout."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, field

from vllm_ascend.prefix_cache_config import VARIABLES

_PATCHES = ("vllm_ascend.patch.platform",)
_APPLY = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"}
_BEST = {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}


@dataclass(frozen=True)
class Side:
    """One side of the comparison.

    Attributes:
        key: How commands and files call it.
        title: How tables call it.
        base: The side that it is compared with, beside stock vLLM.
        block_size: ``--block-size`` on Ascend's layout; ``None`` for stock vLLM's GPU layout.
        installs: Modules that change vLLM when they are imported; none for stock vLLM.
        environment: The project's variables that are set.
    """

    key: str
    title: str
    base: str
    block_size: int | None = None
    installs: tuple[str, ...] = _PATCHES
    environment: dict[str, str] = field(default_factory=dict)

    def enter(self) -> None:
        """Make this process one of this side; there is no way back."""
        for variable in VARIABLES:
            os.environ.pop(variable.name, None)
        os.environ.update(self.environment)
        for module in self.installs:
            importlib.import_module(module)


STOCK = "stock"
SIDES = {
    side.key: side
    for side in (
        Side(STOCK, "stock vLLM, GPU layout", STOCK, installs=()),
        Side("unset", "ours unset, GPU layout", STOCK),
        Side("best-gpu", "best, GPU layout", STOCK, environment=_BEST),
        Side("upstream-128", "as upstream, block 128", STOCK, 128, environment=_APPLY),
        Side("best-128", "best, block 128", "upstream-128", 128, environment={**_APPLY, **_BEST}),
        Side("upstream-32", "as upstream, block 32", STOCK, 32, environment=_APPLY),
        Side("best-32", "best, block 32", "upstream-32", 32, environment={**_APPLY, **_BEST}),
    )
}
