# SPDX-License-Identifier: Apache-2.0
"""Names of files: keys of objects, which only who has the folder's secret can tell.

The hash in a key follows from the tokens and a seed that may be known. Under it a file would tell
whoever sees a listing whether a prompt that he guesses was asked.
"""

from __future__ import annotations

from blake3 import blake3

SECRET_BYTES = 32


class FileNames:
    """Two rounds of a Feistel network over a key's hash: its halves hide each other."""

    def __init__(self, secret: bytes) -> None:
        """Take the secret, of :data:`SECRET_BYTES`."""
        self._secrets = tuple(blake3(bytes([i]), key=secret).digest() for i in range(2))

    def name(self, key: bytes) -> str:
        """Return the name of a key: its kind, and the hidden hash."""
        left, right = self._halves(key[1:])
        left = self._hidden(left, right, 0)
        right = self._hidden(right, left, 1)
        return key[:1].decode() + (left + right).hex()

    def key(self, name: str) -> bytes | None:
        """Return the key of a name; ``None``: it is no name of a key."""
        try:
            left, right = self._halves(bytes.fromhex(name[1:]))
        except ValueError:
            return None
        right = self._hidden(right, left, 1)
        left = self._hidden(left, right, 0)
        return name[:1].encode() + left + right

    def _halves(self, digest: bytes) -> tuple[bytes, bytes]:
        middle = len(digest) // 2
        return digest[:middle], digest[middle:]

    def _hidden(self, part: bytes, by: bytes, number: int) -> bytes:
        mask = blake3(by, key=self._secrets[number]).digest(len(part))
        # As numbers: an engine that starts may read a million names.
        return (int.from_bytes(part, "big") ^ int.from_bytes(mask, "big")).to_bytes(
            len(part), "big"
        )
