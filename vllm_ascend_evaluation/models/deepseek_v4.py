# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4 for vLLM's CPU platform: Hugging Face's model with its attention paged.

Norms, experts, routing, hyper-connections, projections and ropes are transformers' modules; only
:class:`.attention.PagedAttention` takes the place of the attention, so that
vLLM's KV cache manager, and this project's, decide where every row lies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
import transformers
from torch import nn
from transformers import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4Model
from vllm.config import VllmConfig
from vllm.sequence import IntermediateTensors

from vllm_ascend.core.layout.block_sizes import dsv4_compressed_block_size
from vllm_ascend.core.layout.dsv4_layout import C4_RATIO, C128_RATIO
from vllm_ascend.core.layout.dsv4_specs import Dsv4Model, Dsv4Specs, ascend_specs
from vllm_ascend.core.ring_tails.layout import carrying
from vllm_ascend.prefix_cache_config import load_config
from vllm_ascend_evaluation.models.attention import PagedAttention
from vllm_ascend_evaluation.models.ring_cache import has_rings


class DeepseekV4ForCausalLM(nn.Module):
    """DeepSeek-V4 as vLLM runs a model: tokens of many requests in one row, caches in pages.

    Args:
        vllm_config: The engine's configuration.
        prefix: Where the model sits in a larger one; it stands alone here.

    Raises:
        ValueError: The model's compression ratios are not 4 and 128, or the block sizes
            contradict each other.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        import vllm_ascend.patch.worker  # noqa: F401 - compressed rows need its block tables

        self.model_config = vllm_config.model_config
        self.config = hf_config(vllm_config)
        specs = specs_of_model(vllm_config, self.config)
        self.model = DeepseekV4Model(self.config)
        for index, layer in enumerate(self.model.layers):
            layer.self_attn = PagedAttention(
                self.config, index, specs, prefix=f"model.layers.{index}.attn"
            )
        self.lm_head = nn.Linear(self.config.hidden_size, self.config.vocab_size, bias=False)
        self._last_streams: torch.Tensor | None = None

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return ``[num_tokens, hidden size]``."""
        return self.model.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run a step.

        Args:
            input_ids: ``[num_tokens]``.
            positions: ``[num_tokens]``, every token's place in its request.
            intermediate_tensors: Not used: the model does not run in pipeline stages.
            inputs_embeds: ``[num_tokens, hidden size]`` instead of looking the tokens up.

        Returns:
            ``[num_tokens, hidden size]``.
        """
        model = self.model
        embeds = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        rope_names = ("main", "compress")
        ropes = {
            name: model.rotary_emb(embeds, position_ids=positions[None], layer_type=name)
            for name in rope_names
        }
        streams = embeds[None, :, None].expand(-1, -1, self.config.hc_mult, -1).contiguous()
        for layer in model.layers:
            streams = layer(streams, input_ids=input_ids[None], position_embeddings=ropes)
        self._last_streams = streams[0].flatten(1)
        return model.norm(model.hc_head(streams))[0]

    def get_mtp_target_hidden_states(self) -> torch.Tensor | None:
        """Return what the MTP layer goes on from: ``[num_tokens, streams * hidden size]``."""
        return self._last_streams

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return ``[num_rows, vocabulary]``."""
        return self.lm_head(hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the checkpoint the way Hugging Face does, old and new names alike.

        Args:
            weights: Not read: transformers opens the checkpoint and converts its names.

        Returns:
            The names of all parameters.
        """
        loaded = transformers.DeepseekV4ForCausalLM.from_pretrained(
            self.model_config.model,
            revision=self.model_config.revision,
            config=self.config,
            dtype=self.model_config.dtype,
        )
        self.load_state_dict(loaded.state_dict(), assign=True)
        return {name for name, _ in self.named_parameters()}


def hf_config(vllm_config: VllmConfig) -> DeepseekV4Config:
    """Return the model's configuration as transformers reads it (vLLM keeps the raw fields)."""
    fields = vllm_config.model_config.hf_config.to_dict()
    fields.pop("model_type", None)  # vLLM renames that of a draft model
    if fields.get("rope_scaling") is None:
        fields.pop("rope_scaling", None)
    config = DeepseekV4Config.from_dict(fields)
    config._experts_implementation = "eager"  # the others round differently for every batch size
    return config


def specs_of_model(vllm_config: VllmConfig, config: DeepseekV4Config) -> Dsv4Specs:
    """Return what the caches of the model's layers hold.

    Raises:
        ValueError: See :class:`DeepseekV4ForCausalLM`.
    """
    rows = dsv4_compressed_block_size(load_config(), vllm_config.cache_config)
    specs = ascend_specs(rows, _row_sizes(config, vllm_config.model_config.dtype))
    return replace(specs, window=carrying(specs.window)) if has_rings(vllm_config) else specs


def _row_sizes(config: DeepseekV4Config, dtype: torch.dtype) -> Dsv4Model:
    ratios = sorted(config.compress_rates.values())
    if ratios != [C4_RATIO, C128_RATIO]:
        raise ValueError(f"compress_rates ({config.compress_rates}) must be {C4_RATIO} and 128")
    return Dsv4Model(
        head_size=config.head_dim,
        indexer_head_size=config.index_head_dim,
        sliding_window=config.sliding_window,
        dtype=dtype,
        # Ascend stores int8 keys and a scale; here scores must be comparable with Hugging Face's.
        indexer_row={"dtype": dtype},
    )
