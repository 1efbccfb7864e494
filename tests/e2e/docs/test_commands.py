# SPDX-License-Identifier: Apache-2.0
"""Every command of the pages that a newcomer reads first is run, as it stands there.

What takes minutes is run with less work; what asks a server is run in
``tests/e2e/server/test_serve.py``; ``make replay`` and ``make test`` are what ``.ci/run`` runs.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.e2e.replay.in_process import invoke
from tests.pages import FIRST_PAGES, REPOSITORY, blocks
from tests.ut.overlay.miniature import know, make_checkout
from vllm_ascend.prefix_cache_config import VARIABLES

COMMANDS = sorted({line for page in FIRST_PAGES for b in blocks(page) for line in b.commands()})
_OURS = re.compile(r"(?:\.venv/bin/)?python -m vllm_ascend (.*)")
_CHECKOUT = "/vllm-workspace/vllm-ascend"
_NOBODY = "http://127.0.0.1:9"


def arguments(command: str) -> list[str]:
    match = _OURS.fullmatch(command)
    assert match, command
    return shlex.split(match[1])


def dry_run(command: str, folder: Path) -> None:
    """``make`` finds the target and all that it needs, and says what it would do."""
    target = shlex.split(command)
    done = subprocess.run([*target, "-n"], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def by_pip(command: str, folder: Path) -> None:
    """A user's pip, which the project's own environment does not have: what it would be given."""
    assert command == "pip install --no-deps ."
    assert (REPOSITORY / "pyproject.toml").is_file()


def overlay(command: str, folder: Path) -> None:
    """Over a miniature checkout in the place of an image's."""
    result = invoke(*(word.replace(_CHECKOUT, str(folder)) for word in arguments(command)))
    assert result.exit_code == 0, result.output


def doctor(command: str, folder: Path) -> None:
    result = subprocess.run(
        [*command.replace("python", str(REPOSITORY / ".venv/bin/python"), 1).split()],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "serving would be right" in result.stdout, result.stdout + result.stderr


def replay(command: str, folder: Path) -> None:
    """With a few requests of the form that the quick start shows."""
    (line,) = [b.text for b in blocks("docs/quick-start.md") if b.language == "json"]
    request = json.loads(line)
    prompt = request["prompt_token_ids"] * 200
    (folder / "requests.jsonl").write_text(
        "\n".join(json.dumps({**request, "prompt_token_ids": prompt}) for _ in range(40))
    )
    result = in_folder(folder, arguments(command))
    assert result.exit_code == 0, result.output
    runs = json.loads((folder / "replay-out" / "report.json").read_text())["workloads"][0]["runs"]
    hits = {run["variant"]: run["hit_tokens"] for run in runs}
    # Of 600 tokens 512 less a granule for the draft layer, by all that start behind the first step.
    assert hits["upstream-like"] == 0
    assert hits["best"] > 0 and hits["best"] % 384 == 0


def no_server(command: str, folder: Path) -> None:
    """Understood, and stopped in one line before anything is written: there is no server."""
    words = [word.replace("http://127.0.0.1:8000", _NOBODY) for word in arguments(command)]
    result = in_folder(folder, words)
    assert result.exit_code == 2, result.output
    (line,) = result.output.splitlines()
    # Before a server is asked, the baseline is read, which the command above it would have written.
    assert _NOBODY in line or "--baseline baseline.json" in line


def in_folder(folder: Path, words: list[str]) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return invoke(*words)


def by_a_server(command: str, folder: Path) -> None:
    """Run against a server, in the tests of the server."""


WAYS: dict[str, Callable[[str, Path], None]] = {
    r"make (replay|test|serve)": dry_run,
    r"pip install .*": by_pip,
    r".*vllm_ascend overlay .*": overlay,
    r".*vllm_ascend doctor": doctor,
    r".*vllm_ascend replay --workload requests\.jsonl .*": replay,
    r".*vllm_ascend regress .*": no_server,
    r"(?s)ask\(\).*|ask .*|curl .*|.*vllm_ascend replay --url .*": by_a_server,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    if "overlay" not in request.node.name:
        return tmp_path
    root = make_checkout(tmp_path / "vllm-ascend")
    know(root, monkeypatch)
    return root


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_does_what_its_page_says(command: str, folder: Path) -> None:
    ways = [way for pattern, way in WAYS.items() if re.fullmatch(pattern, command)]
    assert len(ways) == 1, f"nobody runs: {command}"
    ways[0](command, folder)


@pytest.mark.parametrize("page", FIRST_PAGES)
def test_what_a_page_sets_is_a_variable_of_ours(page: str) -> None:
    names = {name for block in blocks(page) for name in block.settings()}
    assert names <= {variable.name for variable in VARIABLES}
