# SPDX-License-Identifier: Apache-2.0
"""A replay's results as a table to read, JSON to process, a page and a picture to look at."""

from vllm_ascend.replay.report.html import write_html
from vllm_ascend.replay.report.json_file import write_json
from vllm_ascend.replay.report.plots import summary_png
from vllm_ascend.replay.report.table import print_report

__all__ = ["print_report", "summary_png", "write_html", "write_json"]
