# SPDX-License-Identifier: Apache-2.0
"""Releases in miniature: a few modules of a package, written where a test wants them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from vllm_ascend_evaluation.port_report.files import PackageFiles, open_files
from vllm_ascend_evaluation.port_report.modules import Modules


def write_tree(root: Path, modules: Mapping[str, str], package: str = "vllm") -> Path:
    """Write modules, by their paths below the package, and return the folder that holds it."""
    for path, text in {"__init__.py": "", **modules}.items():
        file = root / package / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return root


def make_files(root: Path, modules: Mapping[str, str], package: str = "vllm") -> PackageFiles:
    """Write modules and return them as the files of a package."""
    return open_files("--vllm", write_tree(root, modules, package), package)


def make_modules(root: Path, modules: Mapping[str, str]) -> Modules:
    """Write modules and return them, to be looked up."""
    return Modules(make_files(root, modules))
