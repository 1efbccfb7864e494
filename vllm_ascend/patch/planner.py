# SPDX-License-Identifier: Apache-2.0
"""Checks a patch table against the running vLLM and says what would be set, changing nothing.

Problems are collected, not raised: whoever asks shall read all of them at once.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, make_dataclass
from types import FunctionType
from typing import Any

from vllm_ascend.patch.signatures import call_mismatches, shown_signature
from vllm_ascend.patch.table import (
    Add,
    AddField,
    Override,
    Patch,
    Rebind,
    Wrap,
    plain_function,
    source_digest,
)
from vllm_ascend.releases import Release

APPLIED = "applied"
LEFT_TO_VLLM = "left to vLLM"
NOT_AVAILABLE = "not available"
OVERRIDDEN = "overridden"  # by a class of ours that is put over vLLM's

_ABSENT = object()


@dataclass(frozen=True)
class PatchStatus:
    """What becomes of one patch on the running vLLM."""

    target: str
    feature: str
    status: str
    reason: str


def statuses(patches: Sequence[Patch], release: Release, left: Set[str]) -> list[PatchStatus]:
    """Return what becomes of each patch on a supported release.

    Args:
        left: Targets that stay as vllm-ascend has put them in the running vLLM's place.
    """
    rows = []
    for patch in patches:
        status, reason = OVERRIDDEN if isinstance(patch, Override) else APPLIED, patch.why
        if patch.target in release.native:
            status, reason = LEFT_TO_VLLM, release.native[patch.target]
        elif patch.target in release.absent:
            status, reason = NOT_AVAILABLE, release.absent[patch.target]
        elif patch.target in left:
            status, reason = LEFT_TO_VLLM, "vllm-ascend has put its own in vLLM's place"
        rows.append(PatchStatus(patch.target, patch.feature, status, reason))
    return rows


@dataclass(frozen=True)
class Change:
    """One attribute to set: on the patch's owner, or on a module that holds an alias."""

    owner: Any
    name: str
    old: Any
    new: Any

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


def plan_supported(
    table: Sequence[Patch], release: Release
) -> tuple[list[Change], list[str], set[str]]:
    """Return the attributes to set on a supported vLLM, and all that speaks against it.

    Behind them, if nothing does, the targets that stay as vllm-ascend has put them in vLLM's place.

    Args:
        table: What the release takes, with the digests of its originals.
    """
    # Finding a target may import a module that takes another target's original through
    # ``from ... import``: holders are looked for when all are found.
    problems: list[str] = []
    sites: list[tuple[Patch, Any, str]] = []
    for patch in table:
        try:
            sites.append((patch, *resolve(patch.target)))
        except (ImportError, AttributeError) as error:  # noqa: PERF203 - name them all
            problems.append(f"{patch.target} does not exist ({error})")
    planned = [(site[0], _plan_target(*site, release, problems)) for site in sites]
    changes = [change for _, change in planned if change is not None]
    fields: defaultdict[Any, list[AddField]] = defaultdict(list)
    for patch, change in planned:
        if change is None:
            continue
        if isinstance(patch, AddField):
            fields[change.owner].append(patch)
        elif isinstance(patch, Wrap):
            changes += _plan_aliases(patch, change, problems)
            problems += _undeclared(patch, change, {*patch.aliases, patch.target}, "alias")
        elif isinstance(patch, Rebind):
            known = {*patch.keepers, *(other.target for other in table)}
            problems += _undeclared(patch, change, known, "keeper")
    for owner, patches in fields.items():
        changes += _plan_fields(owner, patches, problems)
    left = {p.target for p, change in planned if change is None and not isinstance(p, Override)}
    return changes, [*_named_twice(table, changes), *problems], left


def _plan_target(
    patch: Patch, owner: Any, name: str, release: Release, problems: list[str]
) -> Change | None:
    old = vars(owner).get(name, _ABSENT)
    if isinstance(patch, Add):
        if old is not _ABSENT:
            problems.append(f"{patch.target} exists already")
        return Change(owner, name, _ABSENT, patch.replacement)
    if old is _ABSENT:
        inherited = " (it is inherited)" if hasattr(owner, name) else ""
        problems.append(f"{patch.target} is not defined on its owner{inherited}")
        return None
    wrapper = release.left_to_wrappers.get(patch.target)
    if wrapper is not None and source_digest(old) == wrapper:
        return None
    mismatches = _check_source(patch, old, release)
    if isinstance(patch, Override):
        problems += mismatches or _misfits(patch, patch.replacement, plain_function(old))
        return None
    new, misfits = replacement(patch, old)
    problems += mismatches or misfits
    return Change(owner, name, old, new)


def _plan_fields(owner: Any, patches: Sequence[AddField], problems: list[str]) -> list[Change]:
    """Declare fields where dataclasses and msgspec look; the attributes themselves are planned.

    There is no plainer way: msgspec reads a class's fields from these two attributes, and decodes
    a subclass as the class that the message around it names, a msgspec.Struct.
    """
    if "__dataclass_fields__" not in vars(owner):
        problems += [f"{patch.target} is not on a dataclass" for patch in patches]
        return []
    # init=False: dataclasses.replace() must not hand it to a constructor that does not know it.
    new_fields = [
        (
            patch.target.rpartition(".")[2],
            patch.type,
            field(default=patch.replacement, init=False, repr=False, compare=False),
        )
        for patch in patches
    ]
    made = vars(make_dataclass(owner.__name__, new_fields))
    return [
        Change(owner, attribute, vars(owner)[attribute], vars(owner)[attribute] | made[attribute])
        for attribute in ("__dataclass_fields__", "__annotations__")
    ]


def _named_twice(table: Sequence[Patch], changes: Sequence[Change]) -> list[str]:
    """Name what would be set twice: by the same target, or by another name for the same thing."""
    targets = Counter(patch.target for patch in table)
    places = Counter((id(change.owner), change.where) for change in changes)
    return [f"{target} is named twice" for target, count in targets.items() if count > 1] or [
        f"{where} is set twice" for (_, where), count in places.items() if count > 1
    ]


def resolve(target: str) -> tuple[Any, str]:
    """Return (owner of the attribute, attribute name).

    Where somebody has put a subclass in the place of a module's own class, the owner is that class.
    """
    module_name, _, path = target.partition(":")
    owner: Any = importlib.import_module(module_name)
    *owners, name = path.split(".")
    for part in owners:
        owner = getattr(owner, part)
    if isinstance(owner, type):
        own = (module_name, ".".join(owners))
        owner = next((c for c in owner.__mro__ if (c.__module__, c.__qualname__) == own), owner)
    return owner, name


def _check_source(patch: Patch, original: Any, release: Release) -> list[str]:
    try:
        digest = source_digest(original)
    except (OSError, TypeError) as error:
        return [f"the source of {patch.target} cannot be read ({error})"]
    if digest not in patch.upstream_sha256:
        return [f"{patch.target} is not vLLM {release.vllm}'s (digest {digest})"]
    # A wrapper made with functools.wraps answers with the source of what it wraps.
    layers: list[Any] = []
    inspect.unwrap(plain_function(original), stop=layers.append)
    # type(), because a wrapt proxy passes itself off as a function of the module it wraps.
    origins = [
        layer.__globals__["__name__"] if type(layer) is FunctionType else type(layer).__module__
        for layer in layers
    ]
    known = {patch.package, *sys.stdlib_module_names}
    strangers = [
        origin
        for origin in origins
        if origin.split(".")[0] not in known and origin not in release.wrappers
    ]
    return [f"{patch.target} is wrapped already, by {stranger}" for stranger in strangers]


def replacement(patch: Patch, original: Any) -> tuple[Any, list[str]]:
    """Return what takes the original's place, and in which calls of the original it would fail.

    A changed method stays of the kind that it was. Of a new class nothing is said.
    """
    if not isinstance(patch, Wrap):
        return patch.replacement, []
    function, problems = plain_function(original), []
    new = patch.around(function)
    if callable(function):
        problems = _misfits(patch, new, function)
        new.__signature__ = shown_signature(new, function)  # type: ignore[attr-defined]
    is_method = isinstance(original, classmethod | staticmethod)
    return type(original)(new) if is_method else new, problems


def _misfits(patch: Patch, new: Any, original: Any) -> list[str]:
    return [
        f"{patch.target} is changed into something else: {what}"
        for what in call_mismatches(new, original)
    ]


def _plan_aliases(patch: Wrap, change: Change, problems: list[str]) -> list[Change]:
    """Rebind declared aliases. A module that is not imported yet will import the replacement."""
    changes: list[Change] = []
    for alias in patch.aliases:
        module_name, _, name = alias.partition(":")
        module = sys.modules.get(module_name)
        if module is not None and vars(module).get(name) is change.old:
            changes.append(Change(module, name, change.old, change.new))
        elif module is not None:
            problems.append(f"{alias} does not hold {patch.target}")
    return changes


def _undeclared(patch: Patch, change: Change, known: set[str], role: str) -> Iterator[str]:
    """Name who holds the original and is not known to: it would go on with the wrong one."""
    for module_name, _, name, held in globals_of(patch.package):
        holder = f"{module_name}:{name}"
        if held is change.old and holder not in known:
            yield f"{holder} holds {patch.target} and is not declared as its {role}"


def globals_of(package: str) -> Iterator[tuple[str, Any, str, Any]]:
    """Yield (module's name, module, name, value) of all that a package's imported modules hold."""
    for module_name, module in list(sys.modules.items()):
        if module is not None and module_name.partition(".")[0] == package:
            for name, value in list(vars(module).items()):
                yield module_name, module, name, value
