# SPDX-License-Identifier: Apache-2.0
"""Which part of which row of a table has changed since it was uploaded."""

from __future__ import annotations


class DirtySpans:
    """One span of changed columns per row.

    Args:
        num_rows: Rows of the table, none of which has changed.
    """

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._spans: dict[int, tuple[int, int]] = {}

    def mark(self, row: int, start: int, end: int) -> None:
        """Note that columns ``[start, end)`` of a row have changed; nothing if there are none.

        Raises:
            IndexError: There is no such row.
        """
        if not 0 <= row < self._num_rows:
            raise IndexError(f"row {row} of a table with {self._num_rows} rows")
        if start >= end:
            return
        old_start, old_end = self._spans.get(row, (start, end))
        self._spans[row] = (min(start, old_start), max(end, old_end))

    def take(self, num_rows: int) -> list[tuple[int, int, int]]:
        """Return ``(row, start, end)`` of every changed row below ``num_rows``, and forget it."""
        taken = [(row, *span) for row, span in self._spans.items() if row < num_rows]
        for row, _, _ in taken:
            del self._spans[row]
        return taken
