# SPDX-License-Identifier: Apache-2.0
"""The file that keeps a cost model, and where it was fitted."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.cost.model import TERMS, CostModel

# Another meaning of a term, or another set of them, is another version.
VERSION = 2


@dataclass(frozen=True)
class StoredCostModel:
    """A cost model with where it is from.

    Attributes:
        model: The model.
        layout: Of the model that was served, as :func:`layout_key` names it.
        host: That served it.
        vllm: The release that served it.
        served_model: Its name.
        settings: How it was served and measured.
        num_fitted: Measurements that it was fitted to.
        error_percent: ``num_points`` kept apart, and ``median``, ``p90`` and ``worst`` of the
            absolute error on them.
        points: Every measurement, and what the model says of it.
        complete: Whether it was measured to its end.
    """

    model: CostModel
    layout: str
    host: str = "unknown"
    vllm: str = "unknown"
    served_model: str = "unknown"
    settings: dict[str, Any] = field(default_factory=dict)
    num_fitted: int = 0
    error_percent: dict[str, float] = field(default_factory=dict)
    points: tuple[dict[str, float], ...] = ()
    complete: bool = True

    def to_json(self) -> str:
        """Return the contents of the file."""
        return json.dumps({"cost_model_version": VERSION, **asdict(self)}, indent=2) + "\n"


def layout_key(layout: str) -> str:
    """Return what tells layouts apart, wherever their files are.

    Args:
        layout: As ``--layout`` takes it: a name, or a Hugging Face config or its folder.
    """
    path = Path(layout)
    path = path / "config.json" if path.is_dir() else path
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return layout
    kind = content.get("model_type", "model") if isinstance(content, dict) else "model"
    text = json.dumps(content, sort_keys=True)
    return f"{kind}:{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def read_cost_model(path: Path, layout: str, whose: str = "--layout") -> CostModel:
    """Return the model of a file.

    Args:
        path: The file.
        layout: As ``--layout`` has it; the model has to be one of it.
        whose: Who says so, for errors.

    Raises:
        BadInputError: It cannot be read, is none, of another version or of another layout.
    """
    option = f"--cost-model {path}"
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadInputError(f"{option}: cannot be read as JSON ({error})") from error
    if not isinstance(content, dict) or "cost_model_version" not in content:
        raise BadInputError(f"{option}: no cost model; `calibrate` writes one")
    version = content["cost_model_version"]
    if version != VERSION:
        raise BadInputError(f"{option}: version {version}; this release reads {VERSION}")
    fitted, asked = content.get("layout"), layout_key(layout)
    if fitted != asked:
        raise BadInputError(f"{option}: fitted to layout {fitted}, and {whose} is {asked}")
    return CostModel(**_terms(content.get("model"), option))


def _terms(found: object, option: str) -> dict[str, float]:
    if not isinstance(found, dict) or set(found) != set(TERMS):
        raise BadInputError(f"{option}: expected the terms {', '.join(TERMS)}")
    for name, value in found.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < math.inf:
            raise BadInputError(f"{option}: {name} is {value!r}; expected a number of at least 0")
    if not any(found.values()):
        raise BadInputError(f"{option}: every term is 0, so no step would take any time")
    return found
