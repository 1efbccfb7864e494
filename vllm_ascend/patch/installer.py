# SPDX-License-Identifier: Apache-2.0
"""Plans a patch table as a whole, then installs it as a whole; or refuses and changes nothing."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from vllm_ascend.patch.planner import (
    APPLIED,
    LEFT_TO_VLLM,
    NOT_AVAILABLE,
    SUPPORTED_VLLM,
    Change,
    PatchStatus,
    is_present,
    plan_other,
    plan_supported,
)
from vllm_ascend.patch.table import Patch, PatchError


class Installation:
    """A table that is in force; :meth:`undo` takes it back."""

    def __init__(self, plan: Plan, changes: Sequence[Change]) -> None:
        self.plan = plan
        self._changes = list(changes)

    def undo(self) -> None:
        """Restore every attribute exactly. Idempotent.

        Raises:
            PatchError: Somebody patched over one of our patches; nothing was restored.
        """
        foreign = [change.where for change in self._changes if not change.is_in_place]
        if foreign:
            raise PatchError(f"cannot undo: patched again by somebody else: {', '.join(foreign)}")
        for change in reversed(self._changes):
            change.revert()
        self._changes = []
        _LIVE.pop(self.plan.key, None)


@dataclass(frozen=True)
class Plan:
    """A checked table: what would be set, and what becomes of every patch."""

    key: tuple[str, ...]
    vllm_version: str
    rows: tuple[PatchStatus, ...]
    changes: tuple[Change, ...]

    def install(self) -> Installation:
        """Set every attribute, or none: a failure in the middle is rolled back and re-raised."""
        done: list[Change] = []
        try:
            for change in self.changes:
                change.apply()
                done.append(change)
        except BaseException:
            for change in reversed(done):
                change.revert()
            raise
        installation = Installation(self, done)
        _LIVE[self.key] = installation
        return installation

    def summary(self) -> str:
        """Return one line for the log."""
        counts = Counter(row.status for row in self.rows)
        parts = [f"{counts[status]} {status}" for status in
                 (APPLIED, LEFT_TO_VLLM, NOT_AVAILABLE) if counts[status]]  # fmt: skip
        return f"vLLM {self.vllm_version}: patches {', '.join(parts) or 'none'}"


_LIVE: dict[tuple[str, ...], Installation] = {}


def refuse_unknown_vllm(marker: str, *, vllm_version: str | None = None) -> None:
    """Refuse a vLLM that is neither the supported one nor has the feature named by ``marker``.

    To be called before the patch modules are imported: they name things of the supported vLLM.

    Args:
        marker: Evidence as in ``Patch.skip_if_present``.
        vllm_version: The running version; vLLM's own word by default.

    Raises:
        PatchError: It is neither.
    """
    version = vllm_version or _running_vllm()
    if not _is_supported(version) and not is_present(marker):
        raise PatchError(_refusal(version, ["it has none of the features that the patches bring"]))


def install(
    patches: Iterable[Patch],
    *,
    required_features: Collection[str] = (),
    vllm_version: str | None = None,
    holder_prefix: str = "vllm",
) -> Installation:
    """Plan and install a table; return the live installation if it is in force already.

    Raises:
        PatchError: See :func:`plan`.
    """
    table = tuple(patches)
    live = _LIVE.get(_key(table))
    if live is not None:
        return live
    return plan(
        table,
        required_features=required_features,
        vllm_version=vllm_version,
        holder_prefix=holder_prefix,
    ).install()


def plan(
    patches: Iterable[Patch],
    *,
    required_features: Collection[str] = (),
    vllm_version: str | None = None,
    holder_prefix: str = "vllm",
) -> Plan:
    """Check a table against the running vLLM without changing anything.

    Args:
        patches: The table.
        required_features: Features without which the caller cannot go on.
        vllm_version: The running version; vLLM's own word by default.
        holder_prefix: Top-level package whose modules are searched for undeclared holders.

    Raises:
        PatchError: One message with everything that does not fit.
    """
    table = tuple(patches)
    version = vllm_version or _running_vllm()
    if _is_supported(version):
        changes, problems = plan_supported(table, holder_prefix)
        rows = [PatchStatus(p.target, p.feature, APPLIED, p.why) for p in table]
    else:
        changes = []
        rows, problems = plan_other(table, version)
    missing = sorted(
        {row.feature for row in rows if row.status == NOT_AVAILABLE} & set(required_features)
    )
    if missing:
        problems.append(f"required but not available on vLLM {version}: {', '.join(missing)}")
    if problems:
        raise PatchError(_refusal(version, problems))
    return Plan(_key(table), version, tuple(rows), tuple(changes))


def _running_vllm() -> str:
    # Not the installed distribution's version: the CPU build has none of the name vllm.
    return importlib.import_module("vllm").__version__


def _is_supported(version: str) -> bool:
    # Builds differ in their local part only (0.20.2+cpu).
    return version.split("+")[0] == SUPPORTED_VLLM


def _refusal(version: str, problems: Sequence[str]) -> str:
    return (
        f"the patches of vllm-ascend-backport are written for vLLM {SUPPORTED_VLLM} and do not "
        f"fit the running vLLM {version}; nothing was changed: {'; '.join(problems)}"
    )


def _key(table: Sequence[Patch]) -> tuple[str, ...]:
    return tuple(patch.target for patch in table)
