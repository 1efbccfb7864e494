# SPDX-License-Identifier: Apache-2.0
"""``python tools/free_port.py PORT``: could a server listen there? Told before anything is loaded.

Needs nothing but Python: it runs before the environment is set up.
"""

from __future__ import annotations

import socket
import sys


def complaint(port: str) -> str:
    """Return why no server can listen on a port of 127.0.0.1, or nothing."""
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        return f"PORT={port} is invalid: allowed are numbers from 1 to 65535"
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", int(port)))
            listener.listen()
        except OSError as error:
            return f"PORT={port} cannot be used ({error.strerror}): name another, PORT=..."
    return ""


if __name__ == "__main__":
    found = complaint(sys.argv[1])
    if found:
        print(f"error: {found}", file=sys.stderr)
        sys.exit(2)
