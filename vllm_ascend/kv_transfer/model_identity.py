# SPDX-License-Identifier: Apache-2.0
"""What makes two engines compute the same rows of the same tokens: weights and settings.

Engines that read each other's rows compare it, or have it in the names of what they share.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from vllm import __version__ as vllm_version
from vllm.config import ModelConfig, VllmConfig

from vllm_ascend.deployment import vllm_ascend_version
from vllm_ascend.kv_transfer.weights_fingerprint import (
    NoWeightsError,
    configuration_digest,
    fingerprint,
)

# Fields of vLLM's hash of a model that say where it lies, or what the files say better: workers may
# change vLLM's copy of config.json while they load.
_NOT_HASHED = (
    "code_revision",
    "encoder_config",
    "generation_config",
    "hf_config",
    "hf_image_processor_config",
    "hf_text_config",
    "model",
    "model_weights",
    "override_generation_config",
    "revision",
)
# What vLLM leaves out of its hash of the computation graph, and rows depend on.
_MULTIMODAL_FIELDS = ("mm_processor_kwargs", "media_io_kwargs")
_DUMMY = "dummy"


@dataclass(frozen=True)
class ModelIdentity:
    """What rows depend on, beside tokens and layout. Equal identities mean equal rows.

    Attributes:
        weights: Names configuration and weights; empty if nobody can tell what they are.
        drafts: The same of a draft model, behind its method; empty without one.
        settings: Names options that change what is computed: quantisation, overrides, scales.
        versions: Of vLLM and vllm-ascend, and where attention is computed.
        why_unknown: Why weights are not known, in words; empty if they are.
    """

    weights: str
    drafts: str
    settings: str
    versions: tuple[str, ...]
    why_unknown: str

    def __str__(self) -> str:
        """Return the weights' name, or why they have none, for a log."""
        return self.weights or f"not known: {self.why_unknown}"


def model_identity(vllm_config: VllmConfig) -> ModelIdentity:
    """Return what an engine computes with; the same in its scheduler and on all its ranks.

    It reads the model's folder: seconds for hundreds of GB, see ``weights_fingerprint``.
    """
    model, load = vllm_config.model_config, vllm_config.load_config
    speculative = vllm_config.speculative_config
    draft = getattr(speculative, "draft_model_config", None)
    why_unknown = [*_why_not_in_files(vllm_config), *_why_late(vllm_config)]
    weights = "" if why_unknown else _name_of(model, load.download_dir, why_unknown)
    drafts = "" if speculative is None else str(speculative.method)
    if draft is not None and not why_unknown:
        drafts = f"{drafts} {_name_of(draft, load.download_dir, why_unknown)}"
    return ModelIdentity(
        weights="" if why_unknown else weights,
        drafts=drafts,
        settings=_digest(list(_settings(vllm_config))),
        versions=_versions(vllm_config),
        why_unknown="; ".join(why_unknown),
    )


def _why_not_in_files(vllm_config: VllmConfig) -> Iterator[str]:
    """Yield why weights are not those of the model's files."""
    if vllm_config.load_config.load_format == _DUMMY:
        yield "--load-format dummy makes them at random"
    if getattr(vllm_config.model_config, "model_weights", ""):
        yield "they are streamed from another place"
    if callable(vllm_config.model_config.hf_overrides):
        yield "--hf-overrides is a function"


def _why_late(vllm_config: VllmConfig) -> Iterator[str]:
    """Yield why rows depend on what comes behind the start of the engine."""
    if getattr(vllm_config, "weight_transfer_config", None) is not None:
        yield "--weight-transfer-config brings others later"
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        yield "--calculate-kv-scales takes the scales from the first prompts"


def _name_of(model: ModelConfig, cache_folder: str | None, why_unknown: list[str]) -> str:
    """Return the name of a model's files; without them, add the reason."""
    try:
        return fingerprint(_folder(model, cache_folder))
    except (NoWeightsError, OSError) as error:
        why_unknown.append(str(error))
    return ""


def _folder(model: ModelConfig, cache_folder: str | None) -> Path:
    """Return where a model's files lie on this machine: its path, or the hub's cache.

    Raises:
        NoWeightsError: They are not here.
    """
    path = Path(model.model)
    if path.exists():
        return path
    try:
        found = snapshot_download(
            model.model, revision=model.revision, cache_dir=cache_folder, local_files_only=True
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, ValueError) as error:
        raise NoWeightsError(f"{model.model} is no folder, nor in the hub's cache") from error
    return Path(found)


def _settings(vllm_config: VllmConfig) -> Iterator[Any]:
    """Yield what changes what is computed, each with a stable ``repr``."""
    model, load = vllm_config.model_config, vllm_config.load_config
    speculative = vllm_config.speculative_config
    for config in (model, getattr(speculative, "draft_model_config", None)):
        if config is not None:
            yield _vllms_hash(config)
            yield _as_json(config.hf_overrides)
            yield configuration_digest(Path(config.model))
    multimodal = getattr(model, "multimodal_config", None)
    yield [_as_json(getattr(multimodal, name, None)) for name in _MULTIMODAL_FIELDS]
    yield load.load_format if load.load_format == _DUMMY else ""
    yield model.seed if load.load_format == _DUMMY else 0
    yield _as_json(load.model_loader_extra_config)
    yield bool(getattr(vllm_config.cache_config, "calculate_kv_scales", False))


def _vllms_hash(model: ModelConfig) -> str:
    """Return vLLM's own hash of a model's settings, wherever the model lies."""
    anywhere = copy.copy(model)
    for name in _NOT_HASHED:
        if hasattr(anywhere, name):
            object.__setattr__(anywhere, name, None)
    return anywhere.compute_hash()


def _versions(vllm_config: VllmConfig) -> tuple[str, ...]:
    attention = getattr(vllm_config, "attention_config", None)
    return (
        vllm_version,
        vllm_ascend_version() or "",
        str(vllm_config.device_config.device_type),
        str(getattr(attention, "backend", None)),
    )


def _as_json(value: Any) -> str:
    """Return a value's JSON; of functions and classes, as vLLM's own overrides are, the name."""
    return json.dumps(value, sort_keys=True, default=lambda x: getattr(x, "__qualname__", repr(x)))


def _digest(value: Any) -> str:
    return sha256(repr(value).encode()).hexdigest()[:32]
