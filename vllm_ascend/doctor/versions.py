# SPDX-License-Identifier: Apache-2.0
"""Versions of everything that takes part, found without importing any of it."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from vllm_ascend.deployment import VERSION, is_over_checkout, own_package, vllm_distribution
from vllm_ascend.doctor.findings import Finding, Severity, Version
from vllm_ascend.overlay.release import read_release
from vllm_ascend.releases import describe_supported, find_release, why_no_engine

_PROBE = "versions"
_OURS = "vllm-ascend-backport"
_CANN_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_CANN_DEFAULT = "/usr/local/Ascend/ascend-toolkit/latest"
# Where CANN's packages say their version, by release.
_CANN_FILES = ("ascend_toolkit_install.info", "toolkit/version.info", "version.cfg", "version.info")


def versions(
    environ: Mapping[str, str], *, vllm: Version | None, checkout: Path | None = None
) -> tuple[Version, ...]:
    """Return the components' versions.

    Args:
        environ: Says where CANN is.
        vllm: The vLLM that a serving process imports, if that could be found out.
        checkout: The vllm-ascend checkout that is looked at, if any.
    """
    return (
        vllm or _vllm(),
        _vllm_ascend(checkout),
        Version(_OURS, VERSION, ""),
        _distribution("torch", ("torch",)),
        _distribution("torch_npu", ("torch-npu", "torch_npu")),
        cann_version(environ),
        Version("Python", platform.python_version(), platform.machine()),
    )


def own_versions() -> tuple[Version, ...]:
    """Return what this package is and runs beside, or over."""
    checkout = own_package().parent if is_over_checkout() else None
    over = (_vllm_ascend(checkout),) if checkout else ()
    return (Version(_OURS, VERSION, ""), _vllm(), *over)


def _vllm() -> Version:
    found = vllm_distribution()
    if found is None:
        return Version("vLLM", None)
    name = found.metadata["Name"]
    return Version("vLLM", found.version, "" if name == "vllm" else name)


def _vllm_ascend(checkout: Path | None) -> Version:
    version = read_release(checkout).version if checkout else None
    if version:
        return Version("vllm-ascend", version, str(checkout))
    return _distribution("vllm-ascend", ("vllm-ascend",))


def _distribution(label: str, names: Iterable[str]) -> Version:
    for name in names:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        return Version(label, found.version, "" if name == label.lower() else name)
    return Version(label, None)


def cann_version(environ: Mapping[str, str]) -> Version:
    """Return CANN's version as its toolkit folder says it."""
    homes = [environ[name] for name in _CANN_HOMES if environ.get(name)] or [_CANN_DEFAULT]
    for home in map(Path, homes):
        files = (*(home / name for name in _CANN_FILES), *sorted(home.glob("*-linux/*.info")))
        for file in files:
            version = _version_in(file)
            if version:
                return Version("CANN", version, str(home))
    return Version("CANN", None)


def _version_in(file: Path) -> str | None:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        key, equals, value = line.partition("=")
        if equals and key.strip().lower() in ("version", "toolkit_running_version"):
            # version.cfg has "[8.5.0:CANN-8.5.0]".
            return value.strip().strip("[]").split(":")[0] or None
    return None


def check_versions(found: Iterable[Version], *, over_checkout: bool) -> Iterator[Finding]:
    """Yield a finding for what is missing or is not what the patches were written for.

    Args:
        found: The versions.
        over_checkout: Serving imports vllm-ascend's package, which needs the NPU's libraries.
    """
    by_name = {version.name: version.version for version in found}
    vllm = by_name.get("vLLM")
    if vllm is None:
        yield Finding(
            _PROBE,
            Severity.WRONG,
            "vLLM is not installed in this Python",
            "run the doctor with the Python that serves, or install vLLM "
            f"{describe_supported('or')} there",
        )
    elif (release := find_release(vllm)) is None:
        yield Finding(
            _PROBE,
            Severity.WARNING,
            f"vLLM is {vllm}; the patches are written for {describe_supported()}",
            "see what became of the patches",
        )
    elif why := why_no_engine(release):
        what, _, advice = why.partition(": ")
        yield Finding(_PROBE, Severity.WARNING, what, f"{advice} to serve")
    if not over_checkout:
        return
    for name in ("torch_npu", "CANN"):
        if by_name.get(name) is None:
            yield Finding(
                _PROBE,
                Severity.WARNING,
                f"{name} was not found, and vllm-ascend needs it",
                "source CANN's set_env.sh" if name == "CANN" else "use vllm-ascend's image",
            )
