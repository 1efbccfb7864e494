# SPDX-License-Identifier: Apache-2.0
"""The options of ``regress`` as one value, checked before anything is sent."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.server_access.access import HttpAccess
from vllm_ascend.server_access.server import ServedModel
from vllm_ascend_evaluation.regress import ais_bench
from vllm_ascend_evaluation.regress.gpqa import QuestionFile
from vllm_ascend_evaluation.regress.judge import Tolerances
from vllm_ascend_evaluation.regress.results import (
    ACCURACY,
    AIS_BENCH,
    HOW_OFTEN,
    PERFORMANCE,
    VLLM,
    AccuracySettings,
    Measured,
    PerformanceSettings,
    read_measured,
)
from vllm_ascend_evaluation.regress.tokenizer import find_tokenizer

AUTO = "auto"


@dataclass(frozen=True)
class OutputFiles:
    """Where results go besides the folder of the run; ``None`` for what is not wanted.

    Attributes:
        save_baseline: Where to keep what was measured.
        junit: Where to write the verdicts as JUnit's XML.
        markdown: The same as Markdown.
    """

    save_baseline: Path | None
    junit: Path | None
    markdown: Path | None

    def check(self) -> None:
        """Make sure that they can be written where they shall be.

        Raises:
            BadInputError: They cannot; names the option.
        """
        files = {
            "--save-baseline": self.save_baseline,
            "--junit": self.junit,
            "--markdown": self.markdown,
        }
        for option, path in files.items():
            if path is None:
                continue
            if path.is_dir():
                raise BadInputError(f"{option} {path}: is a folder, not a file to write")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise BadInputError(f"{option} {path}: {error.strerror}") from error


@dataclass(frozen=True)
class EarlierRun:
    """What becomes of a run that is in the folder already.

    Attributes:
        restart: Forget it.
        rejudge: Judge it, and measure nothing.
        same_server: Whether the user says that it was of this very server, if it was interrupted.
    """

    restart: bool
    rejudge: bool
    same_server: bool

    def check(self) -> None:
        """Check that the answers fit each other.

        Raises:
            BadInputError: They do not.
        """
        if self.restart and self.rejudge:
            raise BadInputError("--rejudge and --restart: choose one")


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a run measures, and where.

    Attributes:
        url: The server.
        performance: The load, if it is in the suite.
        accuracy: How to ask, if that is in the suite.
        gpqa: The questions, if they are to be asked.
    """

    url: str
    performance: PerformanceSettings | None
    accuracy: AccuracySettings | None
    gpqa: QuestionFile | None


@dataclass(frozen=True, kw_only=True)
class Options(Description):
    """What the user asked for.

    Attributes:
        access: API key and TLS.
        out: Folder of the run.
        model: Name of the model; by default the server's first.
        tokenizer: Folder or repository; by default what the server was started with.
        baseline_file: What to compare with.
        files: Where else to write.
        tolerances: How much worse a metric may be.
        timeout_s: Longest time for the answer to one question.
        earlier: What becomes of a run that is in ``out`` already.
    """

    access: HttpAccess
    out: Path
    model: str | None
    tokenizer: str | None
    baseline_file: Path | None
    files: OutputFiles
    tolerances: Tolerances
    timeout_s: float
    earlier: EarlierRun

    @property
    def steps(self) -> dict[str, PerformanceSettings | AccuracySettings]:
        """The steps of the suite, by name."""
        both = {PERFORMANCE: self.performance, ACCURACY: self.accuracy}
        return {name: settings for name, settings in both.items() if settings is not None}

    def check_access(self) -> None:
        """Check that the tools can do what is asked for.

        Raises:
            BadInputError: They cannot.
        """
        uses_ais_bench = any(step.tool == AIS_BENCH for step in self.steps.values())
        if uses_ais_bench and not self.access.verify_tls:
            raise BadInputError(
                f"--insecure: {ais_bench.NAME} verifies certificates and cannot be told not to; "
                f"choose --tool {VLLM}, or name the certificate in SSL_CERT_FILE"
            )

    def read_baseline(self) -> Measured | None:
        """Return what to compare with, if there is anything.

        Raises:
            BadInputError: It cannot be read, or cannot be compared with this suite.
        """
        if self.baseline_file is None:
            return None
        baseline = read_measured(self.baseline_file, "--baseline")
        for step, now in self.steps.items():
            before = getattr(baseline, step)
            if before is None:
                raise BadInputError(
                    f"--baseline {self.baseline_file}: {step} was not measured then: choose "
                    "another --suite or another baseline"
                )
            differences = [
                f"{name} {old!r}, now {getattr(now, name)!r}"
                for name, old in vars(before.settings).items()
                if old != getattr(now, name) and name not in HOW_OFTEN
            ]
            if differences:
                raise BadInputError(
                    f"--baseline {self.baseline_file}: {step} was measured otherwise and cannot "
                    f"be compared: {'; '.join(differences)}"
                )
        return baseline

    def find_tokenizer(self, model: ServedModel) -> str:
        """Return the tokenizer that the tools are to cut prompts with; empty if none does.

        Raises:
            BadInputError: It cannot be used.
        """
        tools = {step.tool for step in self.steps.values()}
        if self.performance is None and AIS_BENCH not in tools:
            return ""  # questions go as text
        return find_tokenizer(self.tokenizer, model.root, tool=tools.pop())

    def check_fits(self, model: ServedModel) -> None:
        """Check that the model takes what will be sent.

        Raises:
            BadInputError: It does not; names the option.
        """
        limit = model.max_model_len
        if limit is None:
            return
        load = self.performance
        if load is not None and load.input_tokens + load.output_tokens > limit:
            raise BadInputError(
                f"--input-tokens {load.input_tokens} and --output-tokens {load.output_tokens}: "
                f"{model.name} takes {limit} together"
            )
        if self.accuracy is not None and self.accuracy.max_tokens >= limit:
            raise BadInputError(
                f"--gpqa-max-tokens {self.accuracy.max_tokens}: {model.name} takes {limit} with "
                "the question"
            )


def parse_suite(text: str) -> list[str]:
    """Read the steps to run.

    Raises:
        BadInputError: There is no such step.
    """
    steps = [step.strip() for step in text.split(",")]
    if not set(steps) <= {PERFORMANCE, ACCURACY}:
        raise BadInputError(
            f"--suite {text}: allowed are {PERFORMANCE}, {ACCURACY}, or both with a comma"
        )
    return steps


def choose_tool(name: str, *, needs_vllm: bool) -> str:
    """Return the tool to measure with.

    Args:
        name: ``auto``, ``ais_bench`` or ``vllm``.
        needs_vllm: Whether vLLM itself would be needed, which its own client is not.

    Raises:
        BadInputError: It is not installed, or there is no such tool.
    """
    has_ais_bench = shutil.which(ais_bench.NAME) is not None
    if name not in (AUTO, AIS_BENCH, VLLM):
        raise BadInputError(f"--tool {name}: allowed are {AUTO}, {AIS_BENCH} and {VLLM}")
    if name == AIS_BENCH and not has_ais_bench:
        raise BadInputError(f"--tool {name}: there is no command {ais_bench.NAME}")
    tool = (AIS_BENCH if has_ais_bench else VLLM) if name == AUTO else name
    if tool == VLLM and needs_vllm and importlib.util.find_spec("vllm") is None:
        raise BadInputError(f"--tool {name}: neither {ais_bench.NAME} nor vllm is installed")
    return tool
