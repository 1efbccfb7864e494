# SPDX-License-Identifier: Apache-2.0
"""The report as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from vllm_ascend.replay.results import ReplayReport


def write_json(report: ReplayReport, path: Path) -> None:
    """Write the report; a reader never sees half of it.

    Raises:
        OSError: The folder cannot be written.
    """
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(report.to_dict(), indent=1) + "\n")
    unfinished.replace(path)
