# SPDX-License-Identifier: Apache-2.0
"""The real table against other real releases of vLLM (their sources, our libraries)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_ascend.prefix_cache_config import child_environment
from vllm_ascend.releases import describe_supported

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
except PatchError as error:
    told = {"error": str(error)}
else:
    rows = platform.install_all().rows
    told = {"rows": [[row.target, row.feature, row.status] for row in rows]}
import vllm.v1.core.sched.scheduler
print("ANSWER", json.dumps(told | {"version": vllm.__version__, "ours": sorted(set(ours()))}))
"""


def probe(version: str) -> dict:
    """Import the patches in a process that runs vLLM ``version`` and say what became of them."""
    sources = RELEASES / version
    assert (sources / "vllm").is_dir(), f"no sources of vLLM {version}: run `make other-vllm`"
    result = subprocess.run(
        [sys.executable, "-c", PROBE],
        env=child_environment(
            {"PYTHONPATH": f"{sources}:{REPOSITORY}", "VLLM_LOGGING_LEVEL": "ERROR"}
        ),
        cwd=RELEASES,
        capture_output=True,
        text=True,
        check=False,
    )
    answers = [line for line in result.stdout.splitlines() if line.startswith("ANSWER ")]
    assert len(answers) == 1, result.stderr
    answer = json.loads(answers[0].removeprefix("ANSWER "))
    assert answer["version"].split("+")[0] == version
    return answer


def test_a_supported_release_takes_the_whole_table():
    answer = probe("0.23.0")
    assert {status for _, _, status in answer["rows"]} == {"applied", "overridden", "left to vLLM"}
    left = {feature for _, feature, status in answer["rows"] if status == "left to vLLM"}
    assert left == {"retention", "dsv4-layout", "kv-connectors"}
    assert answer["ours"]


@pytest.mark.parametrize("version", ["0.19.1", "0.21.0"])
def test_a_vllm_that_is_not_supported_is_refused(version):
    answer = probe(version)
    supported = describe_supported()
    assert (
        f"written for vLLM {supported} and do not fit the running vLLM {version}"
        in (answer["error"])
    )
    assert "nothing was changed" in answer["error"]
    assert answer["ours"] == [], "something was changed"
