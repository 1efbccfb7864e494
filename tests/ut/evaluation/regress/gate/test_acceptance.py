# SPDX-License-Identifier: Apache-2.0
"""Drafts that the target accepts are judged beside the hits: stale draft rows show there alone."""

import pytest

from tests.ut.evaluation.regress.chat_server import ChatServer
from tests.ut.evaluation.regress.gate.command import PERFORMANCE, invoke, outcomes, report_of


def test_without_drafts_nothing_is_said_of_them(tmp_path):
    with ChatServer() as server:
        result = invoke(server, tmp_path, *PERFORMANCE)
    assert "acceptance" not in outcomes(tmp_path) and "drafts accepted" not in result.output


@pytest.mark.parametrize(
    ("now", "outcome"), [((8, 6, 1), "pass"), ((9, 9, 9), "pass"), ((8, 5, 1), "REGRESSION")]
)
def test_fewer_accepted_drafts_are_a_regression(tmp_path, now, outcome):
    base = tmp_path / "base.json"
    with ChatServer(accepted=(8, 6, 1)) as server:
        result = invoke(server, tmp_path, *PERFORMANCE, "--save-baseline", base)
    assert "drafts accepted: 50.0 % of 210; by position 80.0, 60.0, 10.0 %" in result.output
    with ChatServer(accepted=now) as server:
        result = invoke(server, tmp_path / "now", *PERFORMANCE, "--baseline", base)
    assert outcomes(tmp_path / "now")["acceptance"] == outcome
    assert result.exit_code == (outcome == "REGRESSION")
    verdicts = {v["metric"]: v for v in report_of(tmp_path / "now")["verdicts"]}
    assert verdicts["acceptance"]["now"]["median"] == pytest.approx(100 * sum(now) / 30)
