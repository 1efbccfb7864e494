# SPDX-License-Identifier: Apache-2.0
"""What a serving process becomes: plugins loaded, patches in place. Run as a file, by path.

It imports vLLM and vllm_ascend as serving does, and nothing of the doctor: the package that
serving imports need not have one. ``python serving_child.py ANSWER.json``
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

PLUGINS_GROUP = "vllm.general_plugins"
_PACKAGE = "vllm_ascend"
# Patches lie below these; those of the workers, and those of vllm-ascend's own modules.
_TABLES = tuple(f"{_PACKAGE}.{room}." for room in ("patch", "row_layout", "worker"))
_WORKER = (f"{_PACKAGE}.patch.worker.", f"{_PACKAGE}.worker.")
_LATE = f"{_PACKAGE}.patch.upstream."


def main(answer_file: str) -> None:
    """Write what every probe answers; one that fails leaves ``{"error": ...}``."""
    # The file's folder: `vllm serve` does not have it in front of everything else.
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    answers: dict[str, Any] = {}
    probes: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("vllm", _vllm),
        ("plugins", _plugins),
        ("package", _package),
        ("patches", _patches),
    )
    for name, probe in probes:
        try:
            answers[name] = probe()
        except BaseException as error:  # noqa: BLE001, RUF100 - SystemExit of a plugin, too
            answers[name] = {"error": _describe(error)}
        # After each one: a later probe may take the process with it.
        Path(answer_file).write_text(json.dumps(answers))


def _describe(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _vllm() -> dict[str, Any]:
    # EngineCore has imported this much when it loads the plugins.
    importlib.import_module("vllm.v1.engine.core")
    vllm = importlib.import_module("vllm")
    known = sorted(importlib.import_module("vllm.envs").environment_variables)
    return {"version": vllm.__version__, "file": str(vllm.__file__), "variables": known}


def _plugins() -> dict[str, Any]:
    """Load the plugins as serving does, then look at those of this package one by one."""
    raised = None
    try:
        importlib.import_module("vllm.plugins").load_general_plugins()
    except Exception as error:  # noqa: BLE001, RUF100 - reported
        raised = _describe(error)
    allowed = importlib.import_module("vllm.envs").VLLM_PLUGINS
    mine = [point for point in entry_points(group=PLUGINS_GROUP) if _is_mine(point.value)]
    return {
        "raised": raised,
        "allowed": allowed,
        "entries": [
            {
                "name": point.name,
                "allowed": _is_allowed(point.name, allowed),
                "failed": _load_failure(point) if _is_allowed(point.name, allowed) else None,
            }
            for point in mine
        ],
    }


def _is_mine(value: str) -> bool:
    return value.split(":")[0].split(".")[0] == _PACKAGE


def _is_allowed(name: str, allowed: list[str] | None) -> bool:
    return allowed is None or name in allowed


def _load_failure(point: Any) -> str | None:
    """Return why an entry point cannot be loaded: vLLM has logged it and gone on without."""
    try:
        point.load()
    except Exception as error:  # noqa: BLE001, RUF100 - reported
        return _describe(error)
    return None


def _package() -> dict[str, Any]:
    package = importlib.import_module(_PACKAGE)
    folder = Path(str(package.__file__)).parent
    return {"folder": str(folder)}


def _patches() -> list[dict[str, str]]:
    """Return a row for every patch: what lies in its place, not what was meant to."""
    try:
        importlib.import_module(f"{_PACKAGE}.patch.installer")
    except ImportError:
        return []  # a vllm-ascend without this project, or a package that cannot be imported
    rows = _rows_of_tables(_modules_with_tables())
    over_checkout = importlib.import_module(f"{_PACKAGE}.deployment").is_over_checkout()
    # Only now: importing what serving did not import may install it.
    for module in list(_unloaded_modules()):
        try:
            patches = importlib.import_module(module).PATCHES
        except Exception as error:  # noqa: BLE001, RUF100 - reported
            rows[module] = _row(module, "", "not loaded", _describe(error), module)
            continue
        for patch in patches:
            row = _row(patch.target, patch.feature, "not loaded", "", module)
            rows.setdefault(patch.target, row)
    if over_checkout:  # where workers, and they alone, import what was just imported
        workers = [m for m in _modules_with_tables() if m.__name__.startswith(_WORKER)]
        rows.update(_rows_of_tables(workers))
    return list(rows.values())


def _modules_with_tables() -> list[Any]:
    """Return the imported modules that have a table; those that install one are first."""
    names = sorted(name for name in sys.modules if name.startswith(_TABLES))
    modules = [sys.modules[name] for name in names if hasattr(sys.modules[name], "PATCHES")]
    return sorted(modules, key=lambda module: not hasattr(module, "install_all"))


def _unloaded_modules() -> Iterator[str]:
    """Yield our patch modules that serving has not imported, by name."""
    patch = importlib.import_module(f"{_PACKAGE}.patch")
    root = Path(next(iter(patch.__path__)))
    for file in sorted(root.rglob("patch_*.py")):
        name = ".".join((patch.__name__, *file.relative_to(root).with_suffix("").parts))
        # Over a checkout vllm-ascend's own patches lie beside; they have no table.
        if name not in sys.modules and "\nPATCHES" in file.read_text(errors="replace"):
            yield name
    release = importlib.import_module(f"{_PACKAGE}.releases").running_release()
    for modules in release.layout_patches.values():
        yield from (name for name in modules if name not in sys.modules)


def _rows_of_tables(modules: list[Any]) -> dict[str, dict[str, str]]:
    table_module = importlib.import_module(f"{_PACKAGE}.patch.table")
    rows: dict[str, dict[str, str]] = {}
    for module in modules:
        # A table made of others names the same patches again.
        patches = tuple(patch for patch in module.PATCHES if patch.target not in rows)
        if module.__name__.startswith(_LATE):
            rows.update(_rows_of_late_patches(patches))
            continue
        try:
            rows.update(_rows_in_force(patches))
        except table_module.PatchError:
            rows.update(_rows_refused(patches))
    return rows


def _rows_of_late_patches(patches: tuple[Any, ...]) -> dict[str, dict[str, str]]:
    """Return rows for patches that are set right after the import of what they change."""
    late = importlib.import_module(f"{_LATE}late")
    release = importlib.import_module(f"{_PACKAGE}.releases").running_release()
    rows = {}
    for patch in patches:
        state, why = "not in place", "its module was imported, but not changed"
        if patch.target in release.native:
            state, why = "left to vLLM", release.native[patch.target]
        elif patch.target in release.absent:
            state, why = "not available", release.absent[patch.target]
        elif late.is_set(patch):
            state, why = "applied", patch.why
        elif patch.target.partition(":")[0] not in sys.modules:
            state, why = "ready", "set as soon as its module is imported"
        rows[patch.target] = _row(patch.target, patch.feature, state, why)
    return rows


def _rows_in_force(patches: tuple[Any, ...]) -> dict[str, dict[str, str]]:
    installer = importlib.import_module(f"{_PACKAGE}.patch.installer")
    plan = installer.plan(patches)  # the one that is in force
    # By name: a class that was patched may since be hidden behind a subclass of the same name.
    changes = {change.where: change for change in plan.changes}
    rows = {}
    for status in plan.rows:
        state, why = status.status, status.reason
        if state == "applied":
            state, why = _state(changes[_where(status.target)], why)
        rows[status.target] = _row(status.target, status.feature, state, why)
    return rows


def _state(change: Any, why: str) -> tuple[str, str]:
    """Return what lies where a change was made, and why."""
    if change.is_in_place:
        return "applied", why
    found = vars(change.owner).get(change.name)
    if found is None or found is change.old:
        return "not in place", "it was taken back"
    layers = list(_layers(getattr(found, "__func__", found)))
    # Not __module__ alone: functools.wraps copies that of what is wrapped.
    by = getattr(layers[0], "__globals__", {}).get("__name__")
    by = str(by or getattr(layers[0], "__module__", type(found).__module__))
    if getattr(change.new, "__func__", change.new) in layers:
        if by.startswith(f"{_PACKAGE}."):  # over a checkout, in which it is imported behind ours
            return "applied", f"{why} vllm-ascend wraps it, in {by}."
        return "wrapped", f"wrapped since, by {by}"
    return "replaced", f"replaced since, by {by}"


def _layers(function: Any) -> Iterator[Any]:
    """Yield a function and, decorator by decorator, what it wraps."""
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


def _where(target: str) -> str:
    """Return a target as a change calls its place: ``Class.attribute`` or ``module.function``."""
    module, _, path = target.partition(":")
    return path if "." in path else f"{module}.{path}"


def _rows_refused(patches: tuple[Any, ...]) -> dict[str, dict[str, str]]:
    """Say of every patch what speaks against it, as the planner sees it."""
    planner = importlib.import_module(f"{_PACKAGE}.patch.planner")
    version = importlib.import_module("vllm").__version__
    release = importlib.import_module(f"{_PACKAGE}.releases").find_release(version)
    problems = [] if release is None else planner.plan_supported(release.table(patches), release)[1]
    rows = {}
    for patch in patches:
        own = [problem for problem in problems if patch.target in problem]
        why = "; ".join(own) or "not by itself: a table is installed as a whole or not at all"
        rows[patch.target] = _row(patch.target, patch.feature, "refused", why)
    return rows


def _row(target: str, feature: str, state: str, why: str, module: str = "") -> dict[str, str]:
    return {"target": target, "feature": feature, "state": state, "why": why, "module": module}


if __name__ == "__main__":
    main(sys.argv[1])
