# SPDX-License-Identifier: Apache-2.0
"""Plans a patch table as a whole, then installs it as a whole; or refuses and changes nothing."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import ModuleType

from vllm_ascend.patch.planner import (
    APPLIED,
    LEFT_TO_VLLM,
    NOT_AVAILABLE,
    Change,
    PatchStatus,
    globals_of,
    left_to_wrappers,
    plan_supported,
    statuses,
)
from vllm_ascend.patch.table import Patch, PatchError
from vllm_ascend.releases import describe_supported, find_release

_OF_WRAPPER = "vllm-ascend has put its own in vLLM's place"


class Installation:
    """A table that is in force; :meth:`undo` takes it back."""

    def __init__(self, plan: Plan, changes: Sequence[Change]) -> None:
        self.plan = plan
        self._changes = list(changes)

    def undo(self) -> None:
        """Restore every attribute exactly, also where it was imported since. Idempotent.

        Raises:
            PatchError: Somebody patched over one of our patches; nothing was restored.
        """
        foreign = [change.where for change in self._changes if not change.is_in_place]
        if foreign:
            raise PatchError(f"cannot undo: patched again by somebody else: {', '.join(foreign)}")
        for change in reversed([*self._changes, *self._late_holders()]):
            change.revert()
        self._changes = []
        if self in _LIVE:
            _LIVE.remove(self)

    def _late_holders(self) -> list[Change]:
        """Find modules that were imported after the installation and so took a replacement."""
        # Functions only: an added constant is equal by identity to many that are not ours.
        ours = {id(change.new): change for change in self._changes
                if isinstance(change.owner, ModuleType) and callable(change.new)}  # fmt: skip
        recorded = {(id(change.owner), change.name) for change in self._changes}
        return [
            Change(module, name, ours[id(value)].old, value)
            for package in {patch.package for patch in self.plan.patches}
            for _, module, name, value in globals_of(package)
            if id(value) in ours and (id(module), name) not in recorded
        ]


@dataclass(frozen=True)
class Plan:
    """A checked table: what would be set, and what becomes of every patch."""

    patches: tuple[Patch, ...]
    vllm_version: str
    rows: tuple[PatchStatus, ...]
    changes: tuple[Change, ...]

    def install(self) -> Installation:
        """Set every attribute, or none: a failure in the middle is rolled back and re-raised.

        The live installation is returned if this table is in force already.

        Raises:
            PatchError: An attribute is no longer what was planned for; nothing was changed.
        """
        live = _live(self.patches)
        if live is not None:
            return live
        stale = [
            change.where
            for change in self.changes
            if vars(change.owner).get(change.name, change.old) is not change.old
        ]
        if stale:
            raise PatchError(f"changed since it was planned: {', '.join(stale)}")
        with ExitStack() as rollback:
            for change in self.changes:
                setattr(change.owner, change.name, change.new)
                rollback.callback(change.revert)
            rollback.pop_all()
        _LIVE.append(Installation(self, self.changes))
        return _LIVE[-1]

    def summary(self) -> str:
        """Return one line for the log."""
        counts = Counter(row.status for row in self.rows)
        parts = [f"{counts[status]} {status}" for status in
                 (APPLIED, LEFT_TO_VLLM, NOT_AVAILABLE) if counts[status]]  # fmt: skip
        return f"vLLM {self.vllm_version}: patches {', '.join(parts) or 'none'}"


_LIVE: list[Installation] = []


def _live(table: Sequence[Patch]) -> Installation | None:
    """Return the installation of exactly these patches, in whatever order they were listed."""
    return next((live for live in _LIVE if _sorted(live.plan.patches) == _sorted(table)), None)


def _sorted(table: Sequence[Patch]) -> list[Patch]:
    return sorted(table, key=lambda patch: patch.target)


def refuse_unknown_vllm(*, vllm_version: str | None = None) -> None:
    """Refuse a vLLM that is not supported.

    To be called before the patch modules are imported: they name things of supported releases.

    Raises:
        PatchError: It is not.
    """
    version = vllm_version or _running_vllm()
    if find_release(version) is None:
        raise _refusal(version, [])


def install(
    patches: Iterable[Patch],
    *,
    required_features: Collection[str] = (),
    vllm_version: str | None = None,
) -> Installation:
    """Plan a table and install it; for arguments and errors see :func:`plan`."""
    checked = plan(patches, required_features=required_features, vllm_version=vllm_version)
    return checked.install()


def plan(
    patches: Iterable[Patch],
    *,
    required_features: Collection[str] = (),
    vllm_version: str | None = None,
) -> Plan:
    """Check a table against the running vLLM without changing anything.

    A table that is in force is not checked against its own replacements: its plan is returned.

    Args:
        required_features: Those without which the caller cannot go on.
        vllm_version: The running version; vLLM's own word by default.

    Raises:
        PatchError: One message with everything that does not fit.
    """
    table = tuple(patches)
    live = _live(table)
    checked, problems = (live.plan, []) if live else _check(table, vllm_version or _running_vllm())
    version = checked.vllm_version
    unavailable = {row.feature for row in checked.rows if row.status == NOT_AVAILABLE}
    missing = sorted(unavailable & set(required_features))
    if missing:
        problems.append(f"required but not available on vLLM {version}: {', '.join(missing)}")
    if problems:
        raise _refusal(version, problems)
    return checked


def _check(table: tuple[Patch, ...], version: str) -> tuple[Plan, list[str]]:
    """Return the plan and everything that speaks against it.

    Raises:
        PatchError: The version is not supported.
    """
    release = find_release(version)
    if release is None:
        raise _refusal(version, [])
    changes, problems = plan_supported(release.table(table), release)
    left = set() if problems else left_to_wrappers(release)
    rows = [
        replace(row, status=LEFT_TO_VLLM, reason=_OF_WRAPPER) if row.target in left else row
        for row in statuses(table, release)
    ]
    return Plan(table, version, tuple(rows), tuple(changes)), problems


def _running_vllm() -> str:
    # Not the installed distribution's version: the CPU build has none of the name vllm.
    return importlib.import_module("vllm").__version__


def _refusal(version: str, problems: Sequence[str]) -> PatchError:
    return PatchError(
        f"the patches of vllm-ascend-backport are written for vLLM {describe_supported()} and do "
        f"not fit the running vLLM {version}; nothing was changed"
        f"{': ' if problems else ''}{'; '.join(problems)}"
    )
