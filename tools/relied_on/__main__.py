# SPDX-License-Identifier: Apache-2.0
"""Records what our code relies on in each supported release of vLLM::

python -m tools.relied_on [--check]

Releases other than the installed one are read where ``make other-vllm`` unpacks them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import vllm_ascend
from tools.relied_on.ours import Source, read_sources
from tools.relied_on.theirs import Vllm
from vllm_ascend.deployment import vllm_distribution
from vllm_ascend.releases import SUPPORTED, Release, find_release

REPOSITORY = Path(__file__).parents[2]
PACKAGE = Path(vllm_ascend.__file__).parent
Record = dict[str, dict[str, str]]
# Rooms of releases whose blocks count rows.
_OF_ROWS = ("row_layout/", "worker/", "patch/worker/", "releases/blocks_of_rows.py")
# Private names that are neither vLLM's nor ours.
_OF_OTHERS = {
    "_collector_to_names": "prometheus_client",
    "_exit": "os",
    "_labelnames": "prometheus_client",
    "_prefill_pp_size": "vllm-ascend",
    "_replace": "named tuples",
}


def folder_of(release: Release) -> Path:
    """Return the folder that holds a release's package ``vllm``, wherever it was set up.

    Raises:
        FileNotFoundError: It is not unpacked.
    """
    engine = REPOSITORY / ".venv-engine" / release.vllm / "lib"
    unpacked = (REPOSITORY / ".venv-vllm" / release.vllm, *engine.glob("python*/site-packages"))
    for folder in unpacked:
        if (folder / "vllm").is_dir():
            return folder
    installed = vllm_distribution()
    if installed is not None and find_release(installed.version) is release:
        return Path(str(installed.locate_file("")))
    raise FileNotFoundError(f"no sources of vLLM {release.vllm}: run `make other-vllm`")


def relied_on(release: Release, sources: Sequence[Source]) -> Record:
    """Return what the sources rely on in a release, by kind: target -> digest."""
    vllm, ours = Vllm(folder_of(release)), list(_of_release(release, sources))
    overridden: dict[str, str] = {}
    skipped: dict[str, str] = {}
    private: dict[str, str] = {}
    everywhere = {module for source in ours for module in source.modules}
    for source in ours:
        modules = set(source.modules)
        for derived in source.derived_classes():
            for base in derived.bases:
                modules |= vllm.modules_of(base)
                for method in set(derived.methods) - {"__init__"}:
                    overridden |= vllm.method(base, method)
                if derived.skips_constructor:
                    skipped |= vllm.constructors(base)
        for name in source.used:
            private |= vllm.private(name, modules) or vllm.private(name, everywhere)
    kinds = {"overridden": overridden, "private": private, "skipped": skipped}
    return {kind: dict(sorted(digests.items())) for kind, digests in kinds.items()}


def nobodys_names(sources: Sequence[Source]) -> list[str]:
    """Return private names that are used and are nobody's: not ours, not listed, in no release."""
    known = _OF_OTHERS.keys() | {name for source in sources for name in source.defined}
    asked = {name for source in sources for name in source.used} - known
    modules = {module for source in sources for module in source.modules}
    vllms = [Vllm(folder_of(release)) for release in SUPPORTED]
    return sorted(name for name in asked if not any(v.private(name, modules) for v in vllms))


def _of_release(release: Release, sources: Sequence[Source]) -> Iterator[Source]:
    """Yield the sources that a release has a use for."""
    others = {f"releases/v{r.vllm.replace('.', '_')}.py" for r in SUPPORTED if r is not release}
    for source in sources:
        if source.path in others or (not release.counts_rows and source.path.startswith(_OF_ROWS)):
            continue
        yield source


def file_of(release: Release) -> Path:
    """Return the file that holds a release's record."""
    return Path(__file__).with_name(f"{release.vllm}.json")


def differences(release: Release, record: Record) -> list[str]:
    """Say what a release's file lacks, has too much, or has another digest of; a line for each."""
    file = file_of(release)
    if not file.is_file():
        return [f"vLLM {release.vllm}: nothing is recorded: run `make relied-on`"]
    known: Record = json.loads(file.read_text(encoding="utf-8"))
    lines = []
    for kind, digests in record.items():
        recorded = known.get(kind, {})
        for target in sorted({*digests, *recorded}):
            if digests.get(target) != recorded.get(target):
                what = "is not relied on any more" if target not in digests else "has changed"
                what = "is not recorded" if target not in recorded else what
                lines.append(f"vLLM {release.vllm}, {kind}: {target} {what}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the records, or with ``--check`` return 1 and say what differs."""
    parser = argparse.ArgumentParser(description="Record what our code relies on in vLLM.")
    parser.add_argument("--check", action="store_true", help="only say what is not recorded")
    check, sources, lines = parser.parse_args(arguments).check, read_sources(PACKAGE), []
    for release in SUPPORTED:
        record = relied_on(release, sources)
        if check:
            lines += differences(release, record)
        else:
            text = json.dumps(record, indent=1) + "\n"
            file_of(release).write_text(text, encoding="utf-8")
    lines += [f"{name} is no name of ours or of vLLM's" for name in nobodys_names(sources)]
    for line in lines:
        print(line, file=sys.stderr)
    return int(bool(lines))


if __name__ == "__main__":
    raise SystemExit(main())
