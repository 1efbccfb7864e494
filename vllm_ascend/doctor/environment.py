# SPDX-License-Identifier: Apache-2.0
"""The environment: the project's variables, misspelled ones, and neighbours that matter."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping

from vllm_ascend.core.policy.switches import PrefixCacheConfig
from vllm_ascend.doctor.findings import Finding, Severity, VariableRow
from vllm_ascend.prefix_cache_config import (
    FORMER_VARIABLES,
    VARIABLES,
    Variable,
    is_left_to_vllm,
    load_config,
)

_PROBE = "environment"
_APPLY = "VLLM_ASCEND_APPLY_DSV4_PATCH"
_HASH_SEED = "PYTHONHASHSEED"
# What nobody but this project would call a variable.
_OUR_PREFIXES = ("VLLM_ASCEND_DSV4_", "VLLM_ASCEND_PREFIX_CACHE_", "VLLM_PREFIX_CACHE_", "VLLM_PIN")
_SIMILAR = 0.85


def variables_set(environ: Mapping[str, str]) -> list[str]:
    """Return the project's variables that have a value."""
    return [variable.name for variable in VARIABLES if environ.get(variable.name)]


def asks_for_something(environ: Mapping[str, str]) -> bool:
    """Whether any variable of the project asks for more than stock vLLM does.

    A value that is not allowed asks, too.
    """
    try:
        return not load_config(environ).is_stock
    except ValueError:
        return True


def variable_rows(environ: Mapping[str, str]) -> tuple[VariableRow, ...]:
    """Return every variable of the project with the value in force."""
    valid = {v.name: environ.get(v.name, "") for v in VARIABLES if not _complaint(v, environ)}
    config = load_config(valid)
    return tuple(_row(variable, environ, config) for variable in VARIABLES)


def _row(variable: Variable, environ: Mapping[str, str], config: PrefixCacheConfig) -> VariableRow:
    raw = environ.get(variable.name, "")
    in_force = getattr(config, variable.field)
    if _complaint(variable, environ):
        source, value = "invalid", raw
    elif variable.field == "retention" and is_left_to_vllm(environ):
        source, value = "vllm", raw
    elif raw:
        source, value = "set", _spoken(in_force)
    else:
        source = "default" if in_force == variable.default else "profile"
        value = _spoken(in_force)
    return VariableRow(variable.name, value, source, variable.values, variable.effect)


def _spoken(value: object) -> str:
    if value is None:
        return "unset"
    return str(int(value)) if isinstance(value, bool) else str(value)


def _complaint(variable: Variable, environ: Mapping[str, str]) -> str:
    """Return why the variable's value cannot be used, or nothing."""
    try:
        if raw := environ.get(variable.name):
            variable.parse(variable.name, raw)
    except ValueError as error:
        return str(error)
    return ""


def invalid_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables with which no engine starts: bad values, and names of the past."""
    former = [name for name in FORMER_VARIABLES if environ.get(name)]
    return [*former, *(v.name for v in VARIABLES if _complaint(v, environ))]


def check_values(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for every value that is not allowed: no engine starts with it."""
    for variable in VARIABLES:
        complaint = _complaint(variable, environ)
        if complaint:
            remedy = f"set {variable.name} to one of: {variable.values}; or unset it"
            yield Finding(_PROBE, Severity.WRONG, complaint, remedy)


def check_empty(environ: Mapping[str, str], vllm_ascend: str | None) -> Iterator[Finding]:
    """Yield a finding if an empty value, which counts as unset here, ends vllm-ascend.

    Args:
        vllm_ascend: The version that serves, or is looked at; ``None``: there is none.
    """
    if environ.get(_APPLY) == "" and (vllm_ascend or "").startswith("0.20.2"):
        text = f"{_APPLY} is empty: vllm-ascend {vllm_ascend} reads it as a number and ends"
        yield Finding(_PROBE, Severity.WRONG, text, f"set {_APPLY}=0 or 1, or unset it")


def check_interval(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding if the retention interval that is set is vLLM's own affair."""
    if is_left_to_vllm(environ):
        yield Finding(
            _PROBE,
            Severity.WARNING,
            "VLLM_PREFIX_CACHE_RETENTION_INTERVAL is the only switch that is on, and this vLLM "
            "reads it itself: nothing of this project is in force",
            "that is all right if it is meant so; else set VLLM_ASCEND_PREFIX_CACHE_PROFILE=best",
        )


def check_names(environ: Mapping[str, str], known: Collection[str]) -> Iterator[Finding]:
    """Yield a finding for every variable that looks like ours and is nobody's.

    One that is nearly spelled like ours is wrong: what it asks for would silently not be done.

    Args:
        environ: The environment; an empty value counts as unset.
        known: Names that somebody else reads (vLLM's and vllm-ascend's own).
    """
    ours = [variable.name for variable in VARIABLES]
    for name in sorted(filter(environ.get, environ.keys() - set(known) - set(ours))):
        nearest = difflib.get_close_matches(name.upper(), ours, n=1, cutoff=_SIMILAR)
        severity = Severity.WRONG
        if not nearest and name.upper().startswith(_OUR_PREFIXES):
            nearest = difflib.get_close_matches(name.upper(), ours, n=1, cutoff=0)
            severity = Severity.WARNING
        if nearest:
            yield Finding(
                _PROBE,
                severity,
                f"{name} is not a variable of this release and has no effect",
                f"the nearest name is {nearest[0]}",
            )


def check_hash_seed(environ: Mapping[str, str], *, has_connector: bool) -> Iterator[Finding]:
    """Yield a finding if processes that share a KV pool would name blocks differently."""
    seed = environ.get(_HASH_SEED, "")
    if not has_connector or (seed and seed != "random"):
        return
    yield Finding(
        _PROBE,
        Severity.WARNING,
        f"{_HASH_SEED} is {seed or 'unset'}: every process starts its block hashes with other "
        "random bytes, so a KV pool that several share is never hit",
        f"set {_HASH_SEED}=0 on all nodes",
    )
