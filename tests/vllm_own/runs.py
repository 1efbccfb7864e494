# SPDX-License-Identifier: Apache-2.0
"""Runs vLLM's own tests: each configuration of each release in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_ascend.prefix_cache_config import child_environment

REPOSITORY = Path(__file__).parents[2]
# As `make vllm-tests` leaves them: one folder per release, and the stand-ins for models.
SOURCES = REPOSITORY / ".vllm-tests"
_HUB = SOURCES / "hub"
_CACHE = SOURCES / "cache"
_CHILD = Path(__file__).with_name("child.py")
# Releases whose Python runs in the environment of another one: theirs has no build for the CPU.
CARRIERS = {"0.33.0": "0.32.0"}
# pytest's: all passed, some failed.
_RAN = (0, 1)
# What a test of theirs makes up.
_PLUGINS_OF_TESTS = "dummy_kv_connector_plugin"
WITHOUT = "without the patches"
# Name -> what of the project is switched on; None: its patches are not installed.
CONFIGURATIONS: dict[str, dict[str, str] | None] = {
    WITHOUT: None,
    "unset": {},
    "dsv4": {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1"},
    "best": {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"},
}


@dataclass(frozen=True)
class Run:
    """What became of a run.

    Attributes:
        tests: Test -> ``passed``, ``failed`` or ``skipped``.
        seconds: File -> what its tests took.
        reasons: Test that failed -> the end of its traceback.
    """

    tests: dict[str, str]
    seconds: dict[str, float]
    reasons: dict[str, str]


class BrokenRunError(RuntimeError):
    """pytest did not come to an end."""


def run(
    release: str, configuration: str, files: Sequence[str], left_out: Sequence[str] = ()
) -> Run:
    """Run files of a release's own tests in a configuration.

    Args:
        release: A version of vLLM.
        configuration: One of :data:`CONFIGURATIONS`.
        files: Files and folders below the release's sources.
        left_out: Files, and single tests, below those that are not run.

    Raises:
        BrokenRunError: The run broke off; the end of its output is in the message.
    """
    switches = CONFIGURATIONS[configuration]
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "task.json"
        told = {
            "files": list(files),
            "left_out": list(left_out),
            "patched": switches is not None,
        }
        task.write_text(json.dumps(told), encoding="utf-8")
        result = subprocess.run(
            [_python(release), _CHILD, task],
            cwd=SOURCES / release,
            env=_environment(release, switches),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        written = json.loads(task.read_text(encoding="utf-8"))
        if result.returncode not in _RAN or written.keys() == told.keys():
            raise BrokenRunError(
                f"vLLM {release}, {configuration}: exit code {result.returncode}\n"
                f"{result.stdout[-6000:]}"
            )
        return Run(**written)


def _python(release: str) -> str:
    carrier = CARRIERS.get(release, release)
    own = REPOSITORY / ".venv-engine" / carrier / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def _environment(release: str, switches: dict[str, str] | None) -> dict[str, str]:
    unpacked = REPOSITORY / ".venv-vllm" / release
    is_installed = _python(release) != sys.executable and release not in CARRIERS
    path = [str(REPOSITORY)] if is_installed else [str(unpacked), str(REPOSITORY)]
    environment = child_environment(
        {
            "PYTHONPATH": os.pathsep.join(path),
            "HF_HOME": str(_HUB),
            "HF_HUB_OFFLINE": "1",
            "VLLM_CACHE_ROOT": str(_CACHE),
            "VLLM_NO_USAGE_STATS": "1",
            "TORCHINDUCTOR_VEC_ISA_OK": "1",  # or it compiles a program to see
            "VLLM_CPU_KVCACHE_SPACE": "1",
            # Engines in the process of their test: others have two, which import all of vLLM.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            **(switches or {}),
        }
    )
    environment.pop("VLLM_PLUGINS", None)
    if switches is None:  # engines that a test starts would load the patches by themselves
        environment["VLLM_PLUGINS"] = _PLUGINS_OF_TESTS
    return environment
