# SPDX-License-Identifier: Apache-2.0
"""The two guides name only what exists, and promise only hits that come."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.replay.in_process import invoke
from tests.ut.deploy.kustomize import render
from tests.ut.deploy.manifests import (
    DEPLOY,
    OVERLAYS,
    ROOT,
    add_component,
    dashboard_text,
    objects,
    rules,
    serve_config,
)
from vllm_ascend.prefix_cache_config import VARIABLES

GUIDE = (ROOT / "docs" / "deploy-on-a3.md").read_text()
ROLLOUT = (ROOT / "docs" / "rollout.md").read_text()
SWITCHES = {variable.name for variable in VARIABLES}


def test_the_panels_and_alerts_to_watch_exist():
    board = json.loads(dashboard_text())
    titles = {panel["title"] for panel in board["panels"]} | {board["title"]}
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    table = ROLLOUT.split("## What to watch")[1].split("## Roll back")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("|")][2:]
    watched = {name for row in rows for name in re.findall(r"\*([^*]+)\*", row[2])}
    alarmed = {name for row in rows for name in re.findall(r"`(\w+)`", row[3])}
    assert len(watched) > 10
    assert set(re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", ROLLOUT)) <= titles
    assert watched <= titles
    assert alarmed == alerts - {"EngineMetricsGone"}


@pytest.mark.parametrize("text", [GUIDE, ROLLOUT], ids=["deploy-on-a3", "rollout"])
def test_paths_of_the_tree_exist(text: str):
    for path in set(re.findall(r"\bdeploy/[\w./-]+\w", text)):
        assert (ROOT / path).exists(), path
    for page in re.findall(r"\]\(([\w-]+\.md)", text):
        assert (ROOT / "docs" / page).exists() or page == "troubleshooting.md", page


@pytest.mark.parametrize("text", [GUIDE, ROLLOUT], ids=["deploy-on-a3", "rollout"])
def test_workloads_and_services_in_commands_exist(text: str):
    named = {
        (body["kind"].lower(), body["metadata"]["name"])
        for overlay in OVERLAYS
        for body in objects(overlay)
    }
    used = set(re.findall(r"\b(deployment|service)/([\w-]+)", text))
    assert used
    assert used <= named


def test_every_step_of_the_rollout_is_a_line_of_the_canarys_switches():
    steps = re.findall(r"^\| (\d) \| `([A-Z0-9_]+=\w+)`", ROLLOUT, re.M)
    lines = (DEPLOY / "overlays/canary/switches.env").read_text()
    offered = re.findall(r"^# Step (\d).*\n#?(\w+=\w+)$", lines, re.M)
    assert steps == offered
    assert len(steps) == 8


@pytest.mark.parametrize("text", [GUIDE, ROLLOUT], ids=["deploy-on-a3", "rollout"])
def test_switches_are_spelled_right(text: str):
    named = set(re.findall(r"`(VLLM_(?:ASCEND_|PREFIX_|PIN_)\w+)", text))
    assert named <= SWITCHES


def test_blocks_of_the_guide_can_be_copied_as_they_are():
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, re.M | re.S)
    assert {language for language, _ in blocks} == {"bash"}
    for _, commands in blocks:
        assert not re.search(r"^\$ ", commands, re.M)
        done = subprocess.run(["bash", "-n"], input=commands, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_guide_names_the_labels_that_let_pods_in(tmp_path: Path):
    table = GUIDE.split("**Who may reach it.**")[1].split("**Rights.**")[0]
    named = set(re.findall(r"`([\w./-]+)=([\w-]+)` \|$", table, re.M))
    with_events = render(add_component("kv-events", tmp_path / "deploy") / "multi-node-pd")
    peers = [
        peer["podSelector"]["matchLabels"].items()
        for body in with_events
        if body["kind"] == "NetworkPolicy"
        for rule in body["spec"]["ingress"]
        for peer in rule["from"]
        if "podSelector" in peer
    ]
    own = {("app.kubernetes.io/name", "vllm-dsv4")}
    assert named == set().union(*peers) - own


def test_the_guides_say_what_was_not_run():
    assert "no pod\n    of it has ever started" in GUIDE
    assert "None of these steps has been taken on an NPU" in ROLLOUT


def test_the_first_hit_is_as_long_as_promised(tmp_path: Path):
    config = serve_config("single-node")
    assert "num_speculative_tokens: 1" in config
    (block_size,) = re.findall(r"^block-size: (\d+)$", config, re.M)
    done = invoke(
        *("replay", "--workload", "2:14000:14000:1", "--concurrency", "1", "--mtp", "1"),
        *("--block-size", block_size, "--variant", "best", "--out", str(tmp_path)),
    )
    assert done.exit_code == 0, done.output
    (workload,) = json.loads((tmp_path / "report.json").read_text())["workloads"]
    assert f"**{workload['runs'][0]['hit_tokens']:,}**" in GUIDE
