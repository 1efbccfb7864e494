# SPDX-License-Identifier: Apache-2.0
"""Measures a server that is idle, and fits the cost model of its steps."""
