# SPDX-License-Identifier: Apache-2.0
"""The device of the tests, and work that keeps it busy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch

from tests.device.without_vllm import stand_in_for_missing

stand_in_for_missing("vllm", "prometheus_client", "blake3")
with contextlib.suppress(ImportError):
    import torch_npu  # noqa: F401  (makes it known to torch)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The CUDA device or NPU of this machine."""
    for kind in ("npu", "cuda"):
        accelerator = getattr(torch, kind, None)
        if accelerator is not None and accelerator.is_available():
            return torch.device(kind, accelerator.current_device())
    pytest.skip("there is no CUDA device and no NPU")


@pytest.fixture
def keep_busy(device: torch.device) -> Callable[[], torch.Event]:
    """Give the stream work for about 100 ms; the event tells when it is done.

    What is put behind it has not begun when the host goes on.
    """
    matrix = torch.randn(4096, 4096, device=device)

    def work(rounds: int) -> torch.Event:
        for _ in range(rounds):
            torch.mm(matrix, matrix)
        done = torch.Event(device.type)
        done.record()
        return done

    def milliseconds(rounds: int) -> float:
        begin, end = (torch.Event(device.type, enable_timing=True) for _ in range(2))
        begin.record()
        work(rounds)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    milliseconds(3)
    rounds = int(100 / max(milliseconds(10) / 10, 1e-3)) + 1
    return lambda: work(rounds)
