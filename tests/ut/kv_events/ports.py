# SPDX-License-Identifier: Apache-2.0
"""Ports for publishers in tests."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress

# Below those that the system gives to outgoing connections, which come and go meanwhile.
_PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Return TCP ports of this machine that nobody uses just now."""
    ports: list[int] = []
    with ExitStack() as stack:
        while len(ports) < count:
            one = stack.enter_context(socket.socket())
            port = random.SystemRandom().choice(_PORTS)
            with suppress(OSError):  # taken: another one
                one.bind(("127.0.0.1", port))
                ports.append(port)
    return ports
