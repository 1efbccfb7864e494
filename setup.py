# SPDX-License-Identifier: Apache-2.0
"""Kept beside pyproject.toml for tools that still call it; everything is declared there."""

from setuptools import setup

setup()
