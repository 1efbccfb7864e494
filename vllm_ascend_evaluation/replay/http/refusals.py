# SPDX-License-Identifier: Apache-2.0
"""Why a server cannot be used as it was asked for, said in terms of options."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.server_access.access import API_KEY_VARIABLE, HttpAccess, ServerError
from vllm_ascend_evaluation.replay.http.client import HttpClient, OfferedModel
from vllm_ascend_evaluation.replay.http.options import HttpOptions

_NO_ACCESS = (401, 403)
# How vLLM names a token id that its model does not have.
_OUT_OF_VOCABULARY = "out of vocabulary"
_UNKNOWN_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"


async def choose_model(url: str, options: HttpOptions) -> OfferedModel:
    """Return the model to ask.

    Args:
        url: The server, as ``base_url`` returns it.
        options: ``model`` may be ``None``: the first one then.

    Raises:
        BadInputError: The server cannot be used, or has no such model.
    """
    client = HttpClient(url, timeout_s=options.timeout_s, access=options.access)
    try:
        offered = await client.models()
    except ServerError as error:
        reason = explain(error, options)
        is_other = error.status is not None and error.status not in _NO_ACCESS
        hint = " (no server of the OpenAI API?)" if is_other else ""
        raise BadInputError(f"--url {url}: {reason}{hint}") from error
    finally:
        await client.close()
    return _model(offered, options.model)


def _model(offered: Sequence[OfferedModel], name: str | None) -> OfferedModel:
    if name is None:
        return offered[0]
    for model in offered:
        if model.name == name:
            return model
    names = ", ".join(model.name for model in offered)
    raise BadInputError(f"--model {name}: the server offers {names}")


def explain(error: ServerError, options: HttpOptions) -> str:
    """Return what went wrong, with the option that cures it if there is one."""
    text = str(error)
    if error.status in _NO_ACCESS:
        return f"{text} ({_access_hint(options.access)})"
    if _OUT_OF_VOCABULARY in text:
        return f"--vocab-size {options.shape.vocab_size}: more than the model has ({text})"
    if _UNKNOWN_CERTIFICATE in text:
        return f"{text} (--insecure takes any certificate)"
    return text


def _access_hint(access: HttpAccess) -> str:
    if access.api_key is None:
        return f"--api-key, or {API_KEY_VARIABLE}, is needed"
    return f"the key of --api-key, or {API_KEY_VARIABLE}, is not taken"
