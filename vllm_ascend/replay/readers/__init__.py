# SPDX-License-Identifier: Apache-2.0
"""Readers turn files into workloads; each checks its whole file before anything runs."""
