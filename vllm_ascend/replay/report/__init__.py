# SPDX-License-Identifier: Apache-2.0
"""Results as a table to read, JSON to process, a page and a picture to look at."""

from vllm_ascend.replay.report.curve import curve_png, print_curve
from vllm_ascend.replay.report.html import write_html
from vllm_ascend.replay.report.json_file import write_json
from vllm_ascend.replay.report.plots import summary_png
from vllm_ascend.replay.report.prefix_curve import prefix_curve_png, print_prefix_curve
from vllm_ascend.replay.report.sweep_table import print_sweep, write_sweep_markdown
from vllm_ascend.replay.report.table import print_report

__all__ = [
    "curve_png",
    "prefix_curve_png",
    "print_curve",
    "print_prefix_curve",
    "print_report",
    "print_sweep",
    "summary_png",
    "write_html",
    "write_json",
    "write_sweep_markdown",
]
