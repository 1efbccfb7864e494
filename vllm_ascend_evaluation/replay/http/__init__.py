# SPDX-License-Identifier: Apache-2.0
"""Traffic against a server that runs: how to reach it, what to send it, what it told.

Here: the client, access, options, prompts that the server can bear, playing, results.
Not here: runs on a scheduler of our own (``runs``), and pages and tables (``report/http.py``).
"""
