# SPDX-License-Identifier: Apache-2.0
"""Checks a patch table against the running vLLM and says what would be set, changing nothing."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_ascend.patch.table import Add, Patch, Wrap, plain_function, source_digest

SUPPORTED_VLLM = "0.20.2"

APPLIED = "applied"
LEFT_TO_VLLM = "left to vLLM"
NOT_AVAILABLE = "not available"

_ABSENT = object()


@dataclass(frozen=True)
class PatchStatus:
    """What becomes of one patch on the running vLLM."""

    target: str
    feature: str
    status: str
    reason: str


@dataclass(frozen=True)
class Change:
    """One attribute to set: on the patch's owner, or on a module that holds an alias."""

    owner: Any
    name: str
    old: Any
    new: Any

    def apply(self) -> None:
        """Set the attribute."""
        setattr(self.owner, self.name, self.new)

    def revert(self) -> None:
        """Restore what was there before."""
        if self.old is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.old)

    @property
    def is_in_place(self) -> bool:
        """Whether the attribute is still what was set."""
        return vars(self.owner).get(self.name, _ABSENT) is self.new

    @property
    def where(self) -> str:
        """The attribute, for messages."""
        return f"{self.owner.__name__}.{self.name}"


def plan_supported(table: Sequence[Patch], holder_prefix: str) -> tuple[list[Change], list[str]]:
    """Check every patch against the supported vLLM.

    Returns:
        The attributes to set, and everything that speaks against it.
    """
    changes: list[Change] = []
    problems = [
        f"{target} is named twice"
        for target, count in Counter([patch.target for patch in table]).items()
        if count > 1
    ]
    for patch in table:
        try:
            module, owner, name = _resolve(patch.target)
        except (ImportError, AttributeError) as error:
            problems.append(f"{patch.target} does not exist ({error})")
            continue
        old = vars(owner).get(name, _ABSENT)
        if isinstance(patch, Add):
            if old is not _ABSENT:
                problems.append(f"{patch.target} exists already")
            changes.append(Change(owner, name, _ABSENT, patch.replacement))
            continue
        assert isinstance(patch, Wrap)
        if old is _ABSENT:
            inherited = " (it is inherited)" if hasattr(owner, name) else ""
            problems.append(f"{patch.target} is not defined on its owner{inherited}")
            continue
        problems.extend(_check_source(patch, old))
        new = _replacement(patch, old)
        changes.append(Change(owner, name, old, new))
        if owner is module:
            alias_changes, alias_problems = _plan_aliases(patch, old, new, holder_prefix)
            changes.extend(alias_changes)
            problems.extend(alias_problems)
    return changes, problems


def _resolve(target: str) -> tuple[Any, Any, str]:
    """Return (module, owner of the attribute, attribute name)."""
    module_name, _, path = target.partition(":")
    module = importlib.import_module(module_name)
    *owners, name = path.split(".")
    owner = module
    for part in owners:
        owner = getattr(owner, part)
    return module, owner, name


def _check_source(patch: Wrap, original: Any) -> list[str]:
    try:
        digest = source_digest(original)
    except (OSError, TypeError) as error:
        return [f"the source of {patch.target} cannot be read ({error})"]
    if digest != patch.upstream_sha256:
        return [f"{patch.target} is not vLLM {SUPPORTED_VLLM}'s (digest {digest})"]
    return []


def _replacement(patch: Wrap, original: Any) -> Any:
    """Call the patch's factory with the plain function; keep the kind of method."""
    new = patch.replacement(plain_function(original))
    if isinstance(original, classmethod | staticmethod):
        return type(original)(new)
    return new


def _plan_aliases(
    patch: Wrap, old: Any, new: Any, holder_prefix: str
) -> tuple[list[Change], list[str]]:
    """Rebind declared aliases; name every holder that is not declared.

    A module that is not imported yet needs nothing: it will import the replacement.
    """
    changes: list[Change] = []
    problems: list[str] = []
    declared = set(patch.aliases)
    for alias in patch.aliases:
        module_name, _, name = alias.partition(":")
        module = sys.modules.get(module_name)
        if module is None:
            continue
        if vars(module).get(name) is old:
            changes.append(Change(module, name, old, new))
        else:
            problems.append(f"{alias} does not hold {patch.target}")
    problems.extend(
        f"{holder} holds {patch.target} and is not declared as its alias"
        for holder in _holders(old, holder_prefix)
        if holder != patch.target and holder not in declared
    )
    return changes, problems


def _holders(value: Any, prefix: str) -> Iterator[str]:
    for module_name, module in list(sys.modules.items()):
        if module is None or module_name.split(".")[0] != prefix:
            continue
        for name, held in list(vars(module).items()):
            if held is value:
                yield f"{module_name}:{name}"


def plan_other(table: Sequence[Patch], version: str) -> tuple[list[PatchStatus], list[str]]:
    """Leave to this vLLM every feature it has; refuse one that has only some of them."""
    evidence = {p.target: p.skip_if_present is not None and is_present(p.skip_if_present)
                for p in table}  # fmt: skip
    if not any(evidence.values()):
        return [], ["it has none of the features that the patches bring"]
    rows: list[PatchStatus] = []
    problems: list[str] = []
    for patch in table:
        if evidence[patch.target]:
            reason = f"vLLM {version} has {patch.skip_if_present}"
            rows.append(PatchStatus(patch.target, patch.feature, LEFT_TO_VLLM, reason))
        elif patch.skip_if_present is None:
            reason = f"written for vLLM {SUPPORTED_VLLM} only"
            rows.append(PatchStatus(patch.target, patch.feature, NOT_AVAILABLE, reason))
        else:
            problems.append(f"it lacks {patch.skip_if_present}, although it has other parts")
    return rows, problems


def is_present(evidence: str) -> bool:
    """Whether the running vLLM has what ``Patch.skip_if_present`` names."""
    target, _, parameter = evidence.removesuffix(")").partition("(")
    try:
        _, owner, name = _resolve(target)
        attribute = getattr(owner, name)
    except (ImportError, AttributeError):
        return False
    if not parameter:
        return True
    return parameter in inspect.signature(plain_function(attribute)).parameters
