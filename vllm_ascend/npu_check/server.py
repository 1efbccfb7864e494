# SPDX-License-Identifier: Apache-2.0
"""Asks a server for greedy answers, with scores and what was found in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx

from vllm_ascend.npu_check.answers import Answer
from vllm_ascend.npu_check.outcome import CheckFailedError
from vllm_ascend.npu_check.prompts import ANSWER_TOKENS
from vllm_ascend.server_access.access import HttpAccess, ServerError
from vllm_ascend.server_access.server import server_errors

# The next likely ids tell whether rounding may have chosen another one.
_NUM_SCORES = 5
_TOKEN_ID = "token_id:"


class AnsweringServer:
    """One model of one server; any number of threads may ask at once.

    Attributes:
        max_model_len: Tokens that a prompt and its answer may have; ``None`` if unknown.
        prompt_tokens: Of all prompts that were answered.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        max_model_len: int | None,
        timeout_s: float,
        access: HttpAccess,
    ) -> None:
        self.max_model_len = max_model_len
        self.prompt_tokens = 0
        self._url = f"{url}/v1/completions"
        self._model = model
        self._http = httpx.Client(
            timeout=httpx.Timeout(timeout_s, pool=None),
            **access.client_arguments(),
        )

    def answer(self, prompt: Sequence[int], salt: str) -> Answer:
        """Return the greedy answer to a prompt.

        Args:
            prompt: Token ids.
            salt: Only prompts with the same one share what is cached.

        Raises:
            CheckFailedError: There is none.
        """
        body = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": _NUM_SCORES,
            "return_tokens_as_token_ids": True,
            "cache_salt": salt,
        }
        try:
            with server_errors(self._url):
                response = self._http.post(self._url, json=body).raise_for_status().json()
                answer = _read(response)
        except ServerError as error:
            raise CheckFailedError(str(error)) from error
        self.prompt_tokens += len(prompt)
        return answer


def _read(response: dict[str, Any]) -> Answer:
    details = response["usage"].get("prompt_tokens_details") or {}  # none where nothing was hit
    (choice,) = response["choices"]
    scores = choice["logprobs"]
    return Answer(
        token_ids=tuple(map(_id, scores["tokens"])),
        scores=tuple(
            {_id(name): score for name, score in likeliest.items()}
            for likeliest in scores["top_logprobs"]
        ),
        cached_tokens=details.get("cached_tokens") or 0,
    )


def _id(name: str) -> int:
    return int(name.removeprefix(_TOKEN_ID))
