# SPDX-License-Identifier: Apache-2.0
"""A real vLLM scheduler without a model: specs and memory in, ``Scheduler`` out.

Every step that decides about blocks is vLLM's own (grouping, sizing, hash granularity), looked up
on its module at call time, so that installed patches take part and absent ones do not.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path

import torch
from torch import nn
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVEventsConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.lora.request import LoRARequest
from vllm.model_executor.models.registry import ModelRegistry
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig, MambaSpec
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from vllm_ascend.core.checks.drafts import DSPARK, keep_last_block
from vllm_ascend.core.ring_tails.layout import ring_bytes
from vllm_ascend.dry_run.layouts import KVLayout
from vllm_ascend.prefix_cache_config import load_config
from vllm_ascend.releases import running_release

_HASH_ALGORITHM = "sha256"
# The model never runs: it carries the limits we need.
_STAND_IN_MODEL = {
    "architectures": ["ReplayedForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 256,
    "max_position_embeddings": 1 << 21,
    "torch_dtype": "bfloat16",
}


class ReplayedForCausalLM(nn.Module):
    """What vLLM asks of the class of a model that generates text.

    A class of vLLM's own would be imported in a process of its own to be asked, which takes as
    long as everything else.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        raise NotImplementedError("only the scheduler runs")

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        raise NotImplementedError


@dataclass(frozen=True)
class SchedulerOptions:
    """What an operator would set on the command line of ``vllm serve``.

    Attributes:
        kv_memory_bytes: KV cache memory of one rank; or
        num_blocks: the size of the pool itself. Exactly one of the two is given.
        num_speculative_tokens: Draft tokens per step, 0 for none.
        draft_method: How they are drafted: vLLM's name of it.
        is_data_parallel: It is one of the ranks that vLLM's front end balances.
    """

    kv_memory_bytes: int | None = None
    num_blocks: int | None = None
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 8192
    max_model_len: int = 135_000
    num_speculative_tokens: int = 0
    draft_method: str = "mtp"
    async_scheduling: bool = False
    enable_kv_cache_events: bool = False
    enable_prefix_caching: bool = True
    policy: str = "fcfs"
    is_data_parallel: bool = False
    kv_transfer_config: KVTransferConfig | None = None

    def __post_init__(self) -> None:
        if (self.kv_memory_bytes is None) == (self.num_blocks is None):
            raise ValueError("give exactly one of kv_memory_bytes and num_blocks")


def build_scheduler(layout: KVLayout, options: SchedulerOptions) -> Scheduler:
    """Return vLLM's scheduler for ``layout``, as EngineCore would build it.

    Raises:
        ValueError: The memory does not hold one request of ``max_model_len`` tokens, or a
            switch of the project contradicts the layout.
    """
    vllm_config = _vllm_config(layout, options)
    kv_cache_config = _kv_cache_config(layout, options, vllm_config)
    vllm_config.cache_config.num_gpu_blocks = kv_cache_config.num_blocks
    block_size, hash_block_size = kv_cache_utils.resolve_kv_cache_block_sizes(
        kv_cache_config, vllm_config
    )
    kv_cache_utils.init_none_hash(get_hash_fn_by_name(_HASH_ALGORITHM))
    scheduler_class = AsyncScheduler if options.async_scheduling else Scheduler
    return scheduler_class(
        vllm_config=vllm_config,
        kv_cache_config=kv_cache_config,
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=block_size,
        hash_block_size=hash_block_size,
        include_finished_set=options.is_data_parallel,
        log_stats=True,
    )


def kv_memory_for(layout: KVLayout, num_tokens: int, options: SchedulerOptions) -> int:
    """Return the bytes with which vLLM would log a KV cache of so many tokens.

    vLLM counts how many requests of ``max_model_len`` tokens fit, so what the number means depends
    on that length and, where windows move on, on the tokens of a step.

    Args:
        options: Its own memory does not matter.
    """
    vllm_config = _vllm_config(layout, options)
    specs = copy.deepcopy(layout.specs)
    memory = 1 << 50
    release = running_release()
    groups = release.groups_of_model(vllm_config, specs)
    kv_cache_config = release.planning.get_kv_cache_config_from_groups(vllm_config, groups, memory)
    num_requests = kv_cache_utils.get_max_concurrency_for_kv_cache_config(
        vllm_config, kv_cache_config
    )
    return ceil(memory * num_tokens / (num_requests * options.max_model_len))


def make_request(
    scheduler: Scheduler,
    request_id: str,
    prompt_token_ids: list[int],
    max_tokens: int,
    *,
    cache_salt: str | None = None,
    lora: LoRARequest | None = None,
    arrival_time: float = 0.0,
    priority: int = 0,
) -> Request:
    """Return a request hashed as the scheduler's engine would hash it; nothing is enqueued."""
    sampling_params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0.0)
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt_token_ids,
        sampling_params=sampling_params,
        pooling_params=None,
        arrival_time=arrival_time,
        lora_request=lora,
        cache_salt=cache_salt,
        priority=priority,
        block_hasher=block_hasher(scheduler),
    )


def block_hasher(scheduler: Scheduler) -> Callable[[Request], list[BlockHash]]:
    """Return what hashes the requests of a scheduler, as its engine would."""
    # In later releases hashes may cover what drafts read behind a block.
    lookahead = getattr(scheduler, "num_hash_lookahead_tokens", 0)
    return kv_cache_utils.get_request_block_hasher(
        scheduler.kv_cache_manager.block_pool.hash_block_size,
        get_hash_fn_by_name(_HASH_ALGORITHM),
        *([lookahead] if lookahead else []),
    )


@lru_cache(maxsize=8)
def _model_config(max_model_len: int) -> ModelConfig:
    if ReplayedForCausalLM.__name__ not in ModelRegistry.models:
        ModelRegistry.register_model(ReplayedForCausalLM.__name__, ReplayedForCausalLM)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_STAND_IN_MODEL))
        return ModelConfig(
            model=folder,
            skip_tokenizer_init=True,
            max_model_len=max_model_len,
            dtype="bfloat16",
            seed=0,
        )


def _vllm_config(layout: KVLayout, options: SchedulerOptions) -> VllmConfig:
    events = (
        KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        if options.enable_kv_cache_events
        else None
    )
    config = VllmConfig(
        model_config=_model_config(options.max_model_len),
        scheduler_config=SchedulerConfig(
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=options.max_model_len,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            async_scheduling=options.async_scheduling,
            policy=options.policy,
            disable_hybrid_kv_cache_manager=False,
        ),
        cache_config=CacheConfig(
            block_size=layout.block_size,
            enable_prefix_caching=options.enable_prefix_caching,
            mamba_cache_mode=_mamba_cache_mode(layout),
        ),
        device_config=DeviceConfig("cpu"),
        kv_events_config=events,
    )
    for name, value in running_release().cache_settings(layout.specs.values()).items():
        setattr(config.cache_config, name, value)
    # VllmConfig switches it off where the stand-in model has no executor for it.
    config.scheduler_config.async_scheduling = options.async_scheduling
    # Assigned afterwards: vLLM would turn the hybrid KV cache manager off.
    config.kv_transfer_config = options.kv_transfer_config
    if options.num_speculative_tokens:
        # Assigned afterwards: a real draft model's checks need a real model, the scheduler only
        # asks for the method and the number of draft tokens.
        config.speculative_config = _drafts_config(options, config.model_config)
        keep_last_block(config.speculative_config, load_config())
    return config


def _mamba_cache_mode(layout: KVLayout) -> str:
    """Return the mode that vLLM's start-up would have chosen for the layout's specs."""
    modes = {spec.mamba_cache_mode for spec in layout.specs.values() if isinstance(spec, MambaSpec)}
    return modes.pop() if modes else "none"


def _drafts_config(options: SchedulerOptions, model_config: ModelConfig) -> SpeculativeConfig:
    if options.draft_method == DSPARK and not running_release().has_dspark:
        raise ValueError(f"vLLM {running_release().vllm} has no DSpark: vLLM 0.30.0 has")
    config = object.__new__(SpeculativeConfig)
    object.__setattr__(config, "method", options.draft_method)
    object.__setattr__(config, "num_speculative_tokens", options.num_speculative_tokens)
    if options.draft_method == DSPARK:  # its layers are in the model's own checkpoint
        object.__setattr__(config, "draft_model_config", model_config)
    return config


def _kv_cache_config(
    layout: KVLayout, options: SchedulerOptions, vllm_config: VllmConfig
) -> KVCacheConfig:
    vllm_config.cache_config.num_gpu_blocks_override = options.num_blocks
    # Grouping pads specs in place; the layout stays as declared.
    specs, release = copy.deepcopy(layout.specs), running_release()
    memory = options.kv_memory_bytes
    if memory is None:
        # A pool given in blocks may be smaller than one longest request: tests want the
        # preemption that comes of it, which the start-up check of get_kv_cache_configs forbids.
        groups = release.groups_of_model(vllm_config, specs)
        plan = release.planning.get_kv_cache_config_from_groups
        return kv_cache_utils.generate_scheduler_kv_cache_config(
            [plan(vllm_config, groups, 1 << 40)]
        )
    drafts = options.num_speculative_tokens
    memory -= options.max_num_seqs * ring_bytes(layout.rings.values(), drafts)
    configs = release.plan_pool(vllm_config, specs, memory)
    return kv_cache_utils.generate_scheduler_kv_cache_config(configs)
