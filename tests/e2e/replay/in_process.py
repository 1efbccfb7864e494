# SPDX-License-Identifier: Apache-2.0
"""A command and its runs in one process: a process per run would mostly import vLLM."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from unittest import mock

from click.testing import Result
from typer.testing import CliRunner

from vllm_ascend.__main__ import app
from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.prefix_cache_config import child_environment
from vllm_ascend_evaluation.replay import commands
from vllm_ascend_evaluation.replay.results import RunResult
from vllm_ascend_evaluation.replay.runs.child import run_job
from vllm_ascend_evaluation.replay.runs.job import Job
from vllm_ascend_evaluation.replay.runs.runner import Outcome


def _refuse(index: int, reason: str) -> None:
    raise BadInputError(reason)


class InProcessRunner:
    """Runs jobs one after another, each under its environment; all of them with our patches."""

    def __init__(
        self,
        num_parallel: int,
        watcher: object,
        on_refusal: Callable[[int, str], None] = _refuse,
    ) -> None:
        self._on_refusal = on_refusal

    def run(self, jobs: Sequence[Job]) -> Outcome:
        """Return the results in the order of the jobs; those of refused ones are missing."""
        results = (self._run(index, job) for index, job in enumerate(jobs))
        return Outcome([result for result in results if result is not None], interrupted=False)

    def _run(self, index: int, job: Job) -> RunResult | None:
        assert job.patched, "the patches stay in this process"
        with mock.patch.dict(os.environ, child_environment(job.environment), clear=True):
            try:
                return run_job(job)
            except BadInputError as error:
                self._on_refusal(index, str(error))
                return None


def invoke(*arguments: str) -> Result:
    """Run a command."""
    with mock.patch.object(commands, "Runner", InProcessRunner):
        return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
