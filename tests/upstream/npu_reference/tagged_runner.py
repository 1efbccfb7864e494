# SPDX-License-Identifier: Apache-2.0
"""Tells the row tags what the real runner does: which requests and tokens its calls are for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from tests.upstream.npu_reference import tags
from tests.upstream.npu_reference.releases import differences_here
from tests.upstream.npu_reference.tags import Call, Memory, Prefixes, Request


class TaggedRunner:
    """The runner's steps, as the tags see them; checks from its making on.

    Args:
        runner: The real one, with its KV cache allocated.

    Attributes:
        checks_drafts: Whether what the draft model reads is checked.
    """

    checks_drafts = True

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.memory = Memory()
        self._known: dict[str, Prefixes] = {}
        self._step: list[tuple[Request, int, int]] = []
        self._drafts: dict[str, Prefixes] = {}
        self._draft_tokens: list[int] = []
        self._draft_positions: list[int] = []
        self._num_drafted = 0
        self._num_scheduled: dict[str, int] = {}
        for layer, group, ratio, caches in _caches(runner):
            start = min(cache.data_ptr() for cache in caches)
            for cache in caches:
                self.memory.add(layer, group, ratio, cache, start)
        self._hook(runner, "_update_states", self._begin_step)
        self._hook(runner.model, "forward", self._forward)
        self._draft_caches: tuple[str, ...] = ()
        self._drafts_blocks = False
        if getattr(runner, "drafter", None) is not None:
            self._draft_caches = tuple(runner.drafter.attn_layer_names)
            self._hook(runner.drafter.model, "forward", self._draft_forward)
            if hasattr(runner.drafter.model, "precompute_and_store_context_kv"):
                self._drafts_blocks = True
                _hook_context(self, runner.drafter.model)
        _hook_attention(self)
        _hook_copies(self.memory)
        tags.begin(self.memory)

    @staticmethod
    def _hook(owner: Any, name: str, before: Callable[..., None]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def hooked(*args: Any, **kwargs: Any) -> Any:
            before(*args, **kwargs)
            return original(*args, **kwargs)

        setattr(owner, name, hooked)

    def _begin_step(self, scheduler_output: Any) -> None:
        self._num_scheduled = dict(scheduler_output.num_scheduled_tokens)
        for name in scheduler_output.finished_req_ids:
            self._known.pop(name, None)

    def _forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, *_: Any, **__: Any
    ) -> None:
        """Note whose tokens are computed, and what each request's tokens are with them."""
        self._step, self._drafts, self._num_drafted = [], {}, 0
        tokens, first = input_ids.tolist(), 0
        window = getattr(self.runner.input_batch.block_table, "state_window", None)
        for row, name in enumerate(self.runner.input_batch.req_ids):
            count = self._num_scheduled.get(name, 0)
            if not count:
                continue
            state, start = self.runner.requests[name], int(positions[first])
            prefixes = self._known.get(name, Prefixes()).cut(start)
            known = len(prefixes.tags) - 1
            everything = [*(state.prompt_token_ids or ()), *state.output_token_ids]
            prefixes.extend(everything[known:start])
            prefixes.extend(tokens[first : first + count])
            self._known[name] = prefixes
            before = int(window.first_tokens.np[row]) if window else 0
            request = Request(name, state.block_ids, prefixes, before)
            self._step.append((request, start, start + count))
            first += count

    def _draft_forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, *_: Any, **__: Any
    ) -> None:
        self._draft_tokens, self._draft_positions = input_ids.tolist(), positions.tolist()
        self._num_drafted += 1

    def call_of(self, layer: str, metadata: Any, decodes: bool | None) -> Call:
        """Return what a layer's attention is called for.

        Args:
            layer: Its name.
            metadata: The first of the layer's metadata.
            decodes: Whether it is called for the decoding requests, which come first; ``None``: for
                all of them.
        """
        count = metadata.num_decodes
        step = self._step
        if decodes is not None:
            step = step[:count] if decodes else step[count:]
        if not any(name.startswith(_prefix(layer)) for name in self._draft_caches):
            return self._call_of_tokens(layer, step)
        if self._drafts_blocks:
            return self._block_call(layer)
        if decodes is None:
            part, offset = metadata.req_metadata, 0
        else:
            part = metadata.decode if decodes else metadata.prefill
            offset = 0 if decodes else metadata.num_decode_tokens
        return self._draft_call(layer, [request for request, _, _ in step], part, offset)

    def _draft_call(self, layer: str, requests: Sequence[Request], part: Any, offset: int) -> Call:
        """Return what the draft model's layer is called for.

        A draft row is computed from the token behind its own as well, which is its input. Only the
        first pass of a step is checked for what it reads: in those behind it vllm-ascend counts
        rejected drafts in the lengths of requests, so that they read rejected rows. That makes
        drafts worse, and nothing else reads what they wrote before it is written again.
        """
        bounds, tokens, drafting, spans = part.query_start_loc.tolist(), [], [], []
        for index, request in enumerate(requests):
            first, end = offset + bounds[index], offset + bounds[index + 1]
            start = self._draft_positions[first]
            stop = start + end - first
            inputs = self._draft_tokens[first:end]
            prompt = self.runner.requests[request.name].prompt_token_ids
            if stop < len(prompt):
                # At the end of a chunk vLLM takes the prompt's last token for the next one
                # (``prepare_next_token_ids_padded``): one row, that makes a draft worse at most.
                inputs[-1] = prompt[stop]
            prefixes = self._drafts.get(request.name, request.prefixes).cut(start + 1)
            prefixes.extend(inputs)
            self._drafts[request.name] = prefixes
            drafting.append(replace(request, prefixes=prefixes))
            tokens += [(index, position) for position in range(start, stop)]
            spans.append((start, stop))
        checked = self.checks_drafts and self._num_drafted == 1
        return Call(drafting, tokens, spans, _prefix(layer), lookahead=1, checks_reads=checked)

    def context_call(self, layer: str) -> Call:
        """Return what rows of a step's tokens are written for in a layer of block drafts."""
        return self._call_of_tokens(layer, self._step)

    @staticmethod
    def _call_of_tokens(layer: str, step: Sequence[tuple[Request, int, int]]) -> Call:
        tokens = [
            (index, position)
            for index, (_, start, end) in enumerate(step)
            for position in range(start, end)
        ]
        spans = [(start, end) for _, start, end in step]
        return Call([request for request, _, _ in step], tokens, spans, _prefix(layer))

    def _block_call(self, layer: str) -> Call:
        """Return what a layer is called for that drafts a block: its rows are nobody else's.

        A row of the block is computed otherwise than that of the same token as context: its tag
        names a token that there is not.
        """
        count = len(self._draft_tokens) // max(len(self._step), 1)
        requests, tokens, spans = [], [], []
        for index, (request, _, _) in enumerate(self._step):
            block = slice(index * count, (index + 1) * count)
            start = self._draft_positions[block.start]
            prefixes = request.prefixes.cut(start)
            prefixes.extend([-1 - token for token in self._draft_tokens[block]])
            requests.append(replace(request, prefixes=prefixes))
            tokens += [(index, position) for position in range(start, start + count)]
            spans.append((start, start + count))
        return Call(requests, tokens, spans, _prefix(layer), checks_reads=self.checks_drafts)


def _prefix(layer: str) -> str:
    """Return what the names of an attention layer's caches begin with."""
    return layer.removesuffix("attn")


def _caches(runner: Any) -> Iterator[tuple[str, int, int, list[torch.Tensor]]]:
    """Yield layer, group, tokens of a row, and tensors of every cache."""
    layers = runner.compilation_config.static_forward_context
    specs = runner._get_layer_kv_cache_specs(runner.kv_cache_config)
    for index, group in enumerate(runner.kv_cache_config.kv_cache_groups):
        for name in group.layer_names:
            spec = specs[name]
            windowed = getattr(spec, "sliding_window", None) is not None
            # Later releases name it anew.
            told = getattr(spec, "compress_ratio", None) or getattr(spec, "tokens_per_state", 1)
            ratio = 1 if windowed else max(told, 1)
            yield name, index, ratio, list(_tensors(layers[name].kv_cache))


def _tensors(nested: Any) -> Iterator[torch.Tensor]:
    if isinstance(nested, torch.Tensor):
        yield nested
    else:
        for part in nested:
            yield from _tensors(part)


def _hook_context(tagged: TaggedRunner, model: Any) -> None:
    """Say what the rows are for that a layer of block drafts keeps of a step's tokens."""
    drafting = model.model
    store = drafting._store_standard_swa_kv

    def stored(shared_kv: torch.Tensor, slots: Any, attn: Any) -> None:
        tagged.memory.call = tagged.context_call(attn.dsa_attn.swa_cache_layer.prefix)
        try:
            store(shared_kv, slots, attn)
        finally:
            tagged.memory.call = None

    drafting._store_standard_swa_kv = stored


def _hook_attention(tagged: TaggedRunner) -> None:
    """Say before every layer's attention what it is for."""
    from vllm_ascend.attention.dsa_v1 import AscendDSAImpl

    if differences_here().attends_at_once:
        _hook_attention_at_once(tagged, AscendDSAImpl)
        return
    for name, decodes in (("_forward_prefill", False), ("_forward_decode", True)):
        original = getattr(AscendDSAImpl, name)
        original = getattr(original, "untagged", original)

        def hooked(
            self: Any,
            layer_name: str,
            hidden_states: torch.Tensor,
            kv_cache: Any,
            metadata: Any,
            *args: Any,
            original: Callable[..., Any] = original,
            decodes: bool = decodes,
        ) -> Any:
            tagged.memory.call = tagged.call_of(layer_name, metadata[0], decodes)
            try:
                return original(self, layer_name, hidden_states, kv_cache, metadata, *args)
            finally:
                tagged.memory.call = None

        hooked.untagged = original  # type: ignore[attr-defined]
        setattr(AscendDSAImpl, name, hooked)


def _hook_attention_at_once(tagged: TaggedRunner, attention: type) -> None:
    """Say before every layer's attention what it is for, where it takes all requests at once."""
    forward = attention.forward  # type: ignore[attr-defined]
    forward = getattr(forward, "untagged", forward)

    def hooked(
        self: Any,
        layer_name: str,
        hidden_states: torch.Tensor,
        kv_cache: Any,
        attn_metadata: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if attn_metadata is not None:
            told = self._get_layer_metadata(layer_name, attn_metadata)
            tagged.memory.call = tagged.call_of(layer_name, told.attention or told.swa, None)
        try:
            return forward(
                self, layer_name, hidden_states, kv_cache, attn_metadata, *args, **kwargs
            )
        finally:
            tagged.memory.call = None

    hooked.untagged = forward  # type: ignore[attr-defined]
    attention.forward = hooked  # type: ignore[attr-defined]


def _hook_own_copies(memory: Memory) -> None:
    """Copy tags where vllm-ascend's runner copies blocks: of every tensor that it finds once."""
    import vllm_ascend.worker.model_runner_v1 as runner

    copy = runner.copy_kv_cache_blocks_inplace
    copy = getattr(copy, "untagged", copy)

    def copy_with_tags(kv_caches: Any, num_blocks: int, copies: Any) -> None:
        copy(kv_caches, num_blocks, copies)
        found = {tensor.data_ptr(): tensor for tensor in reversed(list(_tensors(kv_caches)))}
        for tensor in found.values():
            memory.copy(tensor, copies)

    copy_with_tags.untagged = copy  # type: ignore[attr-defined]
    runner.copy_kv_cache_blocks_inplace = copy_with_tags


def _hook_copies(memory: Memory) -> None:
    """Copy tags where our worker copies pages; a plain checkout copies none."""
    if differences_here().copies_blocks:
        _hook_own_copies(memory)
        return
    try:
        import vllm_ascend.worker.patch_gpu_model_runner as runner_patches
        from vllm_ascend.worker.block_copies import copy_blocks
    except ImportError:
        return

    def copy_with_tags(pages: Any, copies: Any, **kwargs: Any) -> None:
        copy_blocks(pages, copies, **kwargs)
        for page in pages:
            memory.copy(page, copies)

    runner_patches.copy_blocks = copy_with_tags
