# SPDX-License-Identifier: Apache-2.0
"""Interrupts: one counts, and only while something can be ended."""

import signal

import pytest

from vllm_ascend.command_line.interrupts import (
    interrupts_call,
    no_interrupts,
    termination_interrupts,
)

pytestmark = pytest.mark.usefixtures("interruptible")


def test_the_first_interrupt_calls_and_others_are_ignored_from_then_on():
    called = []
    with interrupts_call(lambda: called.append("stop"), (signal.SIGINT, signal.SIGTERM)):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)
    assert called == ["stop"]


def test_without_an_interrupt_all_is_as_before():
    with interrupts_call(pytest.fail):
        pass
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_what_takes_seconds_is_finished():
    with no_interrupts():
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_what_takes_seconds_behind_an_interrupt_brings_none_back():
    with interrupts_call(lambda: None):
        signal.raise_signal(signal.SIGINT)
    with no_interrupts():
        pass
    signal.raise_signal(signal.SIGINT)


def test_a_termination_interrupts_and_only_in_its_block():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), termination_interrupts():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
