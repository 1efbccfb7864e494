# SPDX-License-Identifier: Apache-2.0
"""What a reader of the numbers must know: reasons for which they may say less than they seem to."""

from __future__ import annotations

from vllm_ascend.regress.results import WARM_UPS, Accuracy, Measured, Performance

# A prompt's text is cut into tokens anew by the server, which need not give as many.
_MOST_DRIFT = 0.02


def notes_on(measured: Measured, baseline: Measured | None) -> list[str]:
    """Return the notes on a run and on how far it can be compared."""
    notes = [] if baseline is None else _on_targets(measured, baseline)
    if measured.performance is not None:
        notes += _on_performance(measured.performance)
    if measured.accuracy is not None:
        notes += _on_accuracy(measured.accuracy)
    return notes


def _on_targets(measured: Measured, baseline: Measured) -> list[str]:
    now, before = measured.target, baseline.target
    pairs = [("model", before.model, now.model), ("vLLM", before.vllm_version, now.vllm_version)]
    return [
        f"the baseline was measured with {what} {old or '?'}, this run with {new or '?'}"
        for what, old, new in pairs
        if old != new
    ]


def _on_performance(step: Performance) -> list[str]:
    notes = []
    wanted = step.settings.requests * step.settings.input_tokens
    sent, looked_up = step.times.prompt_tokens, step.cache.query_tokens
    sent_in_all = sent * (1 + WARM_UPS / step.settings.requests)
    if abs(sent - wanted) > _MOST_DRIFT * wanted:
        notes.append(
            f"the prompts had {sent:,} tokens, {wanted:,} were asked for: the tool's random "
            "texts are cut into tokens anew, and their common beginning may move with it"
        )
    if not looked_up:
        notes.append("the server looked nothing up: is its prefix cache on?")
    elif abs(looked_up - sent_in_all) > _MOST_DRIFT * sent_in_all:
        notes.append(
            f"the server looked up {looked_up:,} prompt tokens, the tool sent {sent_in_all:,.0f}: "
            "it had other clients meanwhile, or preempted requests"
        )
    if step.times.output_tokens != step.times.requests * step.settings.output_tokens:
        notes.append("not all answers had as many tokens as asked for")
    return notes


def _on_accuracy(step: Accuracy) -> list[str]:
    notes = []
    if step.unanswered:
        notes.append(
            f"{step.unanswered:,} of {step.settings.questions:,} texts have no answer in them, "
            "which counts as wrong"
        )
    if step.cut:
        notes.append(f"{step.cut:,} texts were cut at {step.settings.max_tokens:,} tokens")
    return notes
