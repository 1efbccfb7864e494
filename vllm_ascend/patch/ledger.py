# SPDX-License-Identifier: Apache-2.0
"""Writes docs/patches.md, and the list that the overlay reads, from the patch tables::

python -m vllm_ascend.patch.ledger [--check]
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import vllm_ascend.patch
from vllm_ascend.overlay import patch_list
from vllm_ascend.overlay.patch_list import PATCH_LIST
from vllm_ascend.patch.features import DSV4_ON_CPU
from vllm_ascend.patch.table import Add, AddField, Patch, Rebind, Wrap
from vllm_ascend.releases import SUPPORTED, Release, describe_supported

_KINDS = {Add: "added", AddField: "added field", Wrap: "changed", Rebind: "replaced"}
LEDGER = Path(__file__).parents[2] / "docs" / "patches.md"


def patch_modules(package: ModuleType = vllm_ascend.patch) -> Iterator[str]:
    """Yield the names of all ``patch_*`` modules below ``package``, sorted.

    The packages on the way are imported, and so install what they hold: the ledger does not
    mind, because it reads the tables and never the patched objects.
    """
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
        name = f"{package.__name__}.{module.name}"
        if module.ispkg:
            yield from patch_modules(importlib.import_module(name))
        elif module.name.startswith("patch_"):
            yield name


def collect_patches(package: ModuleType = vllm_ascend.patch) -> tuple[Patch, ...]:
    """Return the patches of all ``patch_*`` modules below ``package``.

    Raises:
        AttributeError: A module has no ``PATCHES``; an empty tuple is fine.
    """
    modules = map(importlib.import_module, patch_modules(package))
    return tuple(patch for module in modules for patch in module.PATCHES)


def render(patches: Sequence[Patch]) -> str:
    """Return the ledger as Markdown, a section per feature; the same table gives the same text."""
    features: dict[str, list[Patch]] = {}
    for patch in patches:
        features.setdefault(patch.feature, []).append(patch)
    lines = [
        "# Patch ledger",
        "",
        f"Everything that is changed in vLLM {describe_supported()} at import time. Generated "
        "from the patch tables and `vllm_ascend/releases` by `make ledger`; do not edit.",
        "",
        "| feature | patches | upstream | remove when |",
        "|---|---:|---|---|",
    ]
    for feature, members in features.items():
        upstream = ", ".join(dict.fromkeys(patch.upstream for patch in members))
        remove_when = "; ".join(dict.fromkeys(patch.remove_when for patch in members))
        lines.append(f"| [{feature}](#{feature}) | {len(members)} | {upstream} | {remove_when} |")
    for feature, members in features.items():
        lines += ["", f"## {feature}", "", "| target | change | why | guard |", "|---|---|---|---|"]
        lines += [
            f"| `{patch.target}`{_holders(patch)} | {_KINDS[type(patch)]} | {patch.why} "
            f"| {_guard(patch)} |"
            for patch in members
        ]
    return "\n".join(lines) + "\n"


def _holders(patch: Patch) -> str:
    """Return who else binds the name: changed with it, or left alone on purpose."""
    said, names = "kept by", patch.keepers if isinstance(patch, Rebind) else ()
    if isinstance(patch, Wrap):
        said, names = "also in", patch.aliases
    return f"<br>{said} {', '.join(f'`{name}`' for name in names)}" if names else ""


def _guard(patch: Patch) -> str:
    releases: dict[str, list[str]] = {}
    for release in SUPPORTED:
        releases.setdefault(_guard_in(release, patch), []).append(release.vllm)
    said = [f"{', '.join(versions)}: {guard}" for guard, versions in releases.items()]
    if patch.superseded_by is not None:
        said.append(f"superseded by `{patch.superseded_by}`")
    return "<br>".join(said)


def _guard_in(release: Release, patch: Patch) -> str:
    left = release.native.get(patch.target) or release.absent.get(patch.target)
    if left is not None:
        return left
    (checked,) = release.table([patch])
    if isinstance(patch, Add):
        return "must be absent"
    digests = " or ".join(f"`{digest}`" for digest in checked.known_digests)
    return f"source digest {digests}" if digests else "not patched"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the ledger and the overlay's list, or with ``--check`` return 1 if one is stale."""
    parser = argparse.ArgumentParser(description="Write docs/patches.md from the patch tables.")
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    check = parser.parse_args(arguments).check
    patches = collect_patches()
    over_checkout = [patch for patch in patches if patch.feature != DSV4_ON_CPU["feature"]]
    texts = {
        LEDGER: render(patches),
        PATCH_LIST: patch_list.render(over_checkout),
    }
    stale = []
    for path, text in texts.items():
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
    if stale:
        print(f"{', '.join(stale)} stale: run `make ledger`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
