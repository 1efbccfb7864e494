# SPDX-License-Identifier: Apache-2.0
"""The colour of a variant: the same in every picture of every report."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_ascend_evaluation.replay.results import ReplayReport

# Okabe and Ito's palette, which is told apart with any colour vision, and grey for what there was.
_OF_BUILT_IN = {
    "stock": "#8a97a3",
    "upstream-like": "#8a97a3",
    "retention-0": "#E69F00",
    "retention-auto": "#56B4E9",
    "partial": "#CC79A7",
    "pinned": "#D55E00",
    "best": "#0072B2",
}
# For all others, in their order; the first one is no built-in's.
_OTHERS = ("#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#D55E00", "#0072B2")
# No variant has it.
UNLIMITED = "#c9d3db"
# Of a server whose settings nobody knows.
SERVER = "#0072B2"


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """Return the colour of each name, in the order of the names.

    Built-in variants have colours of their own; only ``stock`` and ``upstream-like`` share one, of
    which the first has it where both are there. What is on another layout (``best@LAYOUT``) has
    that of its variant, unless that is there, too.
    """
    wanted = list(dict.fromkeys(names))
    chosen: dict[str, str] = {}
    for name, built_in in [*((n, n) for n in wanted), *((n, n.partition("@")[0]) for n in wanted)]:
        colour = _OF_BUILT_IN.get(built_in)
        if name not in chosen and colour is not None and colour not in chosen.values():
            chosen[name] = colour
    for name in wanted:
        free = [colour for colour in _OTHERS if colour not in chosen.values()]
        chosen.setdefault(name, free[0] if free else _OTHERS[len(chosen) % len(_OTHERS)])
    return {name: chosen[name] for name in wanted}


def variant_colours(report: ReplayReport) -> dict[str, str]:
    """Return the colour of every variant of a report."""
    names = dict.fromkeys(run.variant for w in report.workloads for run in w.runs)
    return colours_of(names)
