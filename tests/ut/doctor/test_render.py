# SPDX-License-Identifier: Apache-2.0
"""The text: it fits 80 columns, says everything, and has colours on a terminal only."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from vllm_ascend.doctor.environment import variable_rows
from vllm_ascend.doctor.findings import (
    CommandFacts,
    Diagnosis,
    Finding,
    GroupRow,
    LayoutFacts,
    OverlayFacts,
    PatchRow,
    Severity,
    Version,
)
from vllm_ascend.doctor.render import PLAIN_WIDTH, console_for_output, print_diagnosis

LONG = "vllm.v1.core.single_type_kv_cache_manager:SlidingWindowManager._contiguous_blocks_for_hit"
PLACE = "/" + "deep/" * 40
CURE = (
    f"python -m vllm_ascend overlay revert {PLACE} && python -m vllm_ascend overlay apply {PLACE}"
)
SERVE = (
    f'vllm serve /models/{"m" * 30} --kv-transfer-config \'{{"kv_connector": "NixlConnector"}}\''
)
LAYOUT = LayoutFacts(
    model="deepseek_v4",
    coordinator="AscendHybridKVCacheCoordinator",
    block_size=128,
    groups=(
        GroupRow("compressed 4:1, indexer", 1, 21, 128, 512, 16_640),
        GroupRow("sliding window 128", 2, 44, 128, 128, 131_072),
    ),
    granule=128,
    alignment=128,
    smallest_prefix=256,
    hits_from_request=2,
    retention_interval=32_768,
    bytes_per_block=3_571_712,
    tokens_per_gib=149_255,
    max_model_len=1_048_576,
    warnings=(),
)
DIAGNOSIS = Diagnosis(
    versions=(Version("vLLM", "0.20.2"), Version("CANN", None)),
    overlay=OverlayFacts("half-applied", "only a part lies there", PLACE, "792ea0c6"),
    patches=(
        PatchRow(LONG, "retention", "applied", "why"),
        PatchRow("vllm.v1.core.block_pool:BlockPool.x", "retention", "refused", "digest " * 30),
    ),
    variables=variable_rows({"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}),
    layout=LAYOUT,
    findings=(
        Finding("layout", Severity.WARNING, "a setting that cannot help " * 5, "unset it"),
        Finding("patches", Severity.WRONG, f"{LONG}{LONG} is refused", "find out who else patches"),
        Finding("overlay", Severity.WRONG, "only a part lies there", command=CURE),
    ),
    command=CommandFacts(SERVE, ""),
)


def printed(
    diagnosis: Diagnosis, *, verbose: bool = True, width: int = PLAIN_WIDTH, **console
) -> str:
    stream = io.StringIO()
    to = Console(file=stream, width=width, emoji=False, **console)
    print_diagnosis(diagnosis, to, verbose=verbose)
    return stream.getvalue()


@pytest.mark.parametrize("verbose", (False, True))
def test_lines_are_longer_than_80_columns_for_the_sake_of_one_word_or_a_command(verbose):
    lines = printed(DIAGNOSIS, verbose=verbose).splitlines()
    for line in lines:
        longest = max(map(len, line.split()), default=0)
        assert len(line) <= 80 or longest > 60 or CURE in line or SERVE in line, line
    assert not any(line.endswith(" ") for line in lines)


@pytest.mark.parametrize("verbose", (False, True))
@pytest.mark.parametrize("width", (20, 80, 300))
def test_what_one_copies_is_never_broken(verbose, width):
    """Neither on a terminal nor in a file: paths, names, targets and commands."""
    text = printed(DIAGNOSIS, verbose=verbose, width=width)
    words = text.split()
    assert {PLACE, f"{LONG}{LONG}"} <= set(words)
    assert CURE in text and SERVE in text
    if verbose:
        names = {row.target.partition(":")[2] for row in DIAGNOSIS.patches}
        assert names | {row.name for row in DIAGNOSIS.variables} <= set(words)


def test_the_text_says_everything():
    text = "".join(line.strip() for line in printed(DIAGNOSIS).splitlines())
    for part in (
        "vLLM0.20.2".replace("0", " 0", 1),
        "not found",
        "at 792ea0c6",
        "BlockPool.x",
        "VLLM_ASCEND_DSV4_PARTIAL_HITS = 1 (by the profile)",
        "16,640",
        "256 tokens, by the 2nd request that has it",
        "32,768 tokens",
        "-> unset it",
    ):
        assert part.replace(" ", "") in text.replace(" ", "")
    assert text.endswith("serving would be wrong (2 wrong, 1 warning)")


def test_without_verbose_patches_and_variables_are_one_line_each():
    text = printed(DIAGNOSIS, verbose=False)
    (patches,) = [line for line in text.splitlines() if line.startswith("Patches")]
    assert patches.split(maxsplit=1)[1] == "1 applied, 1 refused"
    assert "VLLM_ASCEND_DSV4_PARTIAL_HITS=1 (by the profile)" in text
    assert "BlockPool.x" not in text and "VLLM_PIN_SWA_TOKENS" not in text
    for part in ("only a part lies there", "256 tokens, by the 2nd request", "-> unset it"):
        assert part in text
    assert text.rstrip().endswith("serving would be wrong (2 wrong, 1 warning)")


def test_a_reason_that_all_patches_have_stands_in_their_line():
    why = "VLLM_ASCEND_DSV4_PARTIAL_HITS is invalid"
    rows = tuple(replace(row, status="not loaded", reason=why) for row in DIAGNOSIS.patches)
    text = printed(replace(DIAGNOSIS, patches=rows), verbose=False)
    assert f"Patches    {len(rows)} not loaded: {why}\n" in text


def test_what_is_wrong_comes_before_warnings():
    text = printed(DIAGNOSIS)
    assert text.index("wrong:") < text.index("warning:")


def test_colours_are_for_terminals(monkeypatch, capsys):
    assert "\x1b" not in printed(DIAGNOSIS)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in printed(DIAGNOSIS, force_terminal=True, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    coloured = printed(DIAGNOSIS, force_terminal=True, color_system="standard")
    assert "\x1b[31" not in coloured and "\x1b[1;31" not in coloured


def test_standard_output_that_is_no_terminal_has_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    assert console_for_output().width == 80


@pytest.mark.parametrize(
    ("severities", "exit_code", "verdict"),
    [
        ((), 0, "right"),
        ((Severity.OK, Severity.WARNING), 0, "right"),
        ((Severity.WARNING, Severity.WRONG), 1, "wrong"),
    ],
)
def test_the_worst_finding_is_the_verdict(severities, exit_code, verdict):
    findings = tuple(Finding("probe", severity, "text") for severity in severities)
    diagnosis = replace(DIAGNOSIS, findings=findings)
    assert diagnosis.exit_code == exit_code
    told = json.loads(json.dumps(diagnosis.to_dict()))
    assert (told["verdict"], told["exit_code"]) == (verdict, exit_code)
    assert [finding["severity"] for finding in told["findings"]] == list(severities)
