# SPDX-License-Identifier: Apache-2.0
"""Checks a patch table against the running vLLM and says what would be set, changing nothing."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, make_dataclass
from types import FunctionType
from typing import Any

from vllm_ascend.deployment import SUPPORTED_VLLM
from vllm_ascend.patch.table import (
    Add,
    AddField,
    Override,
    Patch,
    PatchError,
    Rebind,
    Wrap,
    plain_function,
    source_digest,
)

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
    # Three passes: finding a target or building a replacement may import a module that takes
    # another target's original through ``from ... import``; holders are looked for last.
    sites, problems = _find_targets(table)
    planned: list[tuple[Patch, Change]] = []
    for patch, owner, name in sites:
        change, complaints = _plan_target(patch, owner, name, holder_prefix)
        problems.extend(complaints)
        if change is not None:
            planned.append((patch, change))
    changes = [change for _, change in planned]
    for patch, change in planned:
        if isinstance(patch, Wrap):
            alias_changes, complaints = _plan_aliases(patch, change, holder_prefix)
            changes.extend(alias_changes)
            problems.extend(complaints)
        elif isinstance(patch, Rebind):
            known = {*patch.keepers, *(other.target for other in table)}
            problems.extend(_undeclared(patch, change, known, holder_prefix, "keeper"))
        elif isinstance(patch, AddField):
            declaration, complaints = _plan_field(patch, change)
            changes.extend(declaration)
            problems.extend(complaints)
    return changes, [*_named_twice(table, changes), *problems]


def _find_targets(table: Sequence[Patch]) -> tuple[list[tuple[Patch, Any, str]], list[str]]:
    sites: list[tuple[Patch, Any, str]] = []
    problems: list[str] = []
    for patch in table:
        try:
            sites.append((patch, *resolve(patch.target)))
        except (ImportError, AttributeError) as error:  # noqa: PERF203 - name them all
            problems.append(f"{patch.target} does not exist ({error})")
    return sites, problems


def _plan_target(
    patch: Patch, owner: Any, name: str, holder_prefix: str
) -> tuple[Change | None, list[str]]:
    old = vars(owner).get(name, _ABSENT)
    if isinstance(patch, Add):
        problems = [] if old is _ABSENT else [f"{patch.target} exists already"]
        return Change(owner, name, _ABSENT, patch.replacement), problems
    assert isinstance(patch, Wrap | Rebind)
    if old is _ABSENT:
        inherited = " (it is inherited)" if hasattr(owner, name) else ""
        return None, [f"{patch.target} is not defined on its owner{inherited}"]
    problems = _check_source(patch, old, holder_prefix)
    new = patch.replacement if isinstance(patch, Rebind) else replacement(patch, old)
    return Change(owner, name, old, new), problems


def _plan_field(patch: AddField, change: Change) -> tuple[list[Change], list[str]]:
    """Declare the field where dataclasses and msgspec look; the attribute itself is planned."""
    owner, name = change.owner, change.name
    fields = vars(owner).get("__dataclass_fields__")
    if fields is None:
        return [], [f"{patch.target} is not on a dataclass"]
    # init=False: dataclasses.replace() must not hand it to a constructor that does not know it.
    new_field = field(default=patch.replacement, init=False, repr=False, compare=False)
    made = make_dataclass(owner.__name__, [(name, patch.type, new_field)])
    return [
        Change(owner, attribute, vars(owner)[attribute], {**vars(owner)[attribute], **extra})
        for attribute, extra in (
            ("__dataclass_fields__", vars(made)["__dataclass_fields__"]),
            ("__annotations__", vars(made)["__annotations__"]),
        )
    ], []


def _named_twice(table: Sequence[Patch], changes: Sequence[Change]) -> list[str]:
    """Name what would be set twice: by the same target, or by another name for the same thing."""
    targets = Counter([patch.target for patch in table])
    places = Counter([(id(change.owner), change.name) for change in changes])
    where = {(id(change.owner), change.name): change.where for change in changes}
    twice = [f"{target} is named twice" for target, count in targets.items() if count > 1]
    if twice:
        return twice
    return [f"{where[place]} is set twice" for place, count in places.items() if count > 1]


def resolve(target: str) -> tuple[Any, str]:
    """Return (owner of the attribute, attribute name)."""
    module_name, _, path = target.partition(":")
    owner: Any = importlib.import_module(module_name)
    *owners, name = path.split(".")
    for part in owners:
        owner = getattr(owner, part)
    return owner, name


def _check_source(patch: Override, original: Any, own_package: str) -> list[str]:
    try:
        digest = source_digest(original)
    except (OSError, TypeError) as error:
        return [f"the source of {patch.target} cannot be read ({error})"]
    if digest not in patch.known_digests:
        return [f"{patch.target} is not vLLM {SUPPORTED_VLLM}'s (digest {digest})"]
    # A wrapper made with functools.wraps answers with the source of what it wraps.
    strangers = _wrapped_by(plain_function(original), own_package)
    return [f"{patch.target} is wrapped already, by {stranger}" for stranger in strangers]


def _wrapped_by(function: Any, own_package: str) -> list[str]:
    """Return the modules of decorators around a function that are not its own package's."""
    layers: list[Any] = []
    inspect.unwrap(function, stop=layers.append)
    # type(), because a wrapt proxy passes itself off as a function of the module it wraps.
    origins = [
        layer.__globals__["__name__"] if type(layer) is FunctionType else type(layer).__module__
        for layer in layers
    ]
    known = {own_package, *sys.stdlib_module_names}
    return [origin for origin in origins if origin.split(".")[0] not in known]


def replacement(patch: Wrap, original: Any) -> Any:
    """Call the patch's factory with the plain function; keep the kind of method."""
    new = patch.replacement(plain_function(original))
    if isinstance(original, classmethod | staticmethod):
        return type(original)(new)
    return new


def _plan_aliases(
    patch: Wrap, change: Change, holder_prefix: str
) -> tuple[list[Change], list[str]]:
    """Rebind declared aliases; name every holder that is not declared.

    A module that is not imported yet needs nothing: it will import the replacement.
    """
    changes: list[Change] = []
    problems: list[str] = []
    for alias in patch.aliases:
        module_name, _, name = alias.partition(":")
        module = sys.modules.get(module_name)
        if module is None:
            continue
        if vars(module).get(name) is change.old:
            changes.append(Change(module, name, change.old, change.new))
        else:
            problems.append(f"{alias} does not hold {patch.target}")
    known = {*patch.aliases, patch.target}
    problems.extend(_undeclared(patch, change, known, holder_prefix, "alias"))
    return changes, problems


def _undeclared(
    patch: Patch, change: Change, known: Collection[str], holder_prefix: str, role: str
) -> list[str]:
    """Name who holds the original and is not known to: it would go on with the wrong one."""
    return [
        f"{holder} holds {patch.target} and is not declared as its {role}"
        for holder in _holders(change.old, holder_prefix)
        if holder not in known
    ]


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
    features = {patch.feature for patch in table if evidence[patch.target]}
    rows: list[PatchStatus] = []
    problems: list[str] = []
    for patch in table:
        if evidence[patch.target]:
            reason = f"vLLM {version} has {patch.skip_if_present}"
            rows.append(PatchStatus(patch.target, patch.feature, LEFT_TO_VLLM, reason))
        elif patch.feature not in features:
            reason = f"written for vLLM {SUPPORTED_VLLM} only"
            rows.append(PatchStatus(patch.target, patch.feature, NOT_AVAILABLE, reason))
        else:
            problems.append(f"it lacks {patch.skip_if_present}, although it has other parts")
    return rows, problems


def is_present(evidence: str) -> bool:
    """Whether the running vLLM has what ``Patch.skip_if_present`` names.

    Raises:
        PatchError: It cannot be told, because the module exists but cannot be imported.
    """
    target, _, parameter = evidence.removesuffix(")").partition("(")
    try:
        owner, name = resolve(target)
        attribute = getattr(owner, name)
    except AttributeError:
        return False
    except ImportError as error:
        module = target.partition(":")[0]
        is_missing = isinstance(error, ModuleNotFoundError)
        if is_missing and f"{module}.".startswith(f"{error.name}."):
            return False
        raise PatchError(f"cannot tell whether vLLM has {evidence}: {error}") from error
    if not parameter:
        return True
    return parameter in inspect.signature(plain_function(attribute)).parameters
