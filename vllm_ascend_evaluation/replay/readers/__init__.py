# SPDX-License-Identifier: Apache-2.0
"""Readers turn files into workloads; each checks its whole file before anything runs.

Here: one module per format, and how JSON and text are read. Mooncake traces become workloads; logs
and data sets become :class:`~vllm_ascend_evaluation.replay.readers.logged.LoggedRequest`.
Not here: which reader a file is for (``sources``, ``own_traffic``), how text becomes token ids
(``tokenizing``), and workloads that are made (``generators``).
"""
