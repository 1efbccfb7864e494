# SPDX-License-Identifier: Apache-2.0
"""The log of ``--enable-log-requests``: lines as vLLM 0.20.2, 0.23.0 and 0.30.0 write them."""

import re

import pytest

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.sources import WorkloadSource

PARAMS = (
    "SamplingParams(n=1, temperature=0.0, stop=[], include_stop_str_in_output=False, "
    "ignore_eos=False, max_tokens=8, min_tokens=0, logprobs=None, extra_args=None)"
)
# As 0.20.2 wrote them: a chat, a stream, a completion of two prompts of ids, and one of a text.
LOG = rf"""
(APIServer pid=7) INFO 11-25 03:15:50 [entrypoints/openai/api_server.py:9] Starting vLLM server
(APIServer pid=7) DEBUG 11-25 03:15:58 [entrypoints/logger.py:53] Request chatcmpl-81 details: prompt: '<s>it\'s, prompt_token_ids: [1, 2]\n"x"', prompt_token_ids: [0, 264, 293, 85], prompt_embeds shape: None.
(APIServer pid=7) INFO 11-25 03:15:58 [entrypoints/logger.py:63] Received request chatcmpl-81: params: {PARAMS}, lora_request: None.
(APIServer pid=7) INFO 11-25 03:15:58 [v1/engine/async_llm.py:415] Added request chatcmpl-81-a3eb87d7.
(APIServer pid=7) INFO 11-25 03:15:59 [entrypoints/logger.py:92] Generated response chatcmpl-81: output: ' since', output_token_ids: [701, 844, 141], finish_reason: length
(APIServer pid=7) DEBUG 11-25 03:16:00 [entrypoints/logger.py:53] Request chatcmpl-b9 details: prompt: 'x', prompt_token_ids: [0, 264, 293], prompt_embeds shape: None.
(APIServer pid=7) INFO 11-25 03:16:00 [entrypoints/logger.py:63] Received request chatcmpl-b9: params: {PARAMS}, lora_request: None.
(APIServer pid=7) INFO 11-25 03:16:03 [entrypoints/logger.py:92] Generated response chatcmpl-b9 (streaming delta): output: ' val', output_token_ids: [833], finish_reason: None
(APIServer pid=7) INFO 11-25 03:16:03 [entrypoints/logger.py:92] Generated response chatcmpl-b9 (streaming delta): output: '\x03', output_token_ids: [198], finish_reason: length
(APIServer pid=7) INFO 11-25 03:16:03 [entrypoints/logger.py:92] Generated response chatcmpl-b9 (streaming complete): output: ' val\x03', output_token_ids: None, finish_reason: streaming_complete
(APIServer pid=7) DEBUG 11-25 03:16:03 [entrypoints/logger.py:53] Request cmpl-bf-0 details: prompt: None, prompt_token_ids: [5, 5, 5], prompt_embeds shape: None.
(APIServer pid=7) INFO 11-25 03:16:03 [entrypoints/logger.py:63] Received request cmpl-bf-0: params: {PARAMS}, lora_request: None.
(APIServer pid=7) DEBUG 11-25 03:16:03 [entrypoints/logger.py:53] Request cmpl-bf-1 details: prompt: None, prompt_token_ids: [6], prompt_embeds shape: None.
(APIServer pid=7) INFO 11-25 03:16:03 [entrypoints/logger.py:63] Received request cmpl-bf-1: params: {PARAMS}, lora_request: None.
"""  # noqa: E501
# 0.30.0 has the tokens of an answer in a line of their own.
OF_0_30 = re.sub(
    r"INFO (\S+ \S+) \[entrypoints/logger.py:92\] Generated response (\S+)( \(streaming delta\))?"
    r": output: ('.*'), output_token_ids: (\[.*\]), (finish_reason.*)",
    r"DEBUG \1 [serve/utils/request_logger.py:91] Generated response \2\3 details: "
    r"output_token_ids: \5\n"
    r"(APIServer pid=7) INFO \1 [serve/utils/request_logger.py:98] Generated response \2\3: "
    r"output: \4, \6",
    LOG,
)
# As on a terminal, and as a container runtime keeps it.
COLOURED = LOG.replace("DEBUG 11-", "\x1b[37mDEBUG\x1b[0m \x1b[90m11-").replace(
    " [ent", "\x1b[0m [ent"
)
IN_A_CONTAINER = "\n".join(f"2026-11-25T03:16:00Z stdout F {line}" for line in LOG.splitlines())


def load(folder, text, **options):
    path = folder / "serve.log"
    path.write_text(text)
    return WorkloadSource(str(path), **options).load()


@pytest.mark.parametrize(
    "log", [LOG, OF_0_30, COLOURED, IN_A_CONTAINER, "\ufeff" + LOG, LOG.replace("\n", "\r\n")]
)
def test_prompts_answers_and_times(tmp_path, log):
    workload = load(tmp_path, log)
    requests = list(workload.requests())
    assert [request.prompt_token_ids for request in requests] == [
        [0, 264, 293, 85],
        [0, 264, 293],
        [5, 5, 5],
        [6],
    ]
    assert [request.output_tokens for request in requests] == [3, 2, 8, 8]
    assert [request.arrival_ms for request in requests] == [0, 2000, 5000, 5000]
    assert "2 answers as long as their max_tokens" in workload.in_words(is_timed=False)


def test_the_releases_spell_it_in_two_ways():
    assert "details: output_token_ids: [701, 844, 141]" in OF_0_30 and OF_0_30 != LOG


def test_a_text_is_tokenized_where_there_are_no_ids(tmp_path, tokenizer, hugging_face):
    text = LOG.replace(
        "prompt: 'x', prompt_token_ids: [0, 264, 293]",
        "prompt: 'say \\'x\\'', prompt_token_ids: None",
    )
    with pytest.raises(BadInputError, match="line 7: holds text: give the folder"):
        load(tmp_path, text)
    second = list(load(tmp_path, text, tokenizer=str(tokenizer)).requests())[1]
    assert second.prompt_token_ids == hugging_face.encode("say 'x'")


def test_a_log_without_prompts_says_how_to_get_them(tmp_path):
    """At INFO, vLLM's default, only the parameters are logged."""
    text = "\n".join(line for line in LOG.splitlines() if " DEBUG " not in line)
    with pytest.raises(BadInputError, match=r"4 requests, but no prompts: .*LEVEL=DEBUG beside"):
        load(tmp_path, text)


def test_new_year(tmp_path):
    text = LOG.replace("11-25 03:15:5", "12-31 23:59:5").replace("11-25 03:16:0", "01-01 00:00:0")
    requests = load(tmp_path, text).requests()
    assert [request.arrival_ms for request in requests] == [0, 2000, 5000, 5000]


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        ("prompt_token_ids: [0, x]", "line 3: the prompt cannot be read"),
        ("prompt_token_ids: None", ""),
    ],
)
def test_a_line_that_is_broken_is_named(tmp_path, broken, complaint):
    text = LOG.replace("prompt_token_ids: [0, 264, 293, 85]", broken)
    if broken.endswith("None"):  # as of prompt embeddings
        text = re.sub(
            r"chatcmpl-81 details: prompt: .*?, prompt_token_ids: None",
            "chatcmpl-81 details: prompt: None, prompt_token_ids: None",
            text,
        )
        complaint = "line 3: holds neither a prompt nor its token ids"
    with pytest.raises(BadInputError, match=re.escape(complaint) + "$"):
        load(tmp_path, text)
