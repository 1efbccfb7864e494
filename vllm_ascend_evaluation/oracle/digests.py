# SPDX-License-Identifier: Apache-2.0
"""Digests of token prefixes: the names that the shadow memory gives to contents.

`digest[n]` names (key, tokens[0:n]): two requests have equal digests at n exactly when a KV
cache row computed from the first n tokens would be the same for both (64 bit; a collision is
as likely as guessing one). A prefix sum of mixed (position, token) pairs, and not a chained
hash, because it is computed with one vectorised pass and compared with one vectorised compare.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt

Stamps = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_POSITION = 0xD1B54A32D192ED03
_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB

# Stamps that no digest has.
UNWRITTEN = 0  # rows that nobody wrote
GARBAGE = 1  # rows written from a rejected draft
LOST = 2  # rows that a failed load should have brought, and all that was computed from such rows
STALE = 3  # draft rows written from a following token that a streaming session dropped


def mix(value: int) -> int:
    """splitmix64: a bijection of 64-bit ints that looks random. Pure."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * _MIX_A) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_B) & _MASK
    return value ^ (value >> 31)


def _mix_array(values: Stamps) -> Stamps:
    """`mix` of every element."""
    values = values + np.uint64(_GOLDEN)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_MIX_A)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_MIX_B)
    return values ^ (values >> np.uint64(31))


def next_token(digest: int, nonce: int, vocabulary: int) -> int:
    """The token that the fake model samples after a prefix.

    Args:
        digest: of the whole prefix.
        nonce: requests with equal nonces continue equal prefixes equally.
        vocabulary: number of token ids; the result is in [0, vocabulary).
    """
    return mix(digest ^ mix(nonce)) % vocabulary


class PrefixDigests:
    """The tokens of one request and the digests of all their prefixes.

    Args:
        key: what else separates contents besides the tokens (cache salt, LoRA).
        tokens: the tokens known so far.
    """

    def __init__(self, key: Hashable, tokens: Sequence[int]) -> None:
        # repr, not hash(): strings hash differently in every process.
        self._sums = np.zeros(max(16, len(tokens) + 16), np.uint64)
        self._sums[0] = mix(crc32(repr(key).encode()) + 1)
        self._length = 0
        self.tokens: list[int] = []
        self.extend(tokens)

    def __len__(self) -> int:
        return self._length

    @property
    def array(self) -> Stamps:
        """digest[0..len], a view that is valid until the next change."""
        return self._sums[: self._length + 1]

    def __getitem__(self, num_tokens: int) -> int:
        """The digest of the first `num_tokens` tokens."""
        if not 0 <= num_tokens <= self._length:
            raise IndexError(f"{num_tokens} of {self._length} tokens")
        return int(self._sums[num_tokens])

    def extend(self, tokens: Sequence[int], contents: Sequence[int] | None = None) -> None:
        """Append many tokens at once.

        Args:
            tokens: their ids.
            contents: what the model reads in their place, see `contents`; the ids by default.
        """
        start, count = self._length, len(tokens)
        if not count:
            return
        self._reserve(start + count)
        positions = np.arange(start + 1, start + count + 1, dtype=np.uint64)
        values = np.asarray(tokens if contents is None else contents, dtype=np.int64)
        pairs = values.astype(np.uint64) + positions * np.uint64(_POSITION)
        sums = self._sums
        sums[start + 1 : start + count + 1] = np.cumsum(_mix_array(pairs), dtype=np.uint64)
        sums[start + 1 : start + count + 1] += sums[start]
        self._length = start + count
        self.tokens.extend(tokens)

    def append(self, token: int) -> None:
        """Append one token; the same digests as `extend([token])`, faster."""
        length = self._length
        self._reserve(length + 1)
        pair = (token + (length + 1) * _POSITION) & _MASK
        self._sums[length + 1] = (int(self._sums[length]) + mix(pair)) & _MASK
        self._length = length + 1
        self.tokens.append(token)

    def truncate(self, num_tokens: int) -> None:
        """Forget all tokens but the first `num_tokens`."""
        self._length = min(self._length, num_tokens)
        del self.tokens[num_tokens:]

    def _reserve(self, num_tokens: int) -> None:
        if num_tokens + 1 > len(self._sums):
            grown = np.zeros(2 * (num_tokens + 1), np.uint64)
            grown[: self._length + 1] = self._sums[: self._length + 1]
            self._sums = grown
