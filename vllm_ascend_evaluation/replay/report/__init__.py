# SPDX-License-Identifier: Apache-2.0
"""Results as a table to read, JSON to process, a page and a picture to look at.

Here: whatever prints, draws or writes records; it measures and decides nothing.
Not here: the records themselves (``results``, ``http/results.py``, ``curves``).
"""

from __future__ import annotations

import importlib
from typing import Any

# Imported when they are asked for: an image may have no matplotlib, and most need none.
_HOMES = {
    "curve_png": "curve",
    "goodput_png": "goodput",
    "prefix_curve_png": "prefix_curve",
    "print_curve": "curve",
    "print_goodput": "goodput",
    "print_prefix_curve": "prefix_curve",
    "print_report": "table",
    "print_sweep": "sweep_table",
    "summary_png": "plots",
    "write_html": "html",
    "write_json": "json_file",
    "write_sweep_markdown": "sweep_table",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
