# SPDX-License-Identifier: Apache-2.0
"""Which KV connectors are let in, where hits may end beside one, and that it is asked once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

from vllm_ascend.core.connectors.connector_rules import (
    BRINGS_TAILS,
    KNOWS_GRANULES,
    TAKES_TAILS_ALONE,
    ConnectorQuery,
    check_row_layout,
    declared,
    least_gain,
    look_up_limit,
)
from vllm_ascend.tier.registration import CONNECTOR


class Knowing(KVConnectorBase_V1, SupportsHMA):
    knows_granules = knows_rows = takes_tails_alone = True


class Bringing(Knowing):
    brings_tails = True


class Plain(KVConnectorBase_V1, SupportsHMA):
    pass


class OfOneGroup(KVConnectorBase_V1):
    knows_rows = True


class Several(MultiConnector, SupportsHMA):
    """As vllm-ascend's, and vLLM's of later releases."""


class Wrapper(KVConnectorBase_V1, SupportsHMA):
    """Has others inside, and is none of vLLM's: nobody knows what it makes of them."""


def transfer(connector: str, *parts: str) -> KVTransferConfig:
    told = [part(name) for name in parts]
    return KVTransferConfig(
        **part(connector), kv_connector_extra_config={"connectors": told} if told else {}
    )


def part(name: str) -> dict[str, Any]:
    return {"kv_connector": name, "kv_connector_module_path": __name__, "kv_role": "kv_both"}


@pytest.mark.parametrize("attribute", [KNOWS_GRANULES, TAKES_TAILS_ALONE])
def test_a_connector_says_itself_what_it_copes_with(attribute):
    assert attribute in declared(transfer("Knowing"))
    assert attribute not in declared(transfer("Plain"))
    assert attribute not in declared(None)


@pytest.mark.parametrize(
    "connector, parts, expected",
    [
        ("Several", ["Knowing", "Knowing"], True),
        ("Several", ["Knowing", "Plain"], False),
        ("Wrapper", ["Knowing", "Knowing"], False),
    ],
)
def test_several_connectors_cope_only_together(connector, parts, expected):
    assert (KNOWS_GRANULES in declared(transfer(connector, *parts))) is expected
    assert (TAKES_TAILS_ALONE in declared(transfer(connector, *parts))) is expected


def check(config: KVTransferConfig) -> None:
    check_row_layout(config, "--kv-transfer-config", hybrid_is_off=False)


@pytest.mark.parametrize("name", ["AscendStoreConnector", "MooncakeConnectorStoreV1"])
@pytest.mark.parametrize("others", [(), ("Several",), ("Several", "Knowing")])
def test_vllm_ascends_store_is_refused_with_what_takes_its_place(name, others):
    with pytest.raises(ValueError, match=f"{name} cannot be used") as raised:
        check(transfer(*others, name))
    message = str(raised.value)
    assert "\n" not in message and message.endswith(
        'by {"kv_connector": "GranuleTierConnector", "kv_role": "kv_both", '
        '"kv_connector_extra_config": {"backend": "mooncake"}}'
    )


@pytest.mark.parametrize("told", [("Knowing",), ("Several", "Knowing", "Knowing")])
def test_connectors_that_say_that_they_know_rows_are_let_in(told):
    check(transfer(*told))


@pytest.mark.parametrize(
    "told, refused",
    [
        (("Plain",), "Plain .* has knows_rows = True"),
        (("Several", "Knowing", "Plain"), "Plain .* has knows_rows = True"),
        (("Several", "Knowing", "OfOneGroup"), "OfOneGroup .* has SupportsHMA"),
        (("Several",), "Several .* has knows_rows = True"),
        (("Wrapper", "Knowing"), "Wrapper .* has knows_rows = True"),
    ],
)
def test_others_are_refused_with_a_sentence_that_says_how_to_declare_oneself(told, refused):
    with pytest.raises(ValueError, match=f"the KV connector {refused}") as raised:
        check(transfer(*told))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", sorted({*KVConnectorFactory._registry} - {CONNECTOR}))
def test_no_connector_of_vllms_has_been_found_to_tell_rows_from_tokens(name):
    """Whoever reads one and finds that it does sets its attribute, and changes this test."""
    with pytest.raises(ValueError, match=r"cannot be used|No module named"):
        check(KVTransferConfig(kv_connector=name, kv_role="kv_both"))


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


ONE, OTHER = (
    SimpleNamespace(kv_transfer_params=None, skip_reading_prefix_cache=False) for _ in range(2)
)


@pytest.mark.parametrize(
    "answer, partial, brings",
    [
        ((0, False), 28, False),
        ((5, False), 20, True),
        ((5, True), 21, False),  # as long as what is here
        ((5, True), 28, False),  # shorter
    ],
)
def test_external_tokens_replace_a_partial_hit_only_if_they_end_behind_it(answer, partial, brings):
    asked = []
    query = ConnectorQuery(lambda request, num: asked.append((request, num)) or answer)
    assert query.brings_more(ONE, 16, partial) is brings
    told = query.get_num_new_matched_tokens(ONE, 16 if brings else partial)
    assert told == (answer if brings else (0, False))
    assert asked == [(ONE, 16)]
    query.get_num_new_matched_tokens(ONE, 16)
    assert len(asked) == 2, "an answer is good for one question"


@pytest.mark.parametrize("gain, brings", [(12, True), (13, False)])
def test_they_must_gain_what_the_load_costs(gain, brings):
    query = ConnectorQuery(lambda request, num: (24, True), least_gain=gain)
    assert query.brings_more(ONE, 16, 28) is brings


def test_where_nothing_can_be_copied_any_external_token_is_taken():
    query = ConnectorQuery(lambda request, num: (24, True), least_gain=100)
    assert query.brings_more(ONE, 16, 0)


@pytest.mark.parametrize(
    "declares, params, brings",
    [
        (True, {"do_remote_prefill": True}, True),
        (True, {"do_remote_prefill": False}, False),
        (True, None, False),
        (False, {"do_remote_prefill": True}, False),
    ],
)
def test_a_tail_comes_with_what_another_engine_has_computed(declares, params, brings):
    query = ConnectorQuery(lambda request, num: (24, True), brings_tails=declares)
    assert query.brings_tail(SimpleNamespace(kv_transfer_params=params)) is brings


def test_of_several_parts_the_first_must_bring_tails():
    """Another one that is asked first loads rows behind the hit alone."""
    assert BRINGS_TAILS in declared(transfer("Several", "Bringing", "Knowing"))
    assert BRINGS_TAILS not in declared(transfer("Several", "Knowing", "Bringing"))
    assert BRINGS_TAILS not in declared(None)


def test_a_connector_that_cannot_tell_yet_may_bring_tokens():
    query = ConnectorQuery(lambda request, num: (None, False), least_gain=100)
    assert query.brings_more(ONE, 0, 28)
    assert query.get_num_new_matched_tokens(ONE, 0) == (None, False)


def test_an_answer_is_not_given_to_another_request_or_a_later_look_up():
    query = ConnectorQuery(lambda request, num: (num, False))
    query.brings_more(ONE, 16, 20)
    assert query.get_num_new_matched_tokens(OTHER, 8) == (8, False)
    query.brings_more(ONE, 16, 20)
    query.forget()
    assert query.get_num_new_matched_tokens(ONE, 32) == (32, False)


@pytest.mark.parametrize("told", [-1, 1.5, "128", True, None])
def test_a_least_gain_that_is_no_number_of_tokens_is_refused(told):
    config = transfer("Knowing")
    config.kv_connector_extra_config["least_gain_tokens"] = told
    with pytest.raises(ValueError, match=r"least_gain_tokens.* allowed are whole numbers"):
        least_gain(config)


def test_the_least_gain_is_documented_and_can_be_set():
    config = transfer("Knowing")
    assert least_gain(config) == least_gain(None) == 256
    config.kv_connector_extra_config["least_gain_tokens"] = 0
    assert least_gain(config) == 0


@pytest.mark.parametrize(
    "params, told", [(None, (0, False)), ({"do_remote_prefill": True}, (24, True))]
)
def test_who_wants_log_probabilities_of_a_prompt_gets_only_what_was_handed_over(params, told):
    query = ConnectorQuery(lambda request, num: (24, True))
    asks = SimpleNamespace(kv_transfer_params=params, skip_reading_prefix_cache=True)
    assert query.get_num_new_matched_tokens(asks, 0) == told
