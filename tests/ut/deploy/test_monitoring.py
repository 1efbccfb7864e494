# SPDX-License-Identifier: Apache-2.0
"""Alerts and dashboard: real PromQL over metrics that vLLM 0.20.2 or this project exports."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import markdown
import promql_parser
import pytest
import vllm

from tests.ut.deploy.manifests import (
    DEPLOY,
    OVERLAYS,
    ROOT,
    dashboard_text,
    engines,
    objects,
    rules,
)
from vllm_ascend.dp_routing.stats import REASONS
from vllm_ascend.metrics import prometheus as exporter
from vllm_ascend.metrics import routing as routing_exporter
from vllm_ascend.tier import prometheus as of_tier

# Ours, with the values of their labels beside vLLM's model_name and engine.
OUR_GAUGES = {
    "vllm_ascend:kv_cache_blocks": {
        "tier": {"used", "scratch", "spare", "cached", "protected", "pinned"}
    },
    "vllm_ascend:reserved_blocks": {},
}
OUR_COUNTERS = {
    "vllm_ascend:kv_cache_evictions_total": {"tier": {"spare", "cached", "protected", "pinned"}},
    "vllm_ascend:partial_hits_total": {},
    "vllm_ascend:copied_blocks_total": {},
    "vllm_ascend:kept_boundaries_total": {"kind": {"replay", "finish", "interval", "junction"}},
    "vllm_ascend:junction_misses_total": {},
    "vllm_ascend:lost_prompts_total": {},
    "vllm_ascend:passed_requests_total": {},
    "vllm_ascend:held_steps_total": {},
    "vllm_ascend:dp_choices_total": {"reason": {"cache", "load", "client", "vllm"}},
    "vllm_ascend:dp_expected_hit_tokens_total": {},
    "vllm_ascend:dp_hit_tokens_total": {},
    "vllm_ascend:dp_message_gaps_total": {},
    "vllm_ascend:dp_prediction_error_tokens_total": {},
    "vllm_ascend:dp_predictions_total": {"outcome": {"exact", "other"}},
    "vllm_ascend:tier_hit_tokens_total": {},
    "vllm_ascend:tier_loads_total": {},
    "vllm_ascend:tier_failed_loads_total": {},
    "vllm_ascend:tier_loaded_bytes_total": {},
    "vllm_ascend:tier_stored_bytes_total": {},
    "vllm_ascend:tier_evictions_total": {},
    "vllm_ascend:tier_not_stored_total": {
        "why": {"full", "buffers", "store", "failed_step", "load_failed"}
    },
    "vllm_ascend:tier_unusable_total": {
        "why": {"gone", "torn", "foreign", "changed", "late", "error"}
    },
    "vllm_ascend:tier_pauses_total": {},
    "vllm_ascend:tier_disk_written_bytes_total": {},
    "vllm_ascend:tier_disk_read_bytes_total": {},
    "vllm_ascend:tier_disk_evictions_total": {},
    "vllm_ascend:tier_disk_not_written_total": {},
    "vllm_ascend:tier_disk_not_read_total": {},
    "vllm_ascend:tier_disk_pauses_total": {},
}
OUR_HISTOGRAMS = (
    "vllm_ascend:prefix_hit_tokens",
    "vllm_ascend:prefix_lookup_seconds",
    "vllm_ascend:dp_choice_seconds",
    "vllm_ascend:tier_load_seconds",
    "vllm_ascend:tier_lookup_seconds",
)
# Where alerts look for the documentation; a placeholder, as the image's registry.
RUNBOOKS = "https://docs.example.com/vllm-ascend-backport/"
# Prometheus' own, about a scrape.
OTHERS = {"up"}
# What our PodMonitors add, and what Prometheus does.
TARGET_LABELS = {"namespace", "pod", "track", "role"}


@cache
def vllm_metrics() -> frozenset[str]:
    """Return the series names that vLLM's own sources register.

    Read from the sources, not from a registry: which metrics exist depends on the model served.
    """
    names: set[str] = set()
    root = Path(vllm.__file__).parent
    for part in ("v1/metrics/loggers.py", "v1/spec_decode/metrics.py"):
        for node in ast.walk(ast.parse((root / part).read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                values = {k.arg: k.value for k in node.keywords}
                name = values.get("name")
                if isinstance(name, ast.Constant) and str(name.value).startswith("vllm:"):
                    names |= series(str(name.value), node.func.attr)
    return frozenset(names)


def series(name: str, constructor: str) -> set[str]:
    """Return what a metric is called when it is scraped."""
    if "histogram" in constructor:
        return {f"{name}_{suffix}" for suffix in ("bucket", "sum", "count")}
    if "counter" in constructor:
        return {f"{name.removesuffix('_total')}_total"}
    return {name}


def our_metrics() -> set[str]:
    """Return the series names of this project."""
    return {
        *OUR_GAUGES,
        *OUR_COUNTERS,
        *(found for name in OUR_HISTOGRAMS for found in series(name, "histogram")),
    }


def panels() -> list[dict[str, Any]]:
    """Return the dashboard's panels."""
    return json.loads(dashboard_text())["panels"]


def queries(panel: dict[str, Any]) -> list[str]:
    """Return a panel's PromQL, with Grafana's interval filled in."""
    targets = panel.get("targets", [])
    return [target["expr"].replace("$__rate_interval", "5m") for target in targets]


def expressions() -> list[tuple[str, str]]:
    """Return every PromQL expression, with the alert, record or panel that it belongs to."""
    found = [(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]
    found += [(panel["title"], expr) for panel in panels() for expr in queries(panel)]
    return found


each_expression = pytest.mark.parametrize(
    "expression", [expr for _, expr in expressions()], ids=[name for name, _ in expressions()]
)


def selectors(expression: str) -> list[promql_parser.VectorSelector]:
    """Return every series selector of an expression."""
    found: list[promql_parser.VectorSelector] = []

    def visit(node: promql_parser.Expr) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        elif isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)
        return True

    promql_parser.walk(promql_parser.parse(expression), pre_visit=visit)
    # A matrix selector and the vector selector in it may both be visited.
    return list({str(node): node for node in found}.values())


def test_vllms_names_are_found_in_its_sources():
    assert {
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:request_time_per_output_token_seconds_bucket",
        "vllm:iteration_tokens_total_bucket",
    } <= vllm_metrics()


def test_our_names_and_label_values_are_those_exported():
    made = [
        [argument.value for argument in call.args[:2] if isinstance(argument, ast.Constant)]
        for module in (exporter, routing_exporter)
        for call in ast.walk(ast.parse(Path(module.__file__).read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("self._make", "make")
    ]
    made += [[m.kind.__name__.lower(), f"tier_{m.name}"] for m in of_tier.METRICS]
    # One call makes all that an update's fields are added to.
    made = [names for names in made if names[1:]]
    made += [["counter", name] for name in exporter._COUNTERS]
    exported = {found for kind, name in made for found in series(f"vllm_ascend:{name}", kind)}
    assert exported == our_metrics()
    for metric in of_tier.METRICS:
        if metric.label:
            known = OUR_COUNTERS[f"vllm_ascend:tier_{metric.name}_total"]
            assert known == {metric.label: set(metric.values)}
    tiers = {**OUR_GAUGES, **OUR_COUNTERS}
    assert tiers["vllm_ascend:kv_cache_blocks"]["tier"] == set(exporter.TIERS)
    assert tiers["vllm_ascend:kv_cache_evictions_total"]["tier"] == set(exporter.EVICTED_TIERS)
    assert tiers["vllm_ascend:kept_boundaries_total"]["kind"] == set(exporter.KINDS)
    assert tiers["vllm_ascend:dp_choices_total"]["reason"] == set(REASONS)
    assert tiers["vllm_ascend:dp_predictions_total"]["outcome"] == set(routing_exporter.OUTCOMES)


@each_expression
def test_every_series_exists(expression: str):
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    known = vllm_metrics() | our_metrics() | recorded | OTHERS
    used = {node.name for node in selectors(expression)}
    assert used
    assert used <= known


@each_expression
def test_counters_are_read_as_rates(expression: str):
    for name in {node.name for node in selectors(expression)}:
        if name.endswith(("_total", "_bucket")):
            bare = re.findall(
                rf"(\w+)?\(?{re.escape(name)}(?:\{{[^}}]*\}})?(\[[^]]*\])?", expression
            )
            assert all(function in ("rate", "increase") and window for function, window in bare)


@each_expression
def test_labels_take_only_values_that_exist(expression: str):
    for node in selectors(expression):
        allowed = {**OUR_GAUGES, **OUR_COUNTERS}.get(node.name, {})
        for matcher in node.matchers.matchers:
            if matcher.name in allowed:
                assert matcher.value in allowed[matcher.name]


def test_every_metric_of_ours_is_on_the_dashboard():
    shown = {s.name for panel in panels() for expr in queries(panel) for s in selectors(expr)}
    wanted = {*OUR_GAUGES, *OUR_COUNTERS, *(f"{name}_bucket" for name in OUR_HISTOGRAMS)}
    assert wanted <= shown


def test_alerts_have_unique_names_and_say_what_to_do():
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}


@cache
def anchors(page: str) -> frozenset[str]:
    """Return the anchors of a page as the documentation site writes them."""
    text = (ROOT / "docs" / page).with_suffix(".md").read_text()
    converter = markdown.Markdown(extensions=["toc", "pymdownx.superfences"])
    return frozenset(re.findall(r'<h\d id="([^"]+)"', converter.convert(text)))


def test_every_alert_leads_to_what_the_documentation_says_of_it():
    for rule in (rule for rule in rules() if "alert" in rule):
        page, anchor = rule["annotations"]["runbook_url"].removeprefix(RUNBOOKS).split("#")
        assert page.endswith(".html"), rule["alert"]
        assert anchor in anchors(page), rule["alert"]


def test_hit_rates_are_made_of_what_counts_a_request_once():
    """vLLM adds to queries and hits at every look-up, so while a request waits, too."""
    made_of = {node.name for _, expression in expressions() for node in selectors(expression)}
    assert not made_of & {"vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"}
    ratios = [
        expr for name, expr in expressions() if "hit_ratio:" in name or name[:8] == "Hit rate"
    ]
    for expression in ratios:
        if names := {node.name for node in selectors(expression)} & vllm_metrics():
            assert names == {"vllm:prompt_tokens_by_source_total", "vllm:prompt_tokens_total"}
        for node in selectors(expression):
            # A decode pod gets its prompts from prefill, and would count them as misses.
            said = {str(matcher) for matcher in node.matchers.matchers}
            assert any("decode" in matcher for matcher in said), expression


def test_an_alert_names_only_labels_that_its_result_has():
    for rule in rules():
        text = " ".join(rule.get("annotations", {}).values())
        for label in re.findall(r"\$labels\.(\w+)", text):
            assert label in TARGET_LABELS | {"engine"}
            assert re.search(rf"by \([^)]*\b{label}\b", rule["expr"]) or "up{" in rule["expr"]


def test_pod_labels_that_queries_use_are_put_on_the_series():
    for body in objects("monitoring"):
        if body["kind"] == "PodMonitor":
            assert body["spec"]["podTargetLabels"] == ["track", "role"]
    for overlay in OVERLAYS:
        assert all({"track", "role"} <= w.labels.keys() for w in engines(overlay))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_server_is_scraped_once(overlay: str):
    monitors = [b["spec"] for b in objects("monitoring") if b["kind"] == "PodMonitor"]
    index = "leaderworkerset.sigs.k8s.io/worker-index"
    for engine in engines(overlay):
        grouped = engine.body["kind"] == "LeaderWorkerSet"
        pods = [engine.labels | {index: str(i)} for i in range(2)] if grouped else [engine.labels]
        scraped = [pod for pod in pods for monitor in monitors if selects(monitor["selector"], pod)]
        assert scraped == pods[:1]
    ports = {e["port"] for monitor in monitors for e in monitor["podMetricsEndpoints"]}
    assert ports <= {port["name"] for e in engines(overlay) for port in e.container["ports"]}


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a label selector takes a pod."""
    absent = [e["key"] for e in selector.get("matchExpressions", [])]
    assert all(e["operator"] == "DoesNotExist" for e in selector.get("matchExpressions", []))
    return selector["matchLabels"].items() <= labels.items() and not set(absent) & labels.keys()


def test_panels_have_unique_ids_and_titles_and_do_not_overlap():
    assert len({panel["id"] for panel in panels()}) == len(panels())
    assert len({panel["title"] for panel in panels()}) == len(panels())
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells


def test_the_dashboard_can_be_narrowed_by_every_label_of_a_pod():
    variables = json.loads(dashboard_text())["templating"]["list"]
    names = {variable["name"] for variable in variables}
    own = {"namespace", "model_name", "engine", "track", "role", "pod"}
    assert names == {"datasource", *own}
    for panel in panels():
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] == "${datasource}"
        for node in (node for expr in queries(panel) for node in selectors(expr)):
            narrowed = {(m.name, m.value) for m in node.matchers.matchers}
            assert {(name, f"${name}") for name in own} <= narrowed


def test_panels_name_only_alerts_that_exist():
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    for panel in panels():
        named = re.search(r"Alerts?: ([\w, ]+)\.", panel.get("description", ""))
        if named:
            assert set(named[1].split(", ")) <= alerts
    described = " ".join(panel.get("description", "") for panel in panels())
    assert alerts - set(re.findall(r"\w+", described)) == {"EngineMetricsGone"}


def test_the_dashboard_reaches_grafana_as_it_is_in_the_file():
    (body,) = (b for b in objects("monitoring") if b["kind"] == "ConfigMap")
    assert body["metadata"]["labels"] == {"grafana_dashboard": "1"}
    assert body["data"]["dashboard.json"] == (DEPLOY / "monitoring/dashboard.json").read_text()
