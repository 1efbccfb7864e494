# SPDX-License-Identifier: Apache-2.0
"""Where in a package a name is that is no longer where it was."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from vllm_ascend_evaluation.port_report.modules import BOUND, IMPORTED, Modules


def find_moved(
    modules: Modules, targets: Sequence[str], base: Modules | None
) -> dict[str, tuple[str, ...]]:
    """Return target -> every place that it may have moved to.

    These are, the first of them that there is: what its class inherits; the same name in another
    module; its class in another module, without it.

    Args:
        modules: The package.
        targets: ``"module:name"`` of what is gone; all are looked for in one pass over the files.
        base: The release before: nothing has moved to where it had a namesake already.
    """
    paths = {target: _paths(target) for target in targets}
    names = {path.rpartition(".")[2] for found in paths.values() for path in found}
    homes = _modules_that_define(modules, names)
    return {target: _places(modules, target, base, homes) for target in targets}


def _paths(target: str) -> list[str]:
    """Return the names to look for: its own, then that of its class."""
    path = target.partition(":")[2]
    owner = path.rpartition(".")[0]
    return [path, owner] if owner else [path]


def _places(
    modules: Modules, target: str, base: Modules | None, homes: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    inherited = modules.resolve(target)
    if inherited.how in (BOUND, IMPORTED):
        return (inherited.origin or inherited.where,)
    for path in _paths(target):
        last = path.rpartition(".")[2]
        own = target.partition(":")[0]
        places = [f"{module}:{path}" for module in homes.get(last, ()) if module != own]
        moved = [
            place
            for place in places
            if modules.look_up(place).how == BOUND
            and (base is None or base.look_up(place).how != BOUND)
        ]
        if moved:
            return tuple(moved)
    return ()


def _modules_that_define(modules: Modules, names: Iterable[str]) -> dict[str, list[str]]:
    """Return name -> modules that define it somewhere, by their text: most need not be parsed."""
    found: dict[str, list[str]] = defaultdict(list)
    alternatives = "|".join(map(re.escape, sorted(names)))
    if not alternatives:
        return found
    definition = re.compile(rf"^[ \t]*(?:async +def|def|class) +({alternatives})\b", re.M)
    for module, text in modules.texts():
        for name in dict.fromkeys(definition.findall(text)):
            found[name].append(module)
    return found
