# SPDX-License-Identifier: Apache-2.0
"""Engines that wait in turns, and the variables that they are built under."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.e2e.connectors.connected import ConnectedEngine
from tests.soak.promises import is_ours
from vllm_ascend.prefix_cache_config import VARIABLES

# Loads and hand-overs end within this many turns; who waits for longer waits for ever.
_MAX_IDLE_TURNS = 60
# More than are ever alive; if none of them was in the way, nobody is.
_MAX_GIVEN_UP = 40


class PatientEngine(ConnectedEngine):
    """Counts turns instead of seconds: a replay must not depend on the machine.

    Attributes:
        num_starved: requests of stock vLLM that had to be given up, because some that wait hold
            loaded blocks and others wait for those (test_vllm_defects.py). One alone must always
            get on.
    """

    num_starved = 0
    _given_up_in_a_row = 0

    def _watch_progress(self, executed: bool) -> None:
        # A turn that only tells workers of ended requests is not one in which somebody waits.
        self.idle_turns = 0 if executed or not self.alive else self.idle_turns + 1
        if executed:
            self._given_up_in_a_row = 0
        if self.idle_turns < _MAX_IDLE_TURNS or self._leave_a_session():
            return
        assert not is_ours(self.scheduler), f"nothing is scheduled any more of {self.alive}"
        tables = self.manager.get_block_ids
        holders = [name for name in self.alive if any(map(any, tables(name)))]
        others = [name for name in self.alive if name not in holders]
        self._given_up_in_a_row += 1
        helps = self._given_up_in_a_row <= _MAX_GIVEN_UP
        assert holders and helps and len(self.alive) > 1, (
            f"nothing is scheduled any more of {self.alive}"
        )
        # Those that hold blocks stand in each other's way; the last of them must get on.
        self.abort(holders[:1] if len(holders) > 1 else others[:1])
        self.num_starved += 1
        self.idle_turns = 0


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set exactly these of the project's variables inside."""
    before = {name: os.environ.get(name) for name in (v.name for v in VARIABLES)}
    for name in before:
        os.environ.pop(name, None)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
