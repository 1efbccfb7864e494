# SPDX-License-Identifier: Apache-2.0
"""Every variable with every kind of wrong value, and every pair of variables."""

import re
from dataclasses import fields
from itertools import combinations, product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vllm_ascend.core.policy.switches import PrefixCacheConfig
from vllm_ascend.prefix_cache_config import VARIABLES, load_config

BY_NAME = {variable.name: variable for variable in VARIABLES}

KINDS = {
    "blank": " ",
    "blanks": "\t  ",
    "word": "yes",
    "boolean": "True",
    "none": "None",
    "null": "null",
    "negative": "-1",
    "negative zero": "-0",
    "plus sign": "+1",
    "float": "1.0",
    "decimal comma": "1,0",
    "exponent": "1e3",
    "huge exponent": "1e30",
    "64 bits": str(2**63),
    "128 bits": str(2**128),
    "more digits than Python reads": "1" * 5000,
    "hexadecimal": "0x80",
    "octal": "0o200",
    "binary": "0b1",
    "underscored": "16_384",
    "thousands": "16,384",
    "unit": "32k",
    "superscript": "²",
    "Arabic digits": "١٢٨",
    "full-width digit": "\uff11",
    "Roman numeral": "\u2167",
    "not a number": "nan",
    "infinity": "inf",
    "negative infinity": "-inf",
    "trailing junk": "1x",
    "trailing blank": "1 ",
    "leading blank": " 1",
    "trailing newline": "1\n",
    "carriage return": "1\r",
    "control character": "1\x07",
    "escape sequence": "\x1b[31m1",
    "no-break space": "\u00a01",
    "zero-width space": "\u200b1",
    "byte-order mark": "\ufeff1",
    "not UTF-8": "1\udcff",
    "single quotes": "'1'",
    "double quotes": '"1"',
    "list": "0,1",
    "JSON": "[1]",
    "assignment": "=1",
    "unexpanded": "${VALUE}",
    "wrong case": "AUTO",
    "wrong case of a profile": "Best",
    "quoted word": '"auto"',
    "words": "auto auto",
    "two profiles": "stock,best",
    "leading zero": "01",
    "too small": "16",
    "too large": "256",
    "between": "48",
}

WHOLE_NUMBER = r"[0-9]{1,18}"
FLAG = r"[01]"
# What the settings page promises, said again and not by the parser.
LEGAL = {
    "VLLM_ASCEND_APPLY_DSV4_PATCH": FLAG,
    "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": rf"auto|{WHOLE_NUMBER}",
    "VLLM_ASCEND_DSV4_COMPRESSED_KV_BLOCK_SIZE": r"32|64|128",
    "VLLM_ASCEND_DSV4_PARTIAL_HITS": FLAG,
    "VLLM_ASCEND_DSV4_SPARSE_STATE": FLAG,
    "VLLM_ASCEND_SPARE_TAILS": FLAG,
    "VLLM_ASCEND_EVICTION": r"lru|protect",
    "VLLM_ASCEND_PREFIX_CACHE_PROFILE": r"stock|best",
    "VLLM_PIN_SWA_TOKENS": FLAG,
    "VLLM_PIN_MIN_DROP_SIZE": WHOLE_NUMBER,
    "VLLM_ASCEND_ADMISSION": r"fcfs|cached",
    "VLLM_ASCEND_DP_ROUTING": r"cache",
}
REPRESENTATIVES = {
    FLAG: ("0", "1"),
    WHOLE_NUMBER: ("0", "1", "4096", "9" * 18),
    rf"auto|{WHOLE_NUMBER}": ("auto", "0", "32768", "9" * 18),
    r"32|64|128": ("32", "64", "128"),
    r"lru|protect": ("lru", "protect"),
    r"stock|best": ("stock", "best"),
    r"cache": ("cache",),
    r"fcfs|cached": ("fcfs", "cached"),
}
ALLOWED = {
    FLAG: "allowed are 0 and 1",
    WHOLE_NUMBER: "allowed are whole numbers from 0 up, of at most 18 digits",
    rf"auto|{WHOLE_NUMBER}": "allowed are 'auto', 0, or a number of tokens",
    r"32|64|128": "allowed are 32, 64 and 128",
    r"lru|protect": "allowed are 'lru' and 'protect'",
    r"stock|best": "allowed are 'stock' and 'best'",
    r"cache": "allowed is 'cache'",
    r"fcfs|cached": "allowed are 'fcfs' and 'cached'",
}
BEST = {
    "retention": "auto",
    "partial_hits": True,
    "sparse_state": True,
    "spare_tails": True,
    "eviction": "protect",
    "admission": "cached",
}


def is_legal(name: str, raw: str) -> bool:
    return re.fullmatch(LEGAL[name], raw) is not None


def meaning(name: str, raw: str) -> object:
    """Return what a legal value means, by the rules of the settings page."""
    if LEGAL[name] == FLAG:
        return raw == "1"
    return raw if raw.isalpha() else int(raw)


def expected(environment: dict[str, str]) -> PrefixCacheConfig:
    """Return what legal values mean together: a variable that is set wins over the profile."""
    values = {BY_NAME[name].field: meaning(name, raw) for name, raw in environment.items()}
    if values.get("profile") == "best":
        values["retention_from_profile"] = "retention" not in values
        values = BEST | values
    return PrefixCacheConfig(**values)


def check(name: str, raw: str) -> None:
    if is_legal(name, raw):
        assert load_config({name: raw}) == expected({name: raw})
        return
    with pytest.raises(ValueError) as error:
        load_config({name: raw})
    message = str(error.value)
    assert type(error.value) is ValueError
    assert message.startswith(f"{name}={raw!r} is invalid: ")
    assert ALLOWED[LEGAL[name]] in message
    assert len(message.splitlines()) == 1 and message.isprintable()


def test_the_rules_cover_every_variable_and_field():
    assert LEGAL.keys() == BY_NAME.keys()
    of_variables = {variable.field for variable in VARIABLES}
    assert of_variables | {"retention_from_profile"} == {f.name for f in fields(PrefixCacheConfig)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LEGAL)
def test_a_value_is_legal_or_one_error(name, kind):
    check(name, KINDS[kind])


@given(name=st.sampled_from(sorted(LEGAL)), raw=st.text(min_size=1, max_size=24))
@example(name="VLLM_PIN_MIN_DROP_SIZE", raw="0" * 18)
@example(name="VLLM_PIN_MIN_DROP_SIZE", raw="0" * 19)
def test_any_text_is_legal_or_one_error(name, raw):
    check(name, raw)


@given(
    name=st.sampled_from(sorted(LEGAL)),
    raw=st.text(alphabet="0123456789+-_.,e xo", min_size=1, max_size=22),
)
def test_anything_like_a_number_is_legal_or_one_error(name, raw):
    check(name, raw)


@pytest.mark.parametrize("pair", combinations(LEGAL, 2), ids="+".join)
def test_every_pair_of_legal_values_means_what_both_say(pair):
    choices = (("", *REPRESENTATIVES[LEGAL[name]]) for name in pair)
    for values in product(*choices):
        given_values = dict(zip(pair, values, strict=True))
        set_values = {name: raw for name, raw in given_values.items() if raw}
        assert load_config(given_values) == expected(set_values)


@pytest.mark.parametrize("pair", combinations(LEGAL, 2), ids="+".join)
def test_a_wrong_value_is_named_whatever_else_is_set(pair):
    for wrong, other in (pair, pair[::-1]):
        for raw in REPRESENTATIVES[LEGAL[other]]:
            with pytest.raises(ValueError, match=re.escape(f"{wrong}='maybe' is invalid")) as error:
                load_config({wrong: "maybe", other: raw})
            assert other not in str(error.value)


def test_two_wrong_values_are_told_one_after_the_other():
    for first, second in combinations(LEGAL, 2):
        with pytest.raises(ValueError) as error:
            load_config({first: "?", second: "?"})
        assert str(error.value).count("is invalid") == 1


def test_names_are_not_guessed():
    """Another case or a blank in a name is another variable: nothing of ours is set."""
    for name in LEGAL:
        raw = REPRESENTATIVES[LEGAL[name]][-1]
        assert load_config({name.lower(): raw, f" {name}": raw, f"{name}_": raw}).is_stock


def test_the_profile_stock_is_the_default():
    assert load_config({"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "stock"}).is_stock
