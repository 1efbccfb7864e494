# SPDX-License-Identifier: Apache-2.0
"""``vllm serve`` is found in whatever runs it, with the environment that it gets there."""

from __future__ import annotations

import pytest

from vllm_ascend.doctor.serving_command import Container, find_serving_command

PROFILE = "VLLM_ASCEND_PREFIX_CACHE_PROFILE"


def found(words: list[str], **environ: str):
    return find_serving_command(Container("", words, environ))


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["vllm", "serve"], ()),
        (["vllm", "serve", "m", "--port", "1"], ("m", "--port", "1")),
        (["/usr/local/bin/vllm", "serve", "m"], ("m",)),
        (["numactl", "-N", "0", "vllm", "serve", "m"], ("m",)),
        (["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"], ("--model", "m")),
        (["bash", "-c", "vllm serve m --port 1"], ("m", "--port", "1")),
        (["/bin/sh", "-lc", "exec vllm serve m"], ("m",)),
        (["bash", "-ec", "source set_env.sh && vllm serve m; echo done"], ("m",)),
        (["bash", "-c", "vllm serve m > log.txt 2>&1 &\nwait"], ("m",)),
        (["bash", "-c", "vllm serve m \\\n  --port 1 \\\n  --host h\n"],
         ("m", "--port", "1", "--host", "h")),
        (["bash", "-c", "# vllm serve x\nvllm serve m\n"], ("m",)),
        (["bash", "-c", "vllm serve m --kv-transfer-config '{\n \"a\": \"b; c\"\n}'"],
         ("m", "--kv-transfer-config", '{\n "a": "b; c"\n}')),
        (["bash", "-c", "vllm serve m --host $(hostname -i) --port 1"],
         ("m", "--host", "$_", "--port", "1")),
        (["bash", "-c", "vllm serve ${MODEL:-m} --port $PORT"], ("m", "--port", "$PORT")),
    ],
)  # fmt: skip
def test_the_flags_are_those_behind_it(words, flags):
    command = found(words)
    assert command is not None and command.flags == flags


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["vllm"],
        ["vllm", "bench", "serve"],
        ["python3", "-m", "http.server"],
        ["bash", "launch.sh", "serve"],
        ["bash", "-c", "echo vllm-serve"],
        ["bash", "-c"],
    ],
)
def test_what_serves_nothing_is_nothing(words):
    assert found(words) is None


@pytest.mark.parametrize(
    "script",
    [
        f"export {PROFILE}=best; vllm serve m",
        f"export A=1 {PROFILE}=$NAME\nvllm serve m",
        f"{PROFILE}=best vllm serve m",
        f"env {PROFILE}=best vllm serve m",
        f"{PROFILE}=best\nvllm serve m",
        f"export {PROFILE}='best' && exec vllm serve m",
    ],
)
def test_a_script_sets_the_environment_of_what_follows(script):
    command = found(["bash", "-c", script], NAME="best", **{PROFILE: "stock"})
    assert command is not None and command.environ[PROFILE] == "best"
    assert command.flags == ("m",)


def test_what_is_set_behind_it_is_not_set():
    command = found(["bash", "-c", f"vllm serve m\nexport {PROFILE}=best"])
    assert command is not None and PROFILE not in command.environ


def test_known_variables_are_put_in():
    command = found(["bash", "-c", "export PORT=2\nvllm serve $MODEL --port ${PORT}"], MODEL="m")
    assert command is not None and command.flags == ("m", "--port", "2")


def test_assignments_in_front_of_a_typed_command_are_of_its_environment():
    command = found([f"{PROFILE}=best", "vllm", "serve", "m"])
    assert command is not None and command.environ == {PROFILE: "best"}


def test_a_command_is_told_as_one_would_type_it():
    command = found(["vllm", "serve", "m", "--kv-transfer-config", '{"a": 1}'])
    assert str(command) == """vllm serve m --kv-transfer-config '{"a": 1}'"""
