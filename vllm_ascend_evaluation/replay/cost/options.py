# SPDX-License-Identifier: Apache-2.0
"""The options that say how long a step takes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import typer

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.given_options import given_options
from vllm_ascend_evaluation.replay.cost.model import CostModel
from vllm_ascend_evaluation.replay.cost.stored import read_cost_model


def cost_model_of(context: typer.Context, variants: Iterable[str] | None) -> CostModel:
    """Return the model that ``--cost-model``, or ``--step-ms`` and ``--token-us``, ask for.

    Args:
        context: Of a command that has these options and ``--layout``.
        variants: As ``--variant`` has them; a file has to be of their layouts, too.

    Raises:
        BadInputError: Both were given, or the file is none that can be used.
    """
    options = context.params
    file: Path | None = options["cost_model"]
    if file is None:
        return CostModel(options["step_ms"], options["token_us"])
    given = given_options(context)
    wrong = [given[name] for name in ("step_ms", "token_us") if name in given]
    if wrong:
        raise BadInputError(f"--cost-model {file}: goes without {' and '.join(wrong)}")
    model = read_cost_model(file, options["layout"], "--layout")
    for variant in variants or ():
        _, of_its_own, layout = variant.partition("@")
        if of_its_own:
            read_cost_model(file, layout, f"--variant {variant}: layout")
    return model
