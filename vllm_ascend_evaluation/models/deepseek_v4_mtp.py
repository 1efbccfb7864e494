# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4's MTP layer for vLLM's own speculative decoding, on the CPU.

Hugging Face does not have this layer, so its wiring is written here (from the DeepSeek-V3 report,
section 2.2, with hyper-connection streams); what it is wired from are Hugging Face's modules.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from transformers import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
    DeepseekV4DecoderLayer,
    DeepseekV4HyperHead,
    DeepseekV4RMSNorm,
    DeepseekV4RotaryEmbedding,
)
from vllm.config import VllmConfig
from vllm.sequence import IntermediateTensors

from vllm_ascend_evaluation.models.attention import PagedAttention
from vllm_ascend_evaluation.models.deepseek_v4 import hf_config, specs_of_model

CHECKPOINT_PREFIX = "mtp.0."
_ATTENTION_PREFIX = "mtp.0.attn"


class MtpLayer(nn.Module):
    """A sliding-window layer over the target's last streams and the next token's embedding.

    Args:
        config: The target's.
    """

    def __init__(self, config: DeepseekV4Config) -> None:
        super().__init__()
        config = mtp_config(config)
        self.enorm = DeepseekV4RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hnorm = DeepseekV4RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.e_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.h_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.block = DeepseekV4DecoderLayer(config, 0)
        self.hc_head = DeepseekV4HyperHead(config)
        self.norm = DeepseekV4RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class DeepSeekV4MTP(nn.Module):
    """The draft model that vLLM loads beside the target.

    Args:
        vllm_config: The engine's configuration, with the draft's as its model.
        prefix: Not used: the layer's caches have the names that Ascend gives them.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.config = hf_config(vllm_config)
        self.model = MtpLayer(self.config)
        self.model.rotary_emb = DeepseekV4RotaryEmbedding(self.config)
        self.model.block.self_attn = PagedAttention(
            mtp_config(self.config),
            0,
            specs_of_model(vllm_config, self.config),
            prefix=_ATTENTION_PREFIX,
        )
        # Both are the target's, which vLLM puts in their place.
        self.model.embed_tokens = nn.Embedding(self.config.vocab_size, self.config.hidden_size)
        self.lm_head = nn.Linear(self.config.hidden_size, self.config.vocab_size, bias=False)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return ``[num_tokens, hidden size]``."""
        return self.model.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        spec_step_idx: int = 0,
    ) -> torch.Tensor:
        """Run a drafting step.

        Args:
            input_ids: ``[num_tokens]``, the token behind each position.
            positions: ``[num_tokens]``.
            hidden_states: ``[num_tokens, streams * hidden size]``, of the target or of the step
                before.
            intermediate_tensors: Not used.
            inputs_embeds: ``[num_tokens, hidden size]`` instead of looking the tokens up.
            spec_step_idx: Which draft of a step; the one layer makes all of them.

        Returns:
            ``[num_tokens, streams * hidden size]``.
        """
        layer = self.model
        embeds = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        # The first token has no predecessor to be drafted from.
        embeds = torch.where(positions[:, None] == 0, 0, embeds)
        streams = hidden_states.view(len(positions), self.config.hc_mult, -1)
        streams = layer.h_proj(layer.hnorm(streams)) + layer.e_proj(layer.enorm(embeds))[:, None]
        ropes = {"main": layer.rotary_emb(embeds, position_ids=positions[None], layer_type="main")}
        drafted = layer.block(streams[None], input_ids=input_ids[None], position_embeddings=ropes)
        return drafted[0].flatten(1)

    def compute_logits(self, hidden_states: torch.Tensor, spec_step_idx: int = 0) -> torch.Tensor:
        """Return ``[num_rows, vocabulary]``."""
        streams = hidden_states.view(1, len(hidden_states), self.config.hc_mult, -1)
        return self.lm_head(self.model.norm(self.model.hc_head(streams))[0])

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the tensors named ``mtp.0.*``.

        Args:
            weights: All of the checkpoint.

        Returns:
            The names of all parameters.

        Raises:
            ValueError: The checkpoint lacks some of them.
        """
        own = {
            name.removeprefix(CHECKPOINT_PREFIX): tensor
            for name, tensor in weights
            if name.startswith(CHECKPOINT_PREFIX)
        }
        missing = [
            name
            for name in self.model.load_state_dict(own, strict=False).missing_keys
            if not name.startswith("embed_tokens")
        ]
        if missing:
            raise ValueError(
                f"the checkpoint has no MTP layer in this format: {CHECKPOINT_PREFIX}{missing[0]} "
                f"and {len(missing) - 1} others are missing"
            )
        return {name for name, _ in self.named_parameters()}


def mtp_config(config: DeepseekV4Config) -> DeepseekV4Config:
    """Return the configuration of the MTP layer alone: one sliding-window layer, routed."""
    fields = config.to_dict() | {
        "num_hidden_layers": 1,
        "layer_types": ["sliding_attention"],
        "mlp_layer_types": ["moe"],
    }
    layer = DeepseekV4Config.from_dict(fields)
    layer._experts_implementation = "eager"
    return layer
