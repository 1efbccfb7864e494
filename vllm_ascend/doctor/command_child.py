# SPDX-License-Identifier: Apache-2.0
"""What an engine would make of the flags of ``vllm serve``. Run as a file, by path.

Like ``serving_child``, it imports vLLM as serving does and nothing of the doctor. vLLM's own parser
reads the flags, and vLLM's own code makes the engine's configuration of them, with the checks of
whatever plugins it has. ``python command_child.py REQUEST.json ANSWER.json``
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any


def main(request: str, answer_file: str) -> None:
    """Write the configuration, ``{"refused": ...}``, ``{"missing": MODEL}`` or ``{"fails": ...}``.

    Args:
        request: JSON: ``flags`` of ``vllm serve``, and ``model`` to take in place of theirs, or
            null.
        answer_file: Where to.
    """
    # The file's folder: `vllm serve` does not have it in front of everything else.
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    asked = json.loads(request)
    try:
        answer = _configuration(asked["flags"], asked["model"])
    except _RefusedError as error:
        answer = {"refused": str(error)}
    except Exception as error:  # noqa: BLE001, RUF100 - whatever stops an engine
        answer = {"fails": _message(error)}
    Path(answer_file).write_text(json.dumps(answer, default=str))


class _RefusedError(Exception):
    """The parser does not take the flags."""


def _configuration(flags: list[str], model: str | None) -> dict[str, Any]:
    arguments = _parsed(flags)
    if model is not None:
        arguments.model, arguments.tokenizer = model, arguments.tokenizer or model
    if Path(arguments.model).is_absolute() and not Path(arguments.model).exists():
        return {"missing": arguments.model}
    usage = importlib.import_module("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER
    engine_args = importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs
    config = engine_args.from_cli_args(arguments).create_engine_config(usage)
    drafts, transfer = config.speculative_config, config.kv_transfer_config
    return {
        "model": arguments.model,
        # As typed in: what it becomes depends on the platform.
        "block_size": arguments.block_size,
        "max_model_len": config.model_config.max_model_len,
        # Drafts that have layers; those of n-grams have none.
        "num_speculative_tokens": drafts.num_speculative_tokens
        if drafts and drafts.use_eagle()
        else 0,
        "draft_method": drafts.method if drafts else "mtp",
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "kv_transfer_config": asdict(transfer) if transfer is not None else None,
        "enable_prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "data_parallel_size": config.parallel_config.data_parallel_size,
        "balances_outside": bool(config.parallel_config.data_parallel_external_lb),
        "hybrid_is_off": bool(config.scheduler_config.disable_hybrid_kv_cache_manager),
    }


def _parsed(flags: list[str]) -> Any:
    """Return what ``vllm serve`` makes of its flags, its checks of them included.

    Raises:
        _RefusedError: It would print this and end.
    """
    serve = importlib.import_module("vllm.entrypoints.cli.serve").ServeSubcommand()
    # Plugins add choices, such as vllm-ascend's way of quantization, as in front of serving.
    parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    serve.subparser_init(parser.add_subparsers(required=False, dest="subparser"))
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            arguments = parser.parse_args(["serve", *flags])
    except SystemExit as end:
        last = said.getvalue().strip().rpartition("error: ")[2]
        raise _RefusedError(last or "it asks for help, and serves nothing") from end
    try:
        serve.validate(arguments)
    except (TypeError, ValueError) as error:
        raise _RefusedError(_message(error)) from error
    if arguments.model_tag is not None:
        arguments.model = arguments.model_tag
    return arguments


def _message(error: Exception) -> str:
    """Return what an error says: of a pydantic one what its validator said, on one line."""
    details = error.errors() if hasattr(error, "errors") and callable(error.errors) else ()
    text = str(details[0]["msg"]).removeprefix("Value error, ") if details else str(error)
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{kind}{' '.join(text.split())}"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
