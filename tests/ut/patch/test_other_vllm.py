# SPDX-License-Identifier: Apache-2.0
"""The real table against other real releases of vLLM (their sources, our libraries)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_ascend.prefix_cache_config import child_environment

REPOSITORY = Path(__file__).parents[3]
RELEASES = REPOSITORY / ".venv-vllm"

PROBE = """
import json, sys, vllm
from types import FunctionType
from vllm_ascend.patch.table import PatchError

def ours():
    # Whatever of this project got into the modules and classes of vLLM.
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] != "vllm" or not hasattr(module, "__dict__"):
            continue
        for owner in [module, *(v for v in vars(module).values() if isinstance(v, type))]:
            for attribute, value in list(vars(owner).items()):
                # Nothing but functions: vLLM's stand-ins for missing libraries must not be asked.
                if isinstance(value, (classmethod, staticmethod)):
                    value = value.__func__
                if isinstance(value, FunctionType) and value.__module__.startswith("vllm_ascend"):
                    yield f"{name}:{getattr(owner, '__qualname__', '')}.{attribute}"

try:
    import vllm_ascend.patch.platform as platform
    installation = platform.install_all()
    rows = [[row.target, row.feature, row.status] for row in installation.plan.rows]
    answer = {"rows": rows, "changes": len(installation.plan.changes)}
except PatchError as error:
    answer = {"error": str(error)}
import vllm.v1.core.sched.scheduler
answer |= {"version": vllm.__version__, "ours": sorted(set(ours()))}
print("ANSWER", json.dumps(answer))
"""


def probe(version: str, **environment: str) -> dict:
    """Import the patches in a process that runs vLLM ``version`` and say what became of them."""
    sources = RELEASES / version
    assert (sources / "vllm").is_dir(), f"no sources of vLLM {version}: run `make other-vllm`"
    result = subprocess.run(
        [sys.executable, "-c", PROBE],
        env=child_environment(
            {
                "PYTHONPATH": f"{sources}:{REPOSITORY}",
                "VLLM_LOGGING_LEVEL": "ERROR",
                **environment,
            }
        ),
        cwd=RELEASES,
        capture_output=True,
        text=True,
        check=False,
    )
    answers = [line for line in result.stdout.splitlines() if line.startswith("ANSWER ")]
    assert answers, result.stderr
    answer = json.loads(answers[0].removeprefix("ANSWER "))
    assert answer["version"].split("+")[0] == version
    assert answer["ours"] == [], "something was changed"
    return answer


def test_a_vllm_with_retention_keeps_its_own():
    answer = probe("0.23.0")
    assert answer["changes"] == 0
    status = {(feature, status) for _, feature, status in answer["rows"]}
    assert status == {
        ("retention", "left to vLLM"),
        ("dsv4-layout", "not available"),
        ("partial-hits", "not available"),
        ("retention-exactness", "not available"),
        ("kv-connectors", "not available"),
        ("kv-events", "not available"),
        ("metrics", "not available"),
        ("early-check", "not available"),
        ("isolation", "not available"),
    }


@pytest.mark.parametrize(
    ("variable", "feature"),
    [
        ("VLLM_ASCEND_APPLY_DSV4_PATCH", "dsv4-layout"),
        ("VLLM_ASCEND_DSV4_PARTIAL_HITS", "partial-hits"),
        ("VLLM_ASCEND_SPARE_TAILS", "retention-exactness"),
        ("VLLM_PIN_SWA_TOKENS", "retention-exactness"),
    ],
)
def test_what_is_switched_on_is_refused_where_it_is_not_available(variable, feature):
    answer = probe("0.23.0", **{variable: "1"})
    assert f"required but not available on vLLM 0.23.0: {feature}" in answer["error"]


@pytest.mark.parametrize("version", ["0.19.1", "0.21.0"])
def test_a_vllm_that_is_neither_is_refused(version):
    error = probe(version)["error"]
    assert f"written for vLLM 0.20.2 and do not fit the running vLLM {version}" in error
    assert "nothing was changed" in error
