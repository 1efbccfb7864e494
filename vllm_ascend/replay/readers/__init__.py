# SPDX-License-Identifier: Apache-2.0
"""Readers turn files into workloads; each checks its whole file before anything runs.

Here: one module per format, and how JSON lines are read.
Not here: which reader a file is for (``sources``), and workloads that are made (``generators``).
"""
