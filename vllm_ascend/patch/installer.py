# SPDX-License-Identifier: Apache-2.0
"""Plans a patch table as a whole, then installs it as a whole; or refuses and changes nothing."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import ModuleType

from vllm_ascend.patch.planner import (
    APPLIED,
    LEFT_TO_VLLM,
    NOT_AVAILABLE,
    OVERRIDDEN,
    Change,
    PatchStatus,
    globals_of,
    plan_supported,
    statuses,
)
from vllm_ascend.patch.table import Patch, PatchError
from vllm_ascend.releases import Release, describe_supported, find_release


@dataclass(frozen=True, eq=False)
class Plan:
    """A checked table: what would be set, and what becomes of every patch."""

    patches: tuple[Patch, ...]
    vllm_version: str
    rows: tuple[PatchStatus, ...]
    changes: tuple[Change, ...]

    def install(self) -> Plan:
        """Set every attribute, or none: a failure in the middle is rolled back and re-raised.

        Returns this plan, or the one of the same table that is in force already.

        Raises:
            PatchError: An attribute is no longer what was planned for; nothing was changed.
        """
        if (live := _live(self.patches)) is not None:
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
        _LIVE.append(self)
        return self

    def undo(self) -> None:
        """Restore every attribute exactly, also where it was imported since. Idempotent.

        Raises:
            PatchError: Somebody patched over one of our patches; nothing was restored.
        """
        if self not in _LIVE:
            return
        foreign = [change.where for change in self.changes if not change.is_in_place]
        if foreign:
            raise PatchError(f"cannot undo: patched again by somebody else: {', '.join(foreign)}")
        for change in reversed([*self.changes, *self._late_holders()]):
            change.revert()
        _LIVE.remove(self)

    def _late_holders(self) -> list[Change]:
        """Find modules that were imported after the installation and so took a replacement."""
        # Functions only: an added constant is equal by identity to many that are not ours.
        ours = {id(change.new): change for change in self.changes
                if isinstance(change.owner, ModuleType) and callable(change.new)}  # fmt: skip
        recorded = {(id(change.owner), change.name) for change in self.changes}
        return [
            Change(module, name, ours[id(value)].old, value)
            for package in {patch.package for patch in self.patches}
            for _, module, name, value in globals_of(package)
            if id(value) in ours and (id(module), name) not in recorded
        ]

    def summary(self) -> str:
        """Return one line for the log."""
        counts = Counter(row.status for row in self.rows)
        parts = [f"{counts[status]} {status}" for status in
                 (APPLIED, OVERRIDDEN, LEFT_TO_VLLM, NOT_AVAILABLE) if counts[status]]  # fmt: skip
        return f"vLLM {self.vllm_version}: patches {', '.join(parts) or 'none'}"


_LIVE: list[Plan] = []


def _live(table: Sequence[Patch]) -> Plan | None:
    """Return the plan in force of exactly these patches, in whatever order they were listed."""
    return next((live for live in _LIVE if _sorted(live.patches) == _sorted(table)), None)


def _sorted(table: Sequence[Patch]) -> list[Patch]:
    return sorted(table, key=lambda patch: patch.target)


def require_supported_vllm() -> Release:
    """Return the release that runs.

    To be called before the patch modules are imported: they name things of supported releases.

    Raises:
        PatchError: The running vLLM is not supported.
    """
    release = find_release(_running_vllm())
    if release is None:
        raise _refusal([])
    return release


def plan(patches: Iterable[Patch]) -> Plan:
    """Check a table against the running vLLM without changing anything.

    A table that is in force is not checked against its own replacements: its plan is returned.

    Raises:
        PatchError: One message with everything that does not fit.
    """
    table = tuple(patches)
    if (live := _live(table)) is not None:
        return live
    release = require_supported_vllm()
    changes, problems, left = plan_supported(release.table(table), release)
    if problems:
        raise _refusal(problems)
    return Plan(table, _running_vllm(), tuple(statuses(table, release, left)), tuple(changes))


def _running_vllm() -> str:
    # Not the installed distribution's version: the CPU build has none of the name vllm.
    return importlib.import_module("vllm").__version__


def _refusal(problems: Sequence[str]) -> PatchError:
    return PatchError(
        f"the patches of vllm-ascend-backport are written for vLLM {describe_supported()} and do "
        f"not fit the running vLLM {_running_vllm()}; nothing was changed"
        f"{': ' if problems else ''}{'; '.join(problems)}"
    )
