# SPDX-License-Identifier: Apache-2.0
"""What the oracle raises. Both are bugs of the cache, never of the user's configuration."""

from __future__ import annotations


class ContentViolation(AssertionError):  # noqa: N818 (what it reports is more than an error)
    """A model step would have read or written the wrong rows of the KV cache.

    The message names request, group, kind, token position, block, row, the stamp expected and
    found, and who the block was given to; the same values are attributes, for tests.
    """

    def __init__(
        self,
        problem: str,
        *,
        request_id: str,
        group_id: int | None = None,
        kind: str = "",
        token: int | None = None,
        block_id: int | None = None,
        row: int | None = None,
        expected: str = "",
        found: str = "",
        writer: str | None = None,
    ) -> None:
        self.problem = problem
        self.request_id = request_id
        self.group_id = group_id
        self.kind = kind
        self.token = token
        self.block_id = block_id
        self.row = row
        self.writer = writer
        details = {
            "group": None if group_id is None else f"{group_id} ({kind})",
            "token": token,
            "block": block_id,
            "row": row,
            "expected": expected or None,
            "found": found or None,
            "block was given to": writer,
        }
        known = ", ".join(f"{name} {value}" for name, value in details.items() if value is not None)
        super().__init__(f"request {request_id}: {problem} [{known}]")


class IntegrityError(AssertionError):
    """The block pool, the free queue, the index and the block tables contradict each other."""
