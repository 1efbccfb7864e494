# SPDX-License-Identifier: Apache-2.0
"""Tables and the picture of floods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.flood.results import Flood, Mixture
from vllm_ascend.core.policy.switches import DSV4_COMPRESSED_BLOCK_SIZES


def print_floods(floods: Sequence[Flood], console: Console) -> None:
    """Print a row per variant and length of the flood's prompts."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("variant", "block", "GiB", "flood prompts", "before", "half at", "nothing at"):
        table.add_column(name, justify="left" if name == "variant" else "right", overflow="fold")
    for flood in floods:
        table.add_row(
            flood.variant,
            str(flood.block_size),
            f"{flood.kv_gib:g}",
            f"{flood.prompt_tokens:,}",
            f"{flood.before:.2f} %",
            *(_count(flood.tokens_until(share)) for share in (0.5, 0.0)),
        )
    console.print(table)


def print_mixtures(mixtures: Sequence[Mixture], console: Console) -> None:
    """Print a row per variant, and a column per strength of the flood."""
    strengths = sorted({mixture.between * mixture.prompt_tokens for mixture in mixtures})
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("variant", overflow="fold")
    for name in ("block", "GiB", *(f"{tokens:,}" for tokens in strengths)):
        table.add_column(name, justify="right", overflow="fold")
    rates: dict[tuple[str, int, float], dict[int, float]] = {}
    for m in mixtures:
        row = rates.setdefault((m.variant, m.block_size, m.kv_gib), {})
        row[m.between * m.prompt_tokens] = m.hit_rate
    for (variant, block_size, kv_gib), row in rates.items():
        cells = (f"{row[tokens]:.2f} %" for tokens in strengths)
        table.add_row(variant, str(block_size), f"{kv_gib:g}", *cells)
    console.print(table)


def _count(tokens: int | None) -> str:
    return "-" if tokens is None else f"{tokens:,}"


def flood_png(floods: Sequence[Flood], path: Path) -> None:
    """Draw the hit rate over the tokens of a flood of the shortest prompts, per block size."""
    from vllm_ascend_evaluation.replay.report.colours import colours_of
    from vllm_ascend_evaluation.replay.report.figures import picture

    shortest = min(flood.prompt_tokens for flood in floods)
    lines = [flood for flood in floods if flood.prompt_tokens == shortest and flood.before]
    sizes = sorted({flood.block_size for flood in lines if _is_ours(flood)}, reverse=True)
    names = list(dict.fromkeys(flood.variant for flood in lines))
    looks = {
        name: {"color": colour, "linestyle": "--" if name.count("+") else "-"}
        for name, colour in colours_of(names).items()
    }
    with picture(path, width=9.6) as figure:
        panels = figure.subplots(1, len(sizes) or 1, sharey=True, squeeze=False)[0]
        for axes, size in zip(panels, sizes or [None], strict=True):
            for flood in lines:
                # What has another size altogether is drawn everywhere, to compare with.
                if flood.block_size == size or not _is_ours(flood):
                    tokens, rates = zip(*flood.points, strict=True)
                    look = {"linewidth": 2, "label": flood.variant, **looks[flood.variant]}
                    axes.plot([t / 1e6 for t in tokens], rates, **look)
            axes.set(xlabel="million tokens of the flood", ylim=(0, 104))
            axes.set_title(f"block size {size}", fontsize=10)
            axes.set_xlim(left=0)
        panels[0].set_ylabel("hit rate of normal traffic, %")
        handles = {line.get_label(): line for axes in panels for line in axes.get_lines()}
        figure.legend(
            handles.values(), handles, loc="outside upper left", ncols=4, frameon=False, fontsize=9
        )


def _is_ours(flood: Flood) -> bool:
    return flood.block_size in DSV4_COMPRESSED_BLOCK_SIZES
