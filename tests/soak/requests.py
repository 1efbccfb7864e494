# SPDX-License-Identifier: Apache-2.0
"""Real requests from what operations say about them."""

from __future__ import annotations

import torch
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from tests.soak.operations import ANSWER, IMAGE, Add, Segment
from vllm_ascend.dry_run.scheduler import block_hasher
from vllm_ascend_evaluation.oracle.contents import contents_key, embedding_contents, image_contents
from vllm_ascend_evaluation.oracle.digests import PrefixDigests, mix, next_token
from vllm_ascend_evaluation.oracle.options import OracleOptions

# Few ids, so that prompts which are not meant to be equal are alike in places.
_STREAM_VOCABULARY = 50
_PLACEHOLDER = 63
_MODEL_VOCABULARY = OracleOptions.vocabulary


def stream_tokens(number: int, count: int) -> list[int]:
    """The first tokens of a stream; of two streams they differ from the start."""
    start = mix(number) >> 8
    return [mix(start + index) % _STREAM_VOCABULARY for index in range(count)]


def prompt_embeds(tokens: list[int]) -> torch.Tensor:
    """Embeddings of tokens: equal ones have equal rows."""
    ids = torch.tensor(tokens, dtype=torch.float32)
    return torch.stack((ids + 0.5, ids * ids), dim=1)


class Prompter:
    """Tokens and features of a prompt, piece by piece."""

    def __init__(self, add: Add) -> None:
        self.lora = LoRARequest(f"adapter-{add.lora}", add.lora, "/nowhere") if add.lora else None
        self.tokens: list[int] = []
        self.features: list[MultiModalFeatureSpec] = []
        self._embeds = add.embeds
        self._digests = PrefixDigests(contents_key(add.salt, self.lora), ())
        for segment in add.prompt:
            self._append(segment)

    def _append(self, segment: Segment) -> None:
        if segment.kind == ANSWER:
            for _ in range(segment.count):
                token = next_token(self._digests[len(self._digests)], 0, _MODEL_VOCABULARY)
                self._extend([token])
        elif segment.kind == IMAGE and not self._embeds:
            identifier = f"image-{segment.number}-{segment.count}"
            position = PlaceholderRange(offset=len(self.tokens), length=segment.count)
            self.features.append(MultiModalFeatureSpec(None, "image", identifier, position))
            self._extend([_PLACEHOLDER] * segment.count, image_contents(identifier, segment.count))
        else:
            self._extend(stream_tokens(segment.number, segment.count))

    def _extend(self, tokens: list[int], contents: list[int] | None = None) -> None:
        self.tokens += tokens
        if self._embeds:
            contents = embedding_contents(prompt_embeds(tokens))
        self._digests.extend(tokens, contents)


def make(scheduler: Scheduler, add: Add, arrival: int) -> Request:
    """The request that a client would cause, hashed as the engine hashes it."""
    prompter = Prompter(add)
    sampling = pooling = None
    if add.pools:
        pooling = PoolingParams(
            task="embed", skip_reading_prefix_cache=True if add.prompt_logprobs else None
        )
    else:
        sampling = SamplingParams(
            max_tokens=add.max_tokens,
            ignore_eos=True,
            temperature=0.0,
            prompt_logprobs=1 if add.prompt_logprobs else None,
        )
    return Request(
        request_id=add.request_id,
        prompt_token_ids=None if add.embeds else prompter.tokens,
        prompt_embeds=prompt_embeds(prompter.tokens) if add.embeds else None,
        mm_features=prompter.features,
        sampling_params=sampling,
        pooling_params=pooling,
        arrival_time=float(arrival),
        lora_request=prompter.lora,
        cache_salt=add.salt,
        priority=add.priority,
        resumable=add.resumable,
        block_hasher=block_hasher(scheduler),
    )
