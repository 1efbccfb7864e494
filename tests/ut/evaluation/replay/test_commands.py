# SPDX-License-Identifier: Apache-2.0
"""The new commands against a runner that runs nothing: exit codes, files, refusals, interrupts."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.ut.evaluation.replay.test_report import make_run
from vllm_ascend.__main__ import app
from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.prefix_cache_config import process_environment
from vllm_ascend_evaluation.replay import commands
from vllm_ascend_evaluation.replay.results import Percentiles
from vllm_ascend_evaluation.replay.runs.runner import Outcome

SMALL = ("--workload", "2:100:50:1")
GIB = 1 << 30


class StandIn:
    """Answers with hand-made runs; what it was asked to run is kept."""

    jobs = []
    refused = ()
    outcome = {"interrupted": False}
    is_complete = True
    too_fast = {}  # variant: the speed at which a promise is broken

    def __init__(self, num_parallel, watcher, on_refusal=None):
        self._watcher = watcher
        self._on_refusal = on_refusal

    def run(self, jobs):
        type(self).jobs = jobs
        results = []
        for index, job in enumerate(jobs):
            if index in self.refused:
                self._on_refusal(index, f"{job.variant} on {job.layout}: odd")
                continue
            run = make_run(
                job.variant,
                workload=job.workload.source,
                kv_memory_bytes=job.kv_memory_bytes,
                block_size=job.block_size,
                description=job.description,
                complete=self.is_complete,
                **(self.times(job) if job.slo else {}),
            )
            self._watcher.finish(index, run)
            results.append(run)
        return Outcome(results[:-1] if self.outcome["interrupted"] else results, **self.outcome)

    def times(self, job):
        times = Percentiles(100.0, 200.0, 300.0)
        return {
            "modelled_ttft_ms": times,
            "modelled_tpot_ms": times,
            "arrivals_per_second": 2 * job.speed,
            "kept_percent": 100.0 if job.speed < self.too_fast.get(job.variant, 3) else 50.0,
        }


@pytest.fixture
def runner(monkeypatch):
    class Runner(StandIn):
        pass

    monkeypatch.setattr(commands, "Runner", Runner)
    return Runner


def invoke(*arguments: str):
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})


def sweep(folder, *arguments: str):
    json_file, markdown = folder / "new" / "s.json", folder / "s.md"
    return invoke(
        "sweep", *SMALL, "--json", str(json_file), "--markdown", str(markdown), *arguments
    )


def test_all_axes_of_a_sweep(runner, tmp_path):
    result = sweep(tmp_path)
    assert result.exit_code == 0, result.output
    # Block sizes x MTP x partial hits x intervals, and the profile per block size and MTP.
    assert len(runner.jobs) == 3 * 2 * 2 * 4 + 3 * 2
    assert {job.kv_memory_bytes for job in runner.jobs} == {16 * GIB}
    assert {job.layout for job in runner.jobs} == {"dsv4-flash-a3"}
    assert {job.num_speculative_tokens for job in runner.jobs} == {0, 1}
    assert "30.85" in result.output
    assert "30.85" in (tmp_path / "s.md").read_text()


def test_selected_axes_of_a_sweep(runner, tmp_path):
    selected = ("--block-size", "64", "--interval", "0", "--partial", "1", "--mtp", "2")
    assert sweep(tmp_path, *selected, "--no-best", "--kv-gib", "8").exit_code == 0
    (job,) = runner.jobs
    assert (job.block_size, job.num_speculative_tokens) == (64, 2)
    assert job.kv_memory_bytes == 8 * GIB
    assert job.environment["VLLM_ASCEND_DSV4_PARTIAL_HITS"] == "1"


def test_a_refused_setting_is_no_failure(runner, tmp_path):
    runner.refused = (1,)
    result = sweep(tmp_path, "--block-size", "128", "--mtp", "0", "--partial", "0")
    assert result.exit_code == 0
    assert "refused: odd" in result.output
    report = json.loads((tmp_path / "new" / "s.json").read_text())
    assert [cell["refusal"] for cell in report["cells"]] == [None, "odd", None, None, None]
    assert report["complete"]


def test_if_all_is_refused_the_input_is_bad(runner, tmp_path):
    runner.refused = range(100)
    result = sweep(tmp_path)
    assert result.exit_code == 2
    assert not (tmp_path / "s.md").exists()


def test_an_interrupted_sweep_keeps_what_there_is(runner, tmp_path):
    runner.outcome = {"interrupted": True}
    result = sweep(tmp_path, "--block-size", "128", "--mtp", "0", "--partial", "0")
    assert result.exit_code == 130
    assert "did not run to its end" in result.output
    report = json.loads((tmp_path / "new" / "s.json").read_text())
    assert len(report["workloads"][0]["runs"]) == 4 and not report["complete"]


def test_a_died_run_decides_the_exit_code(runner, tmp_path):
    runner.outcome = {"interrupted": False, "failures": ("it died",)}
    assert sweep(tmp_path).exit_code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("sweep", "--workload", "nowhere"),
        ("sweep", *SMALL, "--partial", "2"),
        ("sweep", *SMALL, "--block-size", "48"),
        ("sweep", *SMALL, "--interval", "often"),
        ("memory-curve", "--workload", "nowhere"),
        ("memory-curve", *SMALL, "--block-size", "48"),
        ("memory-curve", *SMALL, "--png", f"{__file__}/c.png"),
        ("prefix-curve", "--prefixes", "2", "--max-num-batched-tokens", "10"),
        ("prefix-curve", "--prefixes", "2", "--max-model-len", "9999"),
        ("prefix-curve", "--prefixes", "2", "--variant", "mine:"),
        ("goodput", *SMALL),
        ("goodput", "--workload", "chat:1"),
        ("goodput", "--workload", "chat:2", "--slo", "soon"),
        ("goodput", "--workload", "chat:2", "--slo-percent", "0"),
        ("prefix-curve", "--prefixes", "2", "--png", __file__ + "/c.png"),
        ("sweep", *SMALL, "--max-num-batched-tokens", "10"),
        ("sweep", *SMALL, "--markdown", str(Path(__file__).parent)),
    ],
)
def test_bad_input_ends_before_anything_runs(runner, tmp_path, arguments):
    result = invoke(*arguments, "--json", str(tmp_path / "new" / "x.json"))
    assert result.exit_code == 2
    assert runner.jobs == [] and not list(tmp_path.iterdir())


PNG = ("--png", "out/summary.png")


@pytest.fixture
def fresh(runner, tmp_path, monkeypatch):
    """A folder in which nothing is, as the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_picture_in_the_folder_of_results_needs_no_folder(runner, fresh):
    result = invoke("replay", *SMALL, "--out", "out", *PNG)
    assert result.exit_code == 0, result.output
    files = [f"out/{name}" for name in ("report.json", "report.html", "summary.png")]
    assert f"written: {', '.join(files)}" in result.output.splitlines()
    assert all((fresh / file).stat().st_size for file in files)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--max-num-batched-tokens", "10"), "--max-num-batched-tokens 10: expected at least "),
        (("--variant", "mine:"), "--variant mine: expected NAME:VARIABLE=VALUE,..."),
        (("--out", "file"), "--out file: is a file, expected a folder"),
        (("--png", "elsewhere/x.png"), "--png elsewhere/x.png: there is no folder elsewhere"),
        (
            ("--workload", "file"),
            "file, line 1: holds text: give the folder of the model's tokenizer",
        ),
        (("--max-model-len", "100"), "101 tokens or more, above --max-model-len 100"),
    ],
)
def test_bad_input_of_a_replay_is_one_line_and_makes_nothing(runner, fresh, arguments, complaint):
    (fresh / "file").write_text('{"prompt": "hello", "max_tokens": 1}\n')
    result = invoke("replay", *SMALL, "--out", "out", *PNG, *arguments)
    assert result.exit_code == 2, result.output
    (line,) = result.output.splitlines()
    assert line.startswith("error: ") and complaint in line
    assert runner.jobs == [] and [file.name for file in fresh.iterdir()] == ["file"]


@pytest.mark.parametrize("command", ["replay", "sweep", "memory-curve"])
def test_one_prompt_that_is_too_long_does_not_end_the_run(runner, fresh, command):
    """It is counted and left out, and that is told and written."""
    lines = ({"prompt_token_ids": [1] * n, "output_length": 1} for n in (100, 3000, 100))
    (fresh / "file").write_text("\n".join(map(json.dumps, lines)))
    arguments = ("--workload", "file", "--max-model-len", "2000")
    result = invoke(command, *COMMANDS[command], *arguments)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "note: file: 1 of 3 requests have more tokens with their answer than --max-" in said
    (report,) = json.loads(next(fresh.glob("out/r*.json")).read_text())["workloads"][-1:]
    assert report["num_left_out"] == 1 and "1 longer than 2000 left out" in report["description"]


COMMANDS = {
    "replay": (*SMALL, "--out", "out", *PNG),
    "sweep": (*SMALL, "--json", "out/r.json", "--markdown", "out/r.md", "--block-size", "128"),
    "memory-curve": (*SMALL, "--json", "out/r.json", *PNG),
    "prefix-curve": ("--prefixes", "2", "--json", "out/r.json", *PNG),
    "goodput": ("--workload", "chat:2", "--json", "out/r.json", *PNG),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_finished_report_outlives_what_is_partial_or_empty(runner, fresh, name, monkeypatch):
    arguments = (name, *COMMANDS[name])
    assert invoke(*arguments).exit_code == 0
    finished = {file: file.read_bytes() for file in (fresh / "out").iterdir()}
    monkeypatch.setattr(runner, "run", lambda self, jobs: Outcome([], interrupted=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = invoke(*arguments)
    assert result.exit_code == 130
    assert result.output == "written: nothing, for nothing was measured\n"
    assert {file: file.read_bytes() for file in (fresh / "out").iterdir()} == finished
    monkeypatch.undo()
    monkeypatch.chdir(fresh)
    monkeypatch.setattr(commands, "Runner", runner)
    runner.outcome = {"interrupted": True}
    result = invoke(*arguments)
    assert result.exit_code == 130, result.output
    assert all(file.read_bytes() == before for file, before in finished.items())
    partial = {file.with_name(f"{file.stem}.partial{file.suffix}") for file in finished}
    assert set((fresh / "out").iterdir()) == {*finished, *partial}
    written = result.output.splitlines()[-1]
    assert all(file.name in written for file in partial)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_leaves_vllm_and_what_it_prints_to_its_runs(name, tmp_path):
    code = """
import sys
from tests.ut.evaluation.replay.test_commands import StandIn
from vllm_ascend.__main__ import app
from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.prefix_cache_config import process_environment
from vllm_ascend_evaluation.replay import commands
commands.Runner = StandIn
app(sys.argv[1:], standalone_mode=False)
assert "vllm" not in sys.modules and "torch" not in sys.modules
"""
    result = subprocess.run(
        [sys.executable, "-c", code, name, *COMMANDS[name]],
        cwd=tmp_path,
        env={**process_environment(), "PYTHONPATH": str(Path(__file__).parents[4])},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "INFO" not in result.stdout and (tmp_path / "out").is_dir()


def test_the_default_comparison(runner, fresh):
    assert invoke("replay", "--max-requests", "2").exit_code == 0
    assert [job.variant for job in runner.jobs] == ["upstream-like", "best"]
    assert {job.workload.source for job in runner.jobs} == {"W1"}


@pytest.mark.parametrize("size", [32, 64, 128])
def test_both_sides_have_the_block_size_asked_for(runner, fresh, size):
    result = invoke("replay", *SMALL, "--out", "out", "--block-size", str(size))
    assert result.exit_code == 0, result.output
    assert {job.variant: job.block_size for job in runner.jobs} == {
        "upstream-like": size,
        "best": size,
    }
    said = " ".join(result.output.split())
    assert said.count(f"; block size {size}") == 2


@pytest.mark.parametrize("command", ["replay", "prefix-curve"])
def test_a_variant_that_is_left_out_is_named(runner, fresh, command):
    given = ("--variant", "best", "--variant", "upstream-like", "--variant", "best")
    result = invoke(command, *COMMANDS[command], *given)
    assert result.exit_code == 0, result.output
    assert len({job.variant for job in runner.jobs}) == 2
    said = " ".join(result.output.split())
    assert "note: --variant best: best is there already and is run once" in said


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_the_default_of_every_option(name):
    command = typer.main.get_command(app).get_command(None, name)
    for parameter in command.params:
        if not parameter.is_flag:
            record = parameter.get_help_record(typer.Context(command))
            assert "[default: " in record[1], parameter.name


def test_runs_say_what_they_are(runner, fresh):
    assert invoke("replay", *SMALL, "--out", "out", "--variant", "best").exit_code == 0
    (job,) = runner.jobs
    assert "sparse state" in job.description


def curve(folder, *arguments: str):
    files = ("--json", str(folder / "c.json"), "--png", str(folder / "c.png"))
    return invoke("memory-curve", *SMALL, *files, *arguments)


def test_a_memory_curve_has_three_lines_and_six_memories(runner, tmp_path):
    result = curve(tmp_path)
    assert result.exit_code == 0, result.output
    assert len(runner.jobs) == 3 * 6
    assert {job.kv_memory_bytes // GIB for job in runner.jobs} == {4, 8, 16, 32, 64, 128}
    assert {job.block_size for job in runner.jobs} == {128}
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads((tmp_path / "c.json").read_text())
    assert [line["name"] for line in report["bounds"]] == [
        "LRU",
        "knows what comes again",
        "Belady (optimal)",
    ]


def test_memories_that_do_not_suffice_are_left_out(runner, tmp_path):
    runner.refused = (0, 1, 2)
    result = curve(tmp_path, "--kv-gib", "1", "--kv-gib", "8", "--block-size", "32")
    assert result.exit_code == 0
    told = "-  1 GiB refused for upstream-like / interval 0, partial hits / best: odd"
    assert told in result.output and result.output.count("odd") == 1
    assert [job.block_size for job in runner.jobs] == [32] * 6


def test_replay_takes_a_number_of_drafts(runner, tmp_path):
    result = invoke("replay", *SMALL, "--mtp", "3", "--out", str(tmp_path), "--variant", "best")
    assert result.exit_code == 0
    assert [job.num_speculative_tokens for job in runner.jobs] == [3]


def test_replay_takes_a_method_of_drafting(runner, tmp_path):
    common = (*SMALL, "--out", str(tmp_path), "--variant", "best")
    assert invoke("replay", *common, "--drafts", "mtp:3").exit_code == 0
    assert [(job.draft_method, job.num_speculative_tokens) for job in runner.jobs] == [("mtp", 3)]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--drafts", "mtp:1", "--mtp", "1"), "--drafts mtp:1 and --mtp 1: give one of them"),
        (("--drafts", "mtp"), "--drafts mtp: expected mtp:N or dspark:N, N from 1 to 32"),
        (("--drafts", "mtp:0"), "--drafts mtp:0: expected"),
        (("--drafts", "dspark:33"), "--drafts dspark:33: expected"),
        (("--drafts", "eagle:1"), "--drafts eagle:1: expected"),
    ],
)
def test_drafts_that_cannot_be_made_are_one_line(runner, tmp_path, options, error):
    result = invoke("replay", *SMALL, "--out", str(tmp_path), *options)
    assert result.exit_code == 2 and error in " ".join(result.output.split())
    assert not runner.jobs


@pytest.mark.parametrize(("version", "has_it"), [("0.20.2+cpu", False), ("0.30.0", True)])
def test_dspark_needs_a_release_that_has_it(monkeypatch, version, has_it):
    monkeypatch.setattr(commands, "_vllm_version", lambda: version)
    if has_it:
        assert commands.drafts_of("dspark:7", 0) == ("dspark", 7)
        return
    with pytest.raises(BadInputError, match=r"dspark:7: vLLM 0\.20\.2\+cpu has no DSpark"):
        commands.drafts_of("dspark:7", 0)
