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
import json, os, sys, vllm
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

def answer():
    try:
        import vllm_ascend.patch.platform as platform
    except PatchError as error:
        return {"error": str(error)}
    plan = platform.install_all().plan
    rows = [[row.target, row.feature, row.status] for row in plan.rows]
    return {"rows": rows, "changes": len(plan.changes)}

for variables in sys.argv[1:]:
    os.environ.update(dict.fromkeys(variables.split(), "1"))
    told = answer()
    for name in variables.split():
        del os.environ[name]
    import vllm.v1.core.sched.scheduler
    told |= {"version": vllm.__version__, "ours": sorted(set(ours()))}
    print("ANSWER", json.dumps(told))
"""
# Variable -> what it cannot do without.
NEEDS = {
    "VLLM_ASCEND_APPLY_DSV4_PATCH": "dsv4-layout",
    "VLLM_ASCEND_DSV4_PARTIAL_HITS": "partial-hits",
    "VLLM_ASCEND_SPARE_TAILS": "retention-exactness",
    "VLLM_ASCEND_PROTECT_RETURNING": "retention-exactness",
    "VLLM_PIN_SWA_TOKENS": "retention-exactness",
}


def probe(version: str, *switched_on: str) -> list[dict]:
    """Import the patches in a process that runs vLLM ``version`` and say what became of them.

    An import that is refused leaves nothing, so one process can tell of several.

    Args:
        version: A release.
        switched_on: For each import, the variables that are set, separated by spaces.
    """
    sources = RELEASES / version
    assert (sources / "vllm").is_dir(), f"no sources of vLLM {version}: run `make other-vllm`"
    result = subprocess.run(
        [sys.executable, "-c", PROBE, *switched_on],
        env=child_environment(
            {"PYTHONPATH": f"{sources}:{REPOSITORY}", "VLLM_LOGGING_LEVEL": "ERROR"}
        ),
        cwd=RELEASES,
        capture_output=True,
        text=True,
        check=False,
    )
    answers = [
        json.loads(line.removeprefix("ANSWER "))
        for line in result.stdout.splitlines()
        if line.startswith("ANSWER ")
    ]
    assert len(answers) == len(switched_on), result.stderr
    for answer in answers:
        assert answer["version"].split("+")[0] == version
        assert answer["ours"] == [], "something was changed"
    return answers


@pytest.fixture(scope="module")
def answers_of_0_23() -> list[dict]:
    return probe("0.23.0", *NEEDS, "")


def test_a_vllm_with_retention_keeps_its_own(answers_of_0_23):
    answer = answers_of_0_23[-1]
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
        ("request-memory", "not available"),
    }


def test_what_is_switched_on_is_refused_where_it_is_not_available(answers_of_0_23):
    for answer, feature in zip(answers_of_0_23, NEEDS.values(), strict=False):
        assert f"required but not available on vLLM 0.23.0: {feature}" in answer["error"]


@pytest.mark.parametrize("version", ["0.19.1", "0.21.0"])
def test_a_vllm_that_is_neither_is_refused(version):
    (answer,) = probe(version, "")
    assert f"written for vLLM 0.20.2 and do not fit the running vLLM {version}" in answer["error"]
    assert "nothing was changed" in answer["error"]
