# SPDX-License-Identifier: Apache-2.0
"""What has no reference is an error that names it, never a silent mock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


class MissingReferenceError(NotImplementedError):
    """An operator, a kernel or a function of the device was called that nobody has written here."""


def missing(name: str) -> Callable[..., Any]:
    """Return a function that says what is missing when it is called."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise MissingReferenceError(
            f"{name} has no reference: write it in tests/upstream/npu_reference"
        )

    refuse.__name__ = refuse.__qualname__ = name.rpartition(".")[2]
    return refuse
