# SPDX-License-Identifier: Apache-2.0
"""How a pod starts vLLM: launch.sh runs for real, with a `vllm` that writes down its flags."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ut.deploy.manifests import DEPLOY

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
        script = str(self.folder / "etc" / "launch.sh")
        return subprocess.run(
            ["bash", script, *flags],
            capture_output=True,
            text=True,
            env=self.environ,
            timeout=120,
            check=False,
        )

    @property
    def flags(self) -> list[str]:
        """What vLLM was given."""
        return (self.folder / "record.flags").read_text().splitlines()

    @property
    def variables(self) -> dict[str, str]:
        """The variables that vLLM saw."""
        lines = (self.folder / "record.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    shutil.copytree(DEPLOY / "base", tmp_path / "etc", ignore=shutil.ignore_patterns("__*"))
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "vllm").write_text(RECORDER)
    (programs / "vllm").chmod(0o755)
    # A script instead of a link: a linked interpreter would not find its packages.
    (programs / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "python3").chmod(0o755)
    environ = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "POD_IP": "127.0.0.1",
        "BACKPORT": str(tmp_path / "none"),
        "RECORD": str(tmp_path / "record"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return Pod(tmp_path, environ)


def test_shellcheck_finds_nothing():
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    script = str(DEPLOY / "base" / "launch.sh")
    done = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_single_node_gets_its_config_and_flags(pod: Pod):
    done = pod.launch("--tensor-parallel-size=8", '--additional-config={"a": "b c"}')
    assert done.returncode == 0, done.stderr
    assert pod.flags == [
        "serve",
        "--config",
        str(pod.folder / "etc" / "serve.yaml"),
        "--tensor-parallel-size=8",
        '--additional-config={"a": "b c"}',
    ]


def test_collectives_use_the_interface_of_the_pods_address(pod: Pod):
    assert pod.launch().returncode == 0
    for name in ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        assert pod.variables[name] == "lo"
    assert pod.variables["HCCL_IF_IP"] == pod.variables["VLLM_HOST_IP"] == "127.0.0.1"


def test_an_address_that_no_interface_has_is_one_clear_error(pod: Pod):
    pod.environ["POD_IP"] = "192.0.2.1"
    done = pod.launch()
    assert done.returncode != 0
    assert done.stderr.strip() == "launch: no network interface has POD_IP=192.0.2.1"


def in_group(pod: Pod, index: int) -> list[str]:
    """Launch the pod with this index in a group and return its flags behind the config."""
    pod.environ |= {
        "LWS_WORKER_INDEX": str(index),
        "LWS_LEADER_ADDRESS": "localhost",
        "DATA_PARALLEL_SIZE_LOCAL": "2",
    }
    done = pod.launch()
    assert done.returncode == 0, done.stderr
    return pod.flags[3:]


def test_the_leader_serves_at_its_own_address(pod: Pod):
    flags = in_group(pod, 0)
    assert flags == [
        "--data-parallel-size-local",
        "2",
        "--data-parallel-address",
        "127.0.0.1",
    ]


def test_a_worker_runs_the_next_ranks_without_a_server(pod: Pod):
    flags = in_group(pod, 3)
    assert flags[:3] == ["--data-parallel-size-local", "2", "--data-parallel-address"]
    assert flags[3] in ("127.0.0.1", "::1")
    assert flags[4:] == ["--headless", "--data-parallel-start-rank", "6"]


def fake_backport(pod: Pod, code: int) -> None:
    """Give the pod a tree of ours whose doctor ends with ``code``."""
    package = pod.folder / "none" / "vllm_ascend"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        f"import sys\nassert sys.argv[1:] == ['doctor']\nprint('seen')\nsys.exit({code})\n"
    )


def test_a_doctor_that_finds_nothing_lets_the_pod_serve(pod: Pod):
    fake_backport(pod, 0)
    done = pod.launch()
    assert "seen" in done.stdout
    assert pod.flags[0] == "serve"


def test_a_doctor_that_objects_keeps_the_pod_from_serving(pod: Pod):
    fake_backport(pod, 3)
    assert pod.launch().returncode == 3
    assert not (pod.folder / "record.flags").exists()
