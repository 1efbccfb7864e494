# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend traffic``: lengths, sessions and cache bounds of workloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.box import MARKDOWN
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from vllm_ascend.command_line.ends import bad_input_ends
from vllm_ascend_evaluation.replay.commands import GIB, sources_of
from vllm_ascend_evaluation.replay.curves.lines import BOUND_BLOCK_SIZE, BOUND_BLOCK_TOKENS
from vllm_ascend_evaluation.replay.options import (
    MAX_KV_GIB,
    MaxOutputTokens,
    MaxRequests,
    Seed,
    Tokenizer,
)
from vllm_ascend_evaluation.replay.statistics import Spread, TrafficStatistics, measure
from vllm_ascend_evaluation.replay.workloads import MODELS

_KV_GIB = (8.0, 16.0, 32.0)


def traffic(
    workload: Annotated[
        list[str] | None,
        typer.Option(
            help="As for replay; may be given several times.", show_default=", ".join(MODELS)
        ),
    ] = None,
    kv_gib: Annotated[
        list[float] | None,
        typer.Option(
            help="Memory of LRU and Belady in GiB, several times; by default 8, 16 and 32.",
            min=0.001,
            max=MAX_KV_GIB,
        ),
    ] = None,
    max_requests: MaxRequests = None,
    max_output_tokens: MaxOutputTokens = None,
    tokenizer: Tokenizer = None,
    seed: Seed = 0,
) -> None:
    """Describe workloads: lengths, sessions, and what LRU, Belady and no limit would hit."""
    with bad_input_ends():
        limits = (None, max_requests, max_output_tokens)
        sources = sources_of(workload or MODELS, seed, *limits, tokenizer)
        workloads = [source.load() for source in sources]
        block_bytes = _bytes_per_block()
        capacities = {gib: int(gib * GIB) // block_bytes for gib in kv_gib or _KV_GIB}
        progress = Console(stderr=True, emoji=False)
        measured = [
            measure(each, BOUND_BLOCK_TOKENS, list(capacities.values()))
            for each in track(workloads, "reading", console=progress, transient=True)
        ]
    # As wide as it needs to be: it shall be ready to be pasted into a page.
    Console(emoji=False, width=30 + 20 * (len(measured) + 1)).print(_table(measured, capacities))


def _bytes_per_block() -> int:
    """Return the bytes of one block of the A3 pool at block size 128, its MTP layer included."""
    # Here, not above: the commands start without the seconds that importing vLLM takes.
    from vllm_ascend.core.layout.kv_cache_groups import (
        bytes_per_block,
        group_specs_by_kind,
        split_into_groups,
    )
    from vllm_ascend.dry_run.layouts import dsv4_flash_a3

    layout = dsv4_flash_a3(BOUND_BLOCK_SIZE)
    return bytes_per_block(split_into_groups(group_specs_by_kind(layout.specs)))


def _table(measured: Sequence[TrafficStatistics], capacities: Mapping[float, int]) -> Table:
    """Return a row per statistic, a column per workload."""
    table = Table(box=MARKDOWN)
    table.add_column("", no_wrap=True)
    for each in measured:
        table.add_column(escape(each.name), justify="right", no_wrap=True)
    columns = [_cells(each, capacities) for each in measured]
    for label in columns[0]:
        table.add_row(label, *(cells[label] for cells in columns))
    return table


def _cells(of: TrafficStatistics, capacities: Mapping[float, int]) -> dict[str, str]:
    lru = {f"LRU, {gib:g} GiB, %": of.lru[blocks] for gib, blocks in capacities.items()}
    best = {f"Belady, {gib:g} GiB, %": of.belady[blocks] for gib, blocks in capacities.items()}
    rates = {"unlimited cache, %": of.unlimited, **lru, **best}
    return {
        "requests": f"{of.num_requests:,}",
        "minutes": "-" if of.duration_s is None else f"{of.duration_s / 60:.0f}",
        "prompt tokens: mean, median": _middle(of.prompt_tokens),
        "prompt tokens: p90, longest": _end(of.prompt_tokens),
        "answer tokens: mean, median": _middle(of.output_tokens),
        "answer tokens: p90, longest": _end(of.output_tokens),
        "requests per session: mean, median": _middle(of.session_requests),
        "go on with an earlier request, %": f"{100 * of.continued:.1f}",
        "seconds since that: median, p90": _gap(of.gap_s),
        **{label: f"{rate:.2f}" for label, rate in rates.items()},
    }


def _middle(spread: Spread | None) -> str:
    return "-" if spread is None else f"{_number(spread.mean)}, {_number(spread.median)}"


def _end(spread: Spread) -> str:
    return f"{spread.p90:,.0f}, {spread.largest:,.0f}"


def _gap(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median:,.0f}, {spread.p90:,.0f}"


def _number(value: float) -> str:
    """Return it with one digit behind the point where that matters."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
