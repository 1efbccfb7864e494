# SPDX-License-Identifier: Apache-2.0
"""What numbers count. Everything that is a plain ``int`` in ``core`` counts tokens.

Other units have types of their own, so that a type checker refuses one where the other is meant.
At run time all of them are ints.
"""

from __future__ import annotations

from typing import NewType

Rows = NewType("Rows", int)
"""Stored rows: of a compressed group each stands for several tokens."""

Ordinal = NewType("Ordinal", int)
"""The place of a block in its request, from 0."""

BlockId = NewType("BlockId", int)
"""The place of a block in the pool."""

GroupId = NewType("GroupId", int)
"""The place of a KV cache group in the model's configuration."""
