# SPDX-License-Identifier: Apache-2.0
"""Episodes with a tier below: bugs planted in it are found, which no other episode meets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.e2e.core.test_planted_bugs import Plant
from tests.soak import episode
from tests.soak.case import Recording
from tests.soak.draw import draw
from tests.soak.hunt import hunt
from tests.soak.operations import Reset, StartAnew, TurnTo
from vllm_ascend.tier import host_memory
from vllm_ascend.tier.store_orders import StoreOrders

_SEED = 11


def remember_failed_loads_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreOrders, "_forget_failed_loads", lambda self: None)


def take_any_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files under a name of another, or changed: only the checksum shows it."""
    monkeypatch.setattr(host_memory, "why_unusable", lambda *args: None)


@pytest.fixture(autouse=True)
def hash_seed() -> Iterator[None]:
    """A disk keeps names over engines. It stays set when a planted bug is taken back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONHASHSEED", "0")
        yield


PLANTS: dict[Plant, str] = {
    remember_failed_loads_for_ever: "the tier remembers",
    take_any_bytes: "ContentViolation",  # rows of others, or of nobody where a file was zeroed
}


def with_failing_tiers(*, have_disk: bool) -> Iterator[int]:
    """Number the episodes whose tier fails."""
    for number in count():
        tier = draw(_SEED, number).tier
        if tier is not None and tier.failures and have_disk <= (tier.disk_gib > 0):
            yield number


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_bug_planted_in_the_tier_is_found(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(monkeypatch)
    found = hunt(_SEED, with_failing_tiers(have_disk=plant is take_any_bytes))
    assert found.failure is not None and PLANTS[plant] in found.failure.text
    assert found.recording is not None
    found.recording.save(tmp_path / "case.json")
    again = Recording.load(tmp_path / "case.json")
    failure = episode.replay(again.case, again.operations)
    assert failure is not None and failure.signature == found.failure.signature
    monkeypatch.undo()
    assert episode.replay(again.case, again.operations) is None, "it is not the planted bug's"


def test_what_happens_to_a_tier_survives_its_file(tmp_path: Path) -> None:
    cases = (draw(_SEED, number) for number in count())
    case = next(case for case in cases if case.tier is not None)
    operations = (Reset(tier=True, loses_memory=True), StartAnew(), TurnTo(2))
    recording = Recording("11-0", case, operations)
    recording.save(tmp_path / "case.json")
    assert Recording.load(tmp_path / "case.json") == recording
