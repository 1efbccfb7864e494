# SPDX-License-Identifier: Apache-2.0
"""What a reader of the numbers must know: reasons for which they may say less than they seem to."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_ascend_evaluation.regress.hit_counts import (
    OUR_HITS,
    VLLMS_HITS,
    in_words,
    sources,
    why_unknown,
)
from vllm_ascend_evaluation.regress.judge import Verdict
from vllm_ascend_evaluation.regress.results import (
    LOOK_UPS,
    WARM_UPS,
    Accuracy,
    Measured,
    Performance,
)

# A prompt's text is cut into tokens anew by the server, which need not give as many.
_MOST_DRIFT = 0.02


def notes_on(measured: Measured, baseline: Measured | None) -> list[str]:
    """Return the notes on a run and on how far it can be compared."""
    notes = [] if baseline is None else _on_targets(measured, baseline)
    before = None if baseline is None else baseline.performance
    if measured.performance is not None:
        notes += _on_unknown_hits(measured.performance, before)
        notes += _on_performance(measured.performance)
    if measured.accuracy is not None:
        notes += _on_accuracy(measured.accuracy)
    return notes


def _on_targets(measured: Measured, baseline: Measured) -> list[str]:
    now, before = measured.target, baseline.target
    pairs = [("model", before.model, now.model), ("vLLM", before.vllm_version, now.vllm_version)]
    notes = [
        f"the baseline was measured with {what} {old or '?'}, this run with {new or '?'}"
        for what, old, new in pairs
        if old != new
    ]
    if measured.performance is not None and baseline.performance is not None:
        settings = measured.performance.settings, baseline.performance.settings
        loads, loads_before = (each.loads_in_words for each in settings)
        if loads != loads_before:
            notes.append(
                f"the baseline was measured with {loads_before}, this run with {loads}: medians of "
                "more loads vary less"
            )
        notes += _on_counting(measured.performance, baseline.performance)
    return notes


def _on_counting(now: Performance, before: Performance) -> list[str]:
    """Return a note if the hits of two runs were not counted alike."""
    if LOOK_UPS in (*sources(now), *sources(before)):
        which = "this run" if LOOK_UPS in sources(now) else "the baseline"
        return [
            f"the hit rate is not compared: {which} counts look-ups, and a request that waits is "
            "looked up again in every step; measure it anew"
        ]
    if sources(now) != sources(before):
        return [
            f"hits of the baseline were counted {in_words(before)}; those of this run "
            f"{in_words(now)}"
        ]
    return []


def _on_unknown_hits(now: Performance, before: Performance | None) -> list[str]:
    """Return a note if a run, or the baseline, has no hit rate."""
    if before is not None and not before.hit_rates:
        now, what = (now, "both runs") if not now.hit_rates else (before, "the baseline")
    elif not now.hit_rates:
        what = "this run"
    else:
        return []
    if before is None:
        return [f"the hit rate is not known: {why_unknown(now)}"]
    return [f"the hit rate could not be judged: of {what} it is not known, as {why_unknown(now)}"]


def notes_on_noise(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a note if there are verdicts that the noise alone could have made."""
    noisy = [
        f"{verdict.metric.title} {verdict.noise:,.2f} {verdict.change_unit}"
        for verdict in verdicts
        if verdict.noise is not None
        and verdict.allowed is not None
        and verdict.noise > abs(verdict.allowed)
    ]
    if not noisy:
        return []
    return [
        f"loads of the same server differ by more than what is allowed ({', '.join(noisy)}): a "
        "quieter machine or a larger --repeats makes the verdict mean more"
    ]


def _on_performance(step: Performance) -> list[str]:
    notes = []
    wanted = len(step.loads) * step.settings.requests * step.settings.input_tokens
    sent = step.total(lambda load: load.times.prompt_tokens)
    sent_in_all = sent * (1 + WARM_UPS / step.settings.requests)
    if abs(sent - wanted) > _MOST_DRIFT * wanted:
        notes.append(
            f"the prompts had {sent:,} tokens, {wanted:,} were asked for: the tool's random "
            "texts are cut into tokens anew, and their common beginning may move with it"
        )
    if step.hit_rates and not step.hit_tokens:
        notes.append("nothing was found in the prefix cache: is it on?")
    # Of look-ups nothing follows: a request that waits counts in every step.
    counted = step.total(lambda load: load.cache.prompt_tokens)
    is_of_the_tool = set(sources(step)) <= {OUR_HITS, VLLMS_HITS}
    if is_of_the_tool and abs(counted - sent_in_all) > _MOST_DRIFT * sent_in_all:
        notes.append(
            f"the server counted {counted:,} prompt tokens, the tool sent {sent_in_all:,.0f}: "
            "it had other clients meanwhile, or cuts the prompts' text into other tokens"
        )
    expected = step.settings.requests * step.settings.output_tokens
    if any(load.times.output_tokens != expected for load in step.loads):
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
