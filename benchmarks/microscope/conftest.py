# SPDX-License-Identifier: Apache-2.0
"""One process is one side: patches are installed once, and stay."""

from __future__ import annotations

import pytest

from benchmarks.microscope.sides import SIDES, STOCK, Side


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--side", choices=tuple(SIDES), default=STOCK, help="what is measured")


@pytest.fixture(scope="session", autouse=True)
def side(request: pytest.FixtureRequest) -> Side:
    """The side that is measured, and that this process now is of."""
    chosen = SIDES[request.config.getoption("--side")]
    chosen.enter()
    return chosen


def pytest_benchmark_generate_machine_info() -> dict:
    """Keep the plugin from asking for seconds: the report knows the machine."""
    return {}


def pytest_benchmark_generate_commit_info() -> dict:
    """Leave the commit to the report as well."""
    return {}
