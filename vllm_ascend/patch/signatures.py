# SPDX-License-Identifier: Apache-2.0
"""Whether a changed function can be called in every way in which the original can be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from inspect import Parameter
from typing import Any

_REST = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def call_mismatches(new: Callable[..., Any], original: Callable[..., Any]) -> list[str]:
    """Return what callers of the original would stumble over, in words.

    The new function may hand arguments on (``*args, **kwargs``). A parameter that it names must
    have the original's name, place, kind and default; one that the original lacks must be optional.
    """
    old, ours = _parameters(original), _parameters(new)
    hands_on = {p.kind for p in ours} >= set(_REST)
    names = {p.name for p in old}
    return [
        *_changed([p for p in ours if p.kind not in _REST], _without_rest(old), hands_on),
        *(f"it asks for {p.name}" for p in _without_rest(ours)
          if p.name not in names and p.default is Parameter.empty),
    ]  # fmt: skip


def shown_signature(new: Callable[..., Any], original: Callable[..., Any]) -> inspect.Signature:
    """Return the original's signature, with what the new function takes beyond."""
    old = _parameters(original)
    names = {p.name for p in old}
    extra = [p for p in _without_rest(_parameters(new)) if p.name not in names]
    shown = sorted([*old, *extra], key=lambda parameter: parameter.kind)
    return inspect.signature(original).replace(parameters=shown)


def _changed(ours: list[Parameter], old: list[Parameter], hands_on: bool) -> Iterator[str]:
    """Say which of the original's parameters the new function lacks, or has otherwise."""
    by_place = [p.name for p in ours if p.kind is not Parameter.KEYWORD_ONLY]
    by_name = {p.name: p for p in ours}
    for place, parameter in enumerate(old):
        name, mine = parameter.name, by_name.get(parameter.name)
        if mine is None and not hands_on:
            yield f"it does not take {name}"
        elif mine is None and place < len(by_place):
            yield f"it takes {by_place[place]} in the place of {name}"
        elif mine is not None and (mine.kind, mine.default) != (parameter.kind, parameter.default):
            yield f"{name} has another default, or is given in another way"
        elif name in by_place and by_place.index(name) != place:
            yield f"{name} is at another place"


def _parameters(function: Callable[..., Any]) -> list[Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return [p for p in parameters if p.name != "original"]  # see vllm_ascend.patch.table.Wrap


def _without_rest(parameters: list[Parameter]) -> list[Parameter]:
    return [p for p in parameters if p.kind not in _REST]
