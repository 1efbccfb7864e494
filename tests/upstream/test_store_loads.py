# SPDX-License-Identifier: Apache-2.0
"""What a store's client could not load, by what it says or does not say."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.upstream.store_client import StoreClient
from vllm_ascend.kv_transfer.store_loads import CheckedStore, PageAddresses

KEYS = ["a", "b", "c"]
PLACES = [PageAddresses([8 * block], block) for block in (5, 6, 7)]


class Client(StoreClient):
    """Has pages of some keys, and says of a load what it is told to."""

    def __init__(self, said: Sequence[int] | Exception | None, there: str = "abc") -> None:
        self.said, self.there = said, there

    def exists(self, keys: list[str]) -> list[int]:
        return [int(key in self.there) for key in keys]

    def get(self, *pages: object) -> Sequence[int] | None:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


@pytest.mark.parametrize(
    ("client", "lost"),
    [
        (Client([0, 0, 0], there=""), set()),
        (Client([0, -1, 0]), {6}),
        (Client(None), set()),
        (Client(None, there="bc"), {5}),
        (Client(RuntimeError("no route")), {5, 6, 7}),
    ],
    ids=["loaded", "says one", "says nothing, all there", "says nothing, one gone", "raises"],
)
def test_blocks_without_their_page_are_known_until_they_are_taken(client, lost):
    store = CheckedStore(client)
    assert store.get(KEYS, PLACES, [[8]] * 3) == [0, 0, 0]
    assert store.lost == lost
    assert store.take_lost() == store.lost == lost
    assert not store.take_lost() and not store.lost


def test_all_else_is_the_clients():
    assert CheckedStore(Client(None, there="b")).exists(KEYS) == [0, 1, 0]
