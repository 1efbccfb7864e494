# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the schedulers' tests."""

from tests.e2e.core.conftest import switch

__all__ = ["switch"]
