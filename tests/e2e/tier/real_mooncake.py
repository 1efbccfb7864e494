# SPDX-License-Identifier: Apache-2.0
"""A real Mooncake Store on the loopback."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from ctypes.util import find_library
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.e2e.server.server import free_port
from vllm_ascend.tier.mooncake_settings import MooncakeSettings

# Mooncake's engine links to the driver of RDMA devices, where there is none as well. `.ci/run`
# installs it. The environments of other releases do without Mooncake.
needs_mooncake = pytest.mark.skipif(
    not (find_spec("mooncake") and find_library("ibverbs") and find_library("numa")),
    reason="Mooncake is not installed, or the system libraries libibverbs1 and libnuma1 are not",
)


@contextlib.contextmanager
def running_master(
    folder: Path,
    port: int | None = None,
    metadata: int | None = None,
    flags: Sequence[str] = (),
    processes: list[subprocess.Popen[bytes]] | None = None,
) -> Iterator[MooncakeSettings]:
    """Run Mooncake's master with its metadata server; yield how it is reached.

    Args:
        folder: Where its log goes.
        port: Where it listens; ``None``: anywhere.
        metadata: The same of the metadata server.
        flags: Further flags of the master.
        processes: Where its process is put.
    """
    port, metadata = port or free_port(), metadata or free_port()
    command = [str(Path(sys.executable).with_name("mooncake_master"))]
    command += [f"--rpc_port={port}", f"--metrics_port={free_port()}"]
    command += ["--enable_http_metadata_server=true", "--http_metadata_server_host=127.0.0.1"]
    command += [f"--http_metadata_server_port={metadata}", *flags]
    with (folder / "master.log").open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    if processes is not None:
        processes.append(process)
    try:
        yield MooncakeSettings(
            master_server_address=f"127.0.0.1:{port}",
            metadata_server=f"http://127.0.0.1:{metadata}/metadata",
            global_segment_size=512 << 20,
            local_buffer_size=32 << 20,
        )
    finally:
        process.kill()
        process.wait()
