# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the schedulers' tests and of the engines', for both kinds of tests here."""

from tests.e2e.core.conftest import switch
from tests.e2e.models.conftest import deepseek

__all__ = ["deepseek", "switch"]
