# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend`` itself: versions, completion, and libraries that are not there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version

import pytest
import typer
from typer.testing import CliRunner

from vllm_ascend.__main__ import COMMANDS, app
from vllm_ascend.deployment import VERSION

LOCAL = "pip install httpx matplotlib rich typer, or, in this project's own folder, "


def run(*arguments: str):
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


def test_versions_are_ours_and_vllms():
    result = run("--version")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines == [f"vllm-ascend-backport {VERSION}", f"vLLM {version('vllm')}"]


def test_the_version_is_that_of_the_distribution():
    assert version("vllm-ascend-backport") == VERSION


def groups(command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name in getattr(command, "commands", {}):
        yield from groups(command.commands[name], (*path, name))


def test_no_command_offers_shell_completion():
    root = typer.main.get_command(app)
    context = typer.Context(root)
    for name in COMMANDS:
        for path in groups(root.get_command(context, name), (name,)):
            help_text = run(*path, "--help").output
            assert "Usage" in help_text
            assert "--install-completion" not in help_text, path


def test_to_see_which_commands_there_are_imports_none_of_their_packages():
    """Over a checkout one of them is vllm-ascend's own, which imports vLLM: that logs to standard
    output, in front of the JSON that was asked for."""
    code = """
import sys, typer
from vllm_ascend.__main__ import COMMANDS, app
assert typer.main.get_command(app).list_commands(None) == list(COMMANDS)
packages = {target.split(".")[1] for target in COMMANDS.values()}
print({package for package in packages if f"vllm_ascend.{package}" in sys.modules})
"""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout == "set()\n", result.stdout + result.stderr


@pytest.mark.parametrize(
    ("lacking", "command", "told"),
    [
        ("matplotlib", ("replay", "--out", "nowhere"), LOCAL),
        ("prometheus_client", ("regress",), "this Python has no prometheus_client: use the one"),
        ("torch", ("tiny-model", "nowhere"), "this Python has no torch: use the one that serves"),
    ],
)
def test_a_command_that_lacks_a_library_says_so_in_one_line(lacking, command, told):
    """As beside a Python that has no vLLM, or serves and has nothing more."""
    result = without(lacking, *command)
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: this command needs ") and told in line
    assert "vllm-ascend-backport[" not in line  # on an index the name may be anybody's


def test_without_a_library_every_command_is_still_listed():
    result = without("matplotlib", "--help")
    assert result.returncode == 0, result.stderr
    assert all(name in result.stdout for name in COMMANDS)
    assert "Not available: this Python has no matplotlib." in " ".join(result.stdout.split())


def test_without_the_library_of_all_commands_there_is_one_line():
    result = without("typer", "doctor")
    assert (result.returncode, result.stdout) == (2, "")
    assert LOCAL in result.stderr and len(result.stderr.splitlines()) == 1


def test_whoever_reads_no_further_gets_no_error():
    """As with ``... --help | head -1``."""
    command = f"{sys.executable} -m vllm_ascend --help | true"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert result.stderr == ""


def without(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a Python that does not find a module."""
    code = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
sys.argv = ["vllm_ascend", *{list(arguments)!r}]
import runpy
runpy.run_module("vllm_ascend", run_name="__main__")
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
