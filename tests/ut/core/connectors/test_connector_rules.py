# SPDX-License-Identifier: Apache-2.0
"""Where hits may end beside a KV connector, and that it is asked once."""

from __future__ import annotations

import pytest
from vllm.config import KVTransferConfig

from vllm_ascend.core.connectors.connector_rules import (
    ConnectorQuery,
    knows_granules,
    look_up_limit,
)


class Knowing:
    knows_granules = True


class Plain:
    pass


def transfer(connector: str, **extra) -> KVTransferConfig:
    return KVTransferConfig(
        kv_connector=connector,
        kv_connector_module_path=__name__,
        kv_role="kv_both",
        kv_connector_extra_config=extra,
    )


@pytest.fixture(autouse=True)
def signatures_are_not_looked_at(monkeypatch):
    module = "vllm.distributed.kv_transfer.kv_connector.factory.supports_kw"
    monkeypatch.setattr(module, lambda *args: True)


def test_a_connector_says_itself_that_it_knows_granules():
    assert knows_granules(transfer("Knowing"))
    assert not knows_granules(transfer("Plain"))
    assert not knows_granules(None)


@pytest.mark.parametrize(
    "names, expected",
    [(["Knowing", "Knowing"], True), (["Knowing", "Plain"], False)],
)
def test_several_connectors_know_granules_only_together(names, expected):
    parts = [
        {"kv_connector": name, "kv_connector_module_path": __name__, "kv_role": "kv_both"}
        for name in names
    ]
    assert knows_granules(transfer("Plain", connectors=parts)) is expected


@pytest.mark.parametrize(
    "num_tokens, params, limit",
    [
        (129, None, 128),
        (129, {"do_remote_prefill": True}, 128),
        (129, {"do_remote_decode": True}, 127),
        # Preempted after its prompt was shortened.
        (128, {"do_remote_decode": True, "_p_side_truncated": True}, 127),
        (1, {"do_remote_decode": True}, 0),
    ],
)
def test_a_hit_leaves_a_token_to_compute_after_the_prompt_was_shortened(num_tokens, params, limit):
    assert look_up_limit(num_tokens, params) == limit


@pytest.mark.parametrize(
    "answer, brings", [((0, False), False), ((5, True), True), ((5, False), True)]
)
def test_the_scheduler_gets_the_answer_that_the_look_up_had(answer, brings):
    asked = []
    query = ConnectorQuery(lambda request, num: asked.append((request, num)) or answer)
    assert query.brings_tokens("a", 16) is brings
    assert query.get_num_new_matched_tokens("a", 28 if not brings else 16) == answer
    assert asked == [("a", 16)]
    query.get_num_new_matched_tokens("a", 16)
    assert len(asked) == 2, "an answer is good for one question"


def test_a_connector_that_cannot_tell_yet_may_bring_tokens():
    assert ConnectorQuery(lambda request, num: (None, False)).brings_tokens("a", 0)


def test_an_answer_is_not_given_to_another_request_or_a_later_look_up():
    query = ConnectorQuery(lambda request, num: (num, False))
    query.brings_tokens("a", 16)
    assert query.get_num_new_matched_tokens("b", 8) == (8, False)
    query.brings_tokens("a", 16)
    query.forget()
    assert query.get_num_new_matched_tokens("a", 32) == (32, False)
