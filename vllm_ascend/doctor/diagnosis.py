# SPDX-License-Identifier: Apache-2.0
"""Runs the probes and puts together what they found."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vllm_ascend.deployment import is_checkout
from vllm_ascend.doctor import children, environment, layout, overlay, patches, versions
from vllm_ascend.doctor.findings import Diagnosis
from vllm_ascend.doctor.layout_child import LayoutRequest


def diagnose(
    environ: Mapping[str, str],
    *,
    checkout: Path | None = None,
    asked: LayoutRequest | None = None,
    has_connector: bool = False,
) -> Diagnosis:
    """Run every probe.

    Args:
        environ: The environment that serving would have.
        checkout: A vllm-ascend checkout to look at, instead of the one that serving imports.
        asked: The model to tell the layout for, if any.
        has_connector: It would be served with a KV connector.

    Raises:
        BadInputError: The model's configuration cannot be used.
    """
    # An invalid value is one finding; with it no engine could be built anyway.
    invalid = tuple(environment.check_values(environ))
    if invalid:
        asked = None
    package = children.find_serving_package(environ)
    with ThreadPoolExecutor(max_workers=2) as pool:
        serving = pool.submit(patches.ask_serving, environ)
        planned = pool.submit(layout.ask_layout, asked, environ, package) if asked else None
        answers = serving.result()
        answer = planned.result() if planned else {}

    facts = overlay.overlay_facts(checkout, package)
    looked_at = Path(facts.checkout) if facts.checkout else None
    found = versions.versions(environ, vllm=patches.serving_vllm(answers), checkout=looked_at)
    has_vllm = found[0].version is not None
    rows = patches.patch_rows(answers, environ, package)
    over_checkout = package is not None and is_checkout(package)
    findings = [
        *versions.check_versions(found, over_checkout=over_checkout),
        *overlay.check_overlay(facts, environ),
        *invalid,
        *environment.check_names(environ, patches.known_variables(answers, looked_at)),
        *environment.check_hash_seed(environ, has_connector=has_connector),
    ]
    if has_vllm:  # or all that could be said is that
        findings += patches.check_package(answers, package)
        findings += patches.check_patches(answers, rows, environ, package)
    if asked is not None and has_vllm:
        findings += layout.check_layout(answer, asked, environ, package)
    return Diagnosis(
        versions=found,
        overlay=facts,
        patches=rows,
        variables=environment.variable_rows(environ),
        layout=layout.layout_of(answer),
        findings=tuple(findings),
    )
