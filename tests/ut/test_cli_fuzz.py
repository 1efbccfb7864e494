# SPDX-License-Identifier: Apache-2.0
"""Every option of every command with values that make no sense: one clear error, never a traceback.

What would run is replaced; what reads options is not.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from vllm_ascend.__main__ import COMMANDS, app
from vllm_ascend.doctor import cli as doctor_cli
from vllm_ascend.kv_events import relay
from vllm_ascend.overlay import patch_list
from vllm_ascend_evaluation.replay import commands
from vllm_ascend_evaluation.replay.runs.runner import Outcome

REPOSITORY = Path(__file__).parents[2]
NOBODY = "http://127.0.0.1:9"
GENERATED = ("--workload", "2:100:50:1")
# Enough for a command to get as far as its options are all read.
BASE = {
    ("doctor",): (),
    ("overlay", "plan"): ("nowhere",),
    ("overlay", "apply"): ("nowhere",),
    ("overlay", "revert"): ("nowhere",),
    ("overlay", "status"): ("nowhere",),
    ("regress",): ("--url", NOBODY, "--suite", "performance", "--tool", "vllm"),
    ("calibrate",): ("--url", NOBODY),
    ("replay",): GENERATED,
    ("sweep",): GENERATED,
    ("memory-curve",): GENERATED,
    ("goodput",): ("--workload", "chat:2"),
    ("traffic",): GENERATED,
    ("prefix-curve",): ("--prefixes", "2", "--shared", "256", "--own", "32"),
    ("relay",): (
        *("--endpoint", "tcp://127.0.0.1:9", "--replay-endpoint", "tcp://127.0.0.1:9"),
        *("--publish", "ipc://events"),
    ),
    ("npu-check",): ("--url", NOBODY),
    ("port-report",): ("--vllm-ascend", str(REPOSITORY)),
    ("tiny-model",): (".",),
}
VALUES = {
    "nothing": "",
    "negative": "-1",
    "zero": "0",
    "fraction": "0.5",
    "superscript": "²",
    "not a number": "nan",
    "infinite": "inf",
    "huge": "1e400",
    "more digits than Python reads": "9" * 5000,
    "assignment": "x=",
    "variant": "x:block_size=²",
    "variant of nothing": "x:=1@",
    "colons": ":::",
    "brackets": "[red]",
    "JSON": '{"kv_connector": 1}',
    "nowhere": "/nowhere/at/all",
    "URL": "http://",
}


def options() -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (command, option) of all that take a value."""

    def walk(command, path):
        context = typer.Context(command)
        if hasattr(command, "list_commands"):
            for name in command.list_commands(context):
                yield from walk(command.get_command(context, name), (*path, name))
            return
        for parameter in command.params:
            if parameter.opts[0].startswith("--") and not parameter.is_flag:
                yield path, parameter.opts[0]

    return walk(typer.main.get_command(app), ())


OPTIONS = list(options())
# Errors that say nothing of the option's value.
OF_OTHERS = re.compile("Connection refused|only with --url|holds a model already")


class NothingRuns:
    """Takes jobs and has no results."""

    def __init__(self, *args, **kwargs) -> None:
        pass

    def run(self, jobs) -> Outcome:
        return Outcome([], interrupted=False)


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch, tmp_path):
    def diagnose(*args, **options):
        raise typer.Exit(0)

    monkeypatch.setattr(commands, "Runner", NothingRuns)
    monkeypatch.setattr(doctor_cli, "_diagnose", diagnose)
    monkeypatch.setattr(relay, "relay_events", lambda *_, **__: None)
    monkeypatch.setattr(patch_list, "all_patches", lambda: ())
    monkeypatch.chdir(tmp_path)
    # vLLM's handlers keep the stream that they were made with, which ends with its test.
    monkeypatch.setattr(logging, "raiseExceptions", False)


def check(*arguments: str) -> str:
    """Return the output of a command that refuses its arguments; nothing of one that does not."""
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(
        result.exception
    )
    assert result.exit_code in (0, 2)
    assert "Traceback" not in result.output
    if result.exit_code == 2:
        assert re.search("error|failed", result.output.lower())
    return result.output if result.exit_code == 2 else ""


def test_every_command_is_covered():
    assert {path for path, _ in OPTIONS} <= set(BASE)
    assert {path[0] for path in BASE} == set(COMMANDS)


@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=lambda value: "".join(value))
def test_a_value_is_taken_or_one_clear_error(path, option):
    for value in VALUES.values():
        check(*path, *BASE[path], f"{option}={value}")


@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=lambda value: "".join(value))
def test_the_error_of_a_number_names_the_option_and_the_value(path, option):
    for value in ("-1", "0", "0.5", "nan", "inf", "x"):
        error = check(*path, *BASE[path], f"{option}={value}")
        if error and not OF_OTHERS.search(error):
            (line,) = error.splitlines()
            assert re.match(rf"(error|failed): (\S+/)?{option}(/\S+)? {re.escape(value)}\b", line)


@pytest.mark.parametrize("path", BASE, ids="-".join)
def test_an_unknown_option_and_one_without_a_value(path):
    check(*path, *BASE[path], "--no-such-option")
    for other, option in OPTIONS:
        if other == path:
            check(*path, *BASE[path], option)


@pytest.mark.parametrize("arguments", [("no-such-command",), ("overlay", "no-such-command"), ("",)])
def test_an_unknown_command(arguments):
    check(*arguments)
