# SPDX-License-Identifier: Apache-2.0
"""The processes of a server, what each takes, and what they leave behind."""

from __future__ import annotations

import re
from pathlib import Path

import psutil

from tests.e2e.server.server import Server

API_SERVER, ENGINE_CORE, WORKER = "API server", "EngineCore", "worker"
# How vLLM names its processes.
_TITLES = {"VLLM::EngineCore": ENGINE_CORE, "VLLM::Worker": WORKER}
_SHARED_MEMORY = re.compile(r"/dev/shm/\S+")


def processes_of(server: Server) -> dict[str, psutil.Process]:
    """Return the three processes that serve, by name."""
    found = {API_SERVER: psutil.Process(server.process.pid)}
    for process in found[API_SERVER].children(recursive=True):
        title = (process.cmdline() or [""])[0]
        found |= {name: process for start, name in _TITLES.items() if title.startswith(start)}
    assert set(found) == {API_SERVER, *_TITLES.values()}, found
    return found


def resident_bytes(processes: dict[str, psutil.Process]) -> dict[str, int]:
    """Return the resident memory of every process."""
    return {name: process.memory_info().rss for name, process in processes.items()}


def shared_memory_of(server: Server) -> set[Path]:
    """Return the files of shared memory that the server's processes have mapped."""
    maps = [Path(f"/proc/{pid}/maps").read_text() for pid in server.processes()]
    return {Path(name) for text in maps for name in _SHARED_MEMORY.findall(text)}
