# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend`` itself: versions, completion, and libraries that are not there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from vllm_ascend.__main__ import COMMANDS, app
from vllm_ascend.deployment import VERSION, own_package

LOCAL = "pip install aiohttp httpx matplotlib rich scipy typer, or, in this project's own folder, "


def is_apart(target: str) -> bool:
    """Whether a command is of the package that measures and proves."""
    return not target.startswith("vllm_ascend.")


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
packages = {".".join(target.split(".")[:2]) for target in COMMANDS.values()}
print(packages & sys.modules.keys())
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


@pytest.mark.parametrize("command", [name for name, target in COMMANDS.items() if is_apart(target)])
def test_where_only_the_serving_package_is_a_command_says_how_to_get_the_other(tmp_path, command):
    """As in a checkout of vllm-ascend that has the overlay."""
    result = alone(tmp_path, command, "--url", "http://nowhere", "--out", "nowhere")
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {command} is part of the package vllm_ascend_evaluation")
    assert line.endswith("in a clone of this project, after pip install -e '.[evaluation]'")


def test_where_only_the_serving_package_is_its_own_commands_are_listed(tmp_path):
    result = alone(tmp_path, "--help")
    assert result.returncode == 0, result.stderr
    listed = set(re.findall(r"^  ([a-z-]+)  ", result.stdout.split("Commands:")[1], re.M))
    assert listed == {name for name, target in COMMANDS.items() if not is_apart(target)}


def test_without_the_library_of_all_commands_there_is_one_line():
    result = without("typer", "replay")
    assert (result.returncode, result.stdout) == (2, "")
    assert LOCAL in result.stderr and len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("lacking", "arguments", "libraries"),
    [
        ("typer", ("overlay", "plan", "nowhere"), "rich typer"),
        ("rich", ("overlay", "plan", "nowhere"), "rich typer"),
        ("typer", (), "rich typer"),
        ("httpx", ("npu-check", "--url", "http://127.0.0.1:9"), "httpx rich typer"),
    ],
)
def test_a_command_that_serves_asks_for_no_library_of_the_evaluation(lacking, arguments, libraries):
    result = without(lacking, *arguments)
    told = f"error: this command needs {lacking}: pip install {libraries}\n"
    assert (result.returncode, result.stdout, result.stderr) == (2, "", told)


INTERRUPTED = (130, "", "interrupted: by the user\n")


def test_an_interrupt_while_modules_are_imported_is_one_line():
    result = interrupted_at_import_of("typer", "replay", "--workload", "nowhere")
    assert (result.returncode, result.stdout, result.stderr) == INTERRUPTED


def test_an_interrupt_while_the_command_line_is_read_is_one_line():
    result = interrupted_at_import_of("pydantic", "regress", "--requests", "7")
    assert (result.returncode, result.stdout, result.stderr) == INTERRUPTED


def test_an_interrupt_while_a_command_is_imported_is_one_line():
    result = interrupted_at_import_of("matplotlib", "replay", "--workload", "nowhere")
    assert (result.returncode, result.stdout, result.stderr) == INTERRUPTED


def test_whoever_reads_no_further_gets_no_error():
    """As with ``... --help | head -1``."""
    command = f"{sys.executable} -m vllm_ascend --help | true"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert result.stderr == ""


def alone(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of a copy of the serving package, where the other package is not."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(own_package(), folder / "vllm_ascend", ignore=ignored)
    code = f"""
import runpy, sys
sys.path[:] = [path for path in sys.path if path != {str(own_package().parent)!r}]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
sys.argv = ["vllm_ascend", *{list(arguments)!r}]
runpy.run_module("vllm_ascend", run_name="__main__")
"""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def without(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a Python that does not find a module."""
    return at_import_of(
        module, 'raise ModuleNotFoundError(f"No module named {name!r}", name=name)', *arguments
    )


def interrupted_at_import_of(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose user interrupts it when it imports a module."""
    return at_import_of(module, "signal.raise_signal(signal.SIGINT)", *arguments)


def at_import_of(module: str, statement: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command; when it imports a module, this happens instead."""
    code = f"""
import signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {module!r}:
            {statement}
sys.meta_path.insert(0, Finder())
sys.argv = ["vllm_ascend", *{list(arguments)!r}]
import runpy
runpy.run_module("vllm_ascend", run_name="__main__")
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
