# SPDX-License-Identifier: Apache-2.0
"""A pod's file system in a folder, in which the shipped ``launch.sh`` runs for real."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.ut.deploy.manifests import DEPLOY

# Stands in for `vllm`: writes down its flags and variables.
RECORDER = """\
#!/bin/sh
printf '%s\\n' "$@" > "$RECORD.flags"
env > "$RECORD.env"
"""


@dataclass
class Pod:
    """A folder that stands for a pod's file system.

    Attributes:
        folder: Where it is; launch.sh and its neighbours are in ``etc``.
        environ: The pod's variables.
    """

    folder: Path
    environ: dict[str, str]

    def launch(self, *flags: str) -> subprocess.CompletedProcess[str]:
        """Run launch.sh with the flags of the pod's manifest."""
        return subprocess.run(
            [*self.command, *flags],
            capture_output=True,
            text=True,
            env=self.environ,
            timeout=300,
            check=False,
        )

    @property
    def command(self) -> list[str]:
        """What the container starts, without the manifest's flags."""
        return ["bash", str(self.folder / "etc" / "launch.sh")]

    @property
    def flags(self) -> list[str]:
        """What vLLM was given."""
        return (self.folder / "record.flags").read_text().splitlines()

    @property
    def variables(self) -> dict[str, str]:
        """The variables that vLLM saw."""
        lines = (self.folder / "record.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)


def make_pod(folder: Path, *, vllm: str = RECORDER) -> Pod:
    """Make a pod without a tree of ours, so that no doctor is asked.

    Args:
        folder: An empty folder.
        vllm: The script that runs as the command ``vllm``.
    """
    shutil.copytree(DEPLOY / "base", folder / "etc", ignore=shutil.ignore_patterns("__*"))
    programs = folder / "bin"
    programs.mkdir()
    # Scripts instead of links: a linked interpreter would not find its packages.
    python = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    for name, script in (("vllm", vllm), ("python3", python)):
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    environ = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "POD_IP": "127.0.0.1",
        "BACKPORT": str(folder / "none"),
        "RECORD": str(folder / "record"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return Pod(folder, environ)


def in_group(pod: Pod, index: int, *, local_ranks: int = 2) -> None:
    """Set the variables that LeaderWorkerSet and the manifest give the pod with this index."""
    pod.environ |= {
        "LWS_WORKER_INDEX": str(index),
        "LWS_LEADER_ADDRESS": "localhost",
        "DATA_PARALLEL_SIZE_LOCAL": str(local_ranks),
    }
