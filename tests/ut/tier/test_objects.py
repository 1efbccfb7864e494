# SPDX-License-Identifier: Apache-2.0
"""An object that was torn, changed or mistaken for another is never taken for whole."""

from __future__ import annotations

import random

import numpy as np
import pytest

from vllm_ascend.tier.objects import HEADER_BYTES, seal, why_unusable

LAYOUT, KEY = b"l" * 16, b"k" * 16
SLICE = 1 << 16


@pytest.fixture
def sealed():
    """An object of a megabyte."""
    made = np.zeros(HEADER_BYTES + 16 * SLICE + 5, np.uint8)
    made[HEADER_BYTES:] = np.random.default_rng(0).integers(0, 256, 16 * SLICE + 5, dtype=np.uint8)
    seal(made, LAYOUT, KEY)
    assert why_unusable(made, LAYOUT, KEY) is None
    return made


@pytest.mark.parametrize("size", [1, 8, 64, 4096, 8192, SLICE])
def test_slices_that_change_places_are_noticed(sealed, size):
    pieces = sealed[HEADER_BYTES:]
    one, other = pieces[:size].copy(), pieces[3 * SLICE : 3 * SLICE + size].copy()
    pieces[:size], pieces[3 * SLICE : 3 * SLICE + size] = other, one
    assert why_unusable(sealed, LAYOUT, KEY) == "changed"


@pytest.mark.parametrize("distance", [1, 8, 1024, 8192, SLICE])
def test_two_opposite_flips_are_noticed(sealed, distance):
    pieces = sealed[HEADER_BYTES:]
    pieces[100], pieces[100 + distance] = 0b0101, 0b0100
    seal(sealed, LAYOUT, KEY)
    pieces[100] ^= 1
    pieces[100 + distance] ^= 1
    assert why_unusable(sealed, LAYOUT, KEY) == "changed"


def test_any_flipped_bit_is_noticed(sealed):
    chance = random.Random(0)
    for _ in range(200):
        place = chance.randrange(len(sealed))
        flipped = sealed.copy()
        flipped[place] ^= 1 << chance.randrange(8)
        why = why_unusable(flipped, LAYOUT, KEY)
        assert why == "changed" if place >= HEADER_BYTES else why in ("torn", None), place


def test_what_an_earlier_format_has_stored_is_not_taken(sealed):
    sealed[:8] = np.frombuffer(b"VATIER1\0", np.uint8)
    assert why_unusable(sealed, LAYOUT, KEY) == "torn"


def test_another_object_or_layout_is_foreign(sealed):
    assert why_unusable(sealed, b"m" * 16, KEY) == "foreign"
    assert why_unusable(sealed, LAYOUT, b"j" * 16) == "foreign"
    assert why_unusable(sealed[:-1], LAYOUT, KEY) == "foreign"
