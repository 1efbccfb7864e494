# SPDX-License-Identifier: Apache-2.0
"""What a changed function must take, by hand; and that those of the tables do."""

from __future__ import annotations

import functools
import inspect

import pytest

import vllm_ascend.patch.platform
import vllm_ascend.patch.worker
from vllm_ascend.patch.planner import Change
from vllm_ascend.patch.signatures import call_mismatches, shown_signature
from vllm_ascend.patch.table import Wrap, plain_function
from vllm_ascend_evaluation.models import patches as cpu_patches


def original(first, second=2, *, third=3):
    return first, second, third


ACCEPTED = (
    lambda first, second=2, *, third=3: None,
    lambda first, second=2, fourth=4, *, third=3, fifth=5: None,
    lambda *args, **kwargs: None,
    lambda first, *args, **kwargs: None,
    lambda first, second=2, *args, third=3, **kwargs: None,
    lambda first, *args, fourth=4, **kwargs: None,
)
REFUSED = {
    "another name": (lambda head, second=2, *, third=3: None, "it does not take first"),
    "another default": (lambda first, second=1, *, third=3: None, "second has another default"),
    "no default": (lambda first, second, *, third=3: None, "second has another default"),
    "another kind": (lambda first, second=2, third=3: None, "third has another default, or is"),
    "another order": (lambda second=2, first=1, *, third=3: None, "first has another"),
    "not all of it": (lambda first, second=2: None, "it does not take third"),
    "no keywords": (lambda *args: None, "it does not take first"),
    "no places": (lambda **kwargs: None, "it does not take first"),
    "something more": (lambda first, second=2, *, third=3, more: None, "it asks for more"),
    "a name in the place of another": (
        lambda head, *args, **kwargs: None,
        "it takes head in the place of first",
    ),
}


@pytest.mark.parametrize("new", ACCEPTED)
def test_what_takes_every_call_of_the_original_is_accepted(new):
    assert call_mismatches(new, original) == []


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_is_refused_in_words(case):
    new, told = REFUSED[case]
    assert any(message.startswith(told) for message in call_mismatches(new, original))


@pytest.mark.parametrize("new", ACCEPTED)
def test_a_changed_function_shows_the_originals_signature(new):
    shown = dict(shown_signature(new, original).parameters)
    assert shown.items() >= inspect.signature(original).parameters.items()
    assert shown.keys() - inspect.signature(original).parameters <= {"fourth", "fifth"}


def test_a_signature_that_a_function_passes_itself_off_with_is_not_believed():
    wrapped = functools.wraps(original)(lambda *args, original: None)
    fields = dict.fromkeys(("target", "feature", "why", "upstream", "remove_when"), "")
    assert call_mismatches(Wrap(replacement=wrapped, **fields).around(original), original)


def changed_functions() -> list[Change]:
    tables = (
        vllm_ascend.patch.platform,
        vllm_ascend.patch.worker,
        cpu_patches,
    )
    changes = [change for table in tables for change in table.install_all().changes]
    return [change for change in changes if callable(plain_function(change.old))]


# What vLLM #43447 adds to functions of vLLM, and so do we where it is not there yet.
ADDED = {"prepend", "block_mask", "retention_interval", "alignment_tokens", "scheduler_block_size"}


def test_most_of_the_tables_are_changed_functions():
    assert len(changed_functions()) > 25


@pytest.mark.parametrize("change", changed_functions(), ids=lambda change: change.where)
def test_a_patched_function_keeps_its_signature(change):
    new, old = plain_function(change.new), plain_function(change.old)
    assert call_mismatches(new, old) == []
    ours, theirs = inspect.signature(new).parameters, inspect.signature(old).parameters
    added = ours.keys() - theirs.keys()
    assert added <= ADDED
    assert [(n, p.kind, p.default) for n, p in ours.items() if n not in added] == [
        (n, p.kind, p.default) for n, p in theirs.items()
    ]
