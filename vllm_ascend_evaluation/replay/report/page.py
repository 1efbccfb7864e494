# SPDX-License-Identifier: Apache-2.0
"""Pages that refer to nothing outside themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from vllm_ascend_evaluation.replay.report.json_file import write_whole


def write_page(template: str, path: Path, **values: Any) -> None:
    """Fill a template of this folder and write it at once.

    Raises:
        OSError: The file cannot be written.
    """
    environment = Environment(
        loader=PackageLoader("vllm_ascend_evaluation.replay", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    write_whole(path, environment.get_template(template).render(**values))
