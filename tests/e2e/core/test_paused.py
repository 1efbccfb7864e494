# SPDX-License-Identifier: Apache-2.0
"""A pause that waits for those that run: later releases wait for whoever holds blocks as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import episode
from tests.soak.case import Recording
from vllm_ascend.releases import running_release

_CASE = (
    Path(episode.__file__).parent
    / "cases"
    / "sessions-wait-for-each-other-while-new-requests-are-paused.json"
)


def replay() -> episode.Failure | None:
    recording = Recording.load(_CASE)
    return episode.replay(recording.case, recording.operations)


def test_requests_that_hold_what_others_need_do_not_keep_a_pause_from_beginning():
    assert replay() is None


@pytest.mark.skipif(
    "PAUSED_NEW" not in running_release().holders_run_while,
    reason="this vLLM's pauses wait for those that run alone",
)
def test_nothing_given_back_while_paused_is_a_pause_that_never_begins(monkeypatch):
    monkeypatch.setattr(type(running_release()), "holders_run_while", ("UNPAUSED",))
    failure = replay()
    assert failure is not None and "nothing is scheduled any more" in failure.text
