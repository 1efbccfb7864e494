# SPDX-License-Identifier: Apache-2.0
"""How long a step takes: what it does, a model of it, its fit, and the file that keeps one."""
