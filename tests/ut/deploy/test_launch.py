# SPDX-License-Identifier: Apache-2.0
"""How a pod starts vLLM: launch.sh runs for real, with a `vllm` that writes down its flags."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ut.deploy.manifests import DEPLOY
from tests.ut.deploy.pods import Pod, in_group, make_pod


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return make_pod(tmp_path)


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
        "--api-server-count",
        "1",
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


def flags_in_group(pod: Pod, index: int) -> list[str]:
    """Launch the pod with this index in a group and return its flags behind the config."""
    in_group(pod, index)
    done = pod.launch()
    assert done.returncode == 0, done.stderr
    return pod.flags[3:]


def test_the_leader_serves_at_its_own_address(pod: Pod):
    flags = flags_in_group(pod, 0)
    assert flags == [
        *("--api-server-count", "1"),
        *("--data-parallel-size-local", "2"),
        *("--data-parallel-address", "127.0.0.1"),
    ]


def test_a_worker_runs_the_next_ranks_without_a_server(pod: Pod):
    flags = flags_in_group(pod, 3)
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
