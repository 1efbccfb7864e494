# SPDX-License-Identifier: Apache-2.0
"""Why an overlay is refused."""

from __future__ import annotations


class OverlayError(RuntimeError):
    """The checkout was left as it was; the message says what to do."""
