# SPDX-License-Identifier: Apache-2.0
"""The tokenizer that tools cut prompts with, tried before anything is sent."""

from __future__ import annotations

from pathlib import Path

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.regress import ais_bench
from vllm_ascend_evaluation.regress.results import AIS_BENCH

# Any of them makes a folder one of a tokenizer.
_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


def find_tokenizer(given: str | None, root: str, *, tool: str) -> str:
    """Return the tokenizer of a load: a folder, or for ``vllm bench serve`` a repository.

    Args:
        given: ``--tokenizer``.
        root: What the server was started with, which is taken without it.
        tool: Who shall use it. For ``vllm bench serve`` it is loaded once, as that will do;
            AISBench has an environment of its own.

    Raises:
        BadInputError: It cannot be used.
    """
    name = given or root
    shown = f"--tokenizer {name}" + ("" if given else ", which the server was started with")
    folder = Path(name)
    if folder.is_dir():
        name = str(folder.resolve())  # tools run in folders of their own
        if not any((folder / file).exists() for file in _FILES):
            raise BadInputError(f"{shown}: holds no tokenizer, none of {', '.join(_FILES)}")
    elif tool == AIS_BENCH or folder.is_absolute():
        needs = f"{ais_bench.NAME} needs" if tool == AIS_BENCH else "expected"
        raise BadInputError(f"{shown}: {needs} a folder on this machine with the tokenizer")
    if tool != AIS_BENCH:
        _load(name, shown)
    return name


def _load(name: str, shown: str) -> None:
    """Load a tokenizer as ``vllm bench serve`` does, but do not wait for a network."""
    from transformers import AutoTokenizer  # seconds

    try:
        AutoTokenizer.from_pretrained(name, local_files_only=True)
    except Exception as error:  # the library's own are of many kinds, some bare
        first = str(error).strip().split("\n")[0]
        if not Path(name).is_dir():
            first = f"it is neither a folder on this machine nor downloaded: hf download {name}"
        raise BadInputError(f"{shown}: cannot be loaded ({first})") from error
