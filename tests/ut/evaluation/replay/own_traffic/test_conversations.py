# SPDX-License-Identifier: Apache-2.0
"""ShareGPT, OpenAI's messages and prompts, batch files: what is replayed of them."""

import gzip
import json
import re

import pytest

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.sources import WorkloadSource

SYSTEM = {"role": "system", "content": "Answer in a word."}
USER = {"role": "user", "content": "Who are you?"}
ASSISTANT = {"role": "assistant", "content": "A model that caches."}
LATER = {"role": "user", "content": "And what is a granule?"}
SHARE_GPT = {
    "id": "a",
    "conversations": [
        {"from": "human", "value": USER["content"]},
        {"from": "gpt", "value": ASSISTANT["content"]},
        {"from": "human", "value": LATER["content"]},
        {"from": "gpt", "value": "The unit of a hit."},
        {"from": "human", "value": "Thanks"},
    ],
}


def write(folder, *records, name="log.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def load(path, tokenizer=None, **options):
    chosen = None if tokenizer is None else str(tokenizer)
    return WorkloadSource(str(path), tokenizer=chosen, **options).load()


def requests(path, tokenizer=None, **options):
    return list(load(path, tokenizer, **options).requests())


def chat_ids(hugging_face, *messages):
    text = hugging_face.apply_chat_template(
        list(messages), add_generation_prompt=True, tokenize=False
    )
    return hugging_face.encode(text, add_special_tokens=False)


def count(hugging_face, text):
    return len(hugging_face.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("form", ["array", "array on one line", "lines"])
@pytest.mark.parametrize("is_zipped", [True, False])
def test_share_gpt(tmp_path, tokenizer, hugging_face, mark, form, is_zipped):
    """A request per answer: all before it is the prompt, and it waits for the answer before."""
    text = json.dumps([SHARE_GPT, SHARE_GPT], indent=1 if form == "array" else None)
    if form == "lines":
        text = "\n".join([json.dumps(SHARE_GPT)] * 2)
    path = tmp_path / ("s.json.gz" if is_zipped else "s.json")
    data = (mark + text).encode()
    path.write_bytes(gzip.compress(data) if is_zipped else data)
    first, second, *others = requests(path, tokenizer)
    assert len(others) == 2
    assert first.prompt_token_ids == chat_ids(hugging_face, USER)
    assert second.prompt_token_ids == chat_ids(hugging_face, USER, ASSISTANT, LATER)
    assert first.output_tokens == count(hugging_face, ASSISTANT["content"])
    assert second.output_tokens == count(hugging_face, "The unit of a hit.")
    assert (first.think_ms, second.think_ms) == (None, 0)
    assert first.session == second.session != others[0].session == others[1].session
    assert first.arrival_ms is None


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [SYSTEM, USER], "max_tokens": 9},
        {"custom_id": "1", "url": "/v1/chat/completions", "body": {"messages": [SYSTEM, USER]}},
        {"request": {"messages": [SYSTEM, USER]}, "response": {"body": {"choices": []}}},
        {
            "messages": [
                SYSTEM,
                {"role": "user", "content": [{"type": "text", "text": "Who are you?"}]},
            ]
        },
    ],
)
def test_messages(tmp_path, tokenizer, hugging_face, record):
    record = {**record, "usage": {"completion_tokens": 7}}
    (request,) = requests(write(tmp_path, record), tokenizer)
    assert request.prompt_token_ids == chat_ids(hugging_face, SYSTEM, USER)
    assert request.output_tokens == 7


def test_messages_that_end_with_an_answer_are_a_conversation(tmp_path, tokenizer, hugging_face):
    path = write(tmp_path, {"messages": [SYSTEM, USER, ASSISTANT, LATER, ASSISTANT]})
    first, second = requests(path, tokenizer)
    assert first.prompt_token_ids == chat_ids(hugging_face, SYSTEM, USER)
    assert second.prompt_token_ids == chat_ids(hugging_face, SYSTEM, USER, ASSISTANT, LATER)
    assert first.session == second.session is not None and second.think_ms == 0


@pytest.mark.parametrize("opening", [[], SHARE_GPT["conversations"][:1]])
def test_conversations_without_an_answer_are_counted(tmp_path, tokenizer, capsys, opening):
    unanswered = {"conversations": [*opening, {"from": "human", "value": "Hello?"}]}
    path = write(tmp_path, unanswered, SHARE_GPT, unanswered)
    assert len(requests(path, tokenizer)) == 2
    assert "log.jsonl: 2 conversations without an answer are left out" in capsys.readouterr().err


def test_calls_of_tools(tmp_path, tokenizer, hugging_face):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    tool = {"role": "tool", "tool_call_id": "1", "content": "2"}
    path = write(tmp_path, {"messages": [USER, answer, tool, ASSISTANT]})
    first, second = requests(path, tokenizer)
    assert first.output_tokens > 5  # of the call
    assert len(second.prompt_token_ids) > len(first.prompt_token_ids)


@pytest.mark.parametrize("wrapped", [False, True])
def test_prompts(tmp_path, tokenizer, hugging_face, wrapped):
    """Ids need no tokenizer; several prompts of a request are as many."""

    def record(prompt):
        body = {"prompt": prompt, "max_tokens": 3}
        return {"url": "/v1/completions", "body": body} if wrapped else body

    ids = write(tmp_path, record([1, 2, 3]), record([[4, 5], [6]]))
    assert [r.prompt_token_ids for r in requests(ids)] == [[1, 2, 3], [4, 5], [6]]
    texts = write(tmp_path, record("hello"), record(["hello", "world"]), name="t.jsonl")
    one, two, three = requests(texts, tokenizer)
    assert one.prompt_token_ids == two.prompt_token_ids == hugging_face.encode("hello")
    assert three.prompt_token_ids == hugging_face.encode("world")
    assert {r.output_tokens for r in (one, two, three)} == {3}


@pytest.mark.parametrize(
    ("says", "tokens"),
    [
        ({"usage": {"completion_tokens": 5}, "max_tokens": 9}, 5),
        ({"response": {"usage": {"completion_tokens": 5}}, "max_tokens": 9}, 5),
        ({"response": {"body": {"usage": {"completion_tokens": 5}}}}, 5),
        ({"output_length": 5, "max_tokens": 9}, 5),
        ({"max_completion_tokens": 9, "max_tokens": 8}, 9),
        ({"max_tokens": 9}, 9),
        ({"usage": {"completion_tokens": 0}}, 1),
    ],
)
def test_how_long_an_answer_is(tmp_path, says, tokens):
    workload = load(write(tmp_path, {"prompt": [1], **says}))
    assert [request.output_tokens for request in workload.requests()] == [tokens]
    assert ("1 answers as long as their max_tokens" in workload.in_words(is_timed=False)) == (
        tokens >= 8
    )


def test_where_nothing_says_it_the_option_does(tmp_path):
    path = write(tmp_path, {"prompt": [1]})
    with pytest.raises(BadInputError, match=r"line 1: nothing says how long .*--max-output-tokens"):
        load(path)
    workload = load(path, max_output_tokens=6)
    assert [request.output_tokens for request in workload.requests()] == [6]
    assert "1 answers as long as --max-output-tokens" in workload.in_words(is_timed=False)
    long = write(tmp_path, {"prompt": [1], "max_tokens": 50}, name="long.jsonl")
    capped = load(long, max_output_tokens=6)
    assert [request.output_tokens for request in capped.requests()] == [6]
    assert "answers capped at 6 tokens" in capped.in_words(is_timed=False)


@pytest.mark.parametrize(
    ("times", "arrivals"),
    [
        ([5000, 5400], [0, 400]),
        ([1_795_572_801, 1_795_572_803.5], [0, 2500]),
        ([1_795_572_801_000, 1_795_572_803_500], [0, 2500]),
        (["1712010112345", "1712010112.5"], [0, 155]),
        (["2026-11-25T02:13:20Z", "2026-11-25T03:13:21.5+01:00"], [0, 1500]),
        (["2026-11-25 02:13:20", "2026-11-25 02:13:21"], [0, 1000]),
    ],
)
@pytest.mark.parametrize("name", ["timestamp", "created_at", "created"])
def test_times(tmp_path, times, arrivals, name):
    """A number of the size of seconds since 1970 is one; a log may be out of order."""
    records = [{"prompt": [i], "max_tokens": 1, name: time} for i, time in enumerate(times)]
    found = requests(write(tmp_path, *records[::-1]))
    assert [request.prompt_token_ids for request in found] == [[0], [1]]
    assert [request.arrival_ms for request in found] == pytest.approx(arrivals)


def test_times_of_messages(tmp_path, tokenizer):
    """Each turn then has a time of its own, and still waits for the one before."""
    messages = [{**USER, "timestamp": 1000}, ASSISTANT, {**LATER, "timestamp": 61_000}, ASSISTANT]
    first, second = requests(write(tmp_path, {"messages": messages}), tokenizer)
    assert (first.arrival_ms, second.arrival_ms) == (0, 60_000)
    assert (first.think_ms, second.think_ms) == (None, 0)


def test_the_time_of_a_conversation_is_that_of_its_first_turn(tmp_path, tokenizer):
    path = write(tmp_path, {**SHARE_GPT, "created": 100}, {**SHARE_GPT, "created": 50})
    workload = load(path, tokenizer)
    found = [(request.arrival_ms, request.think_ms) for request in workload.requests()]
    assert found == [(0, None), (None, 0), (50, None), (None, 0)]
    assert workload.check_arrivals() is None


def test_sessions_and_think_times(tmp_path):
    def record(token, session, **more):
        return {"prompt": [token], "max_tokens": 1, "session_id": session, **more}

    path = write(
        tmp_path,
        record(1, "a", timestamp=500),
        record(2, "b", timestamp=700),
        record(3, "a", delay=2000),
        record(4, "b", timestamp=900),
    )
    found = {request.prompt_token_ids[0]: request for request in requests(path)}
    assert [found[i].session for i in (1, 2, 3, 4)] == [0, 1, 0, 1]
    assert [found[i].think_ms for i in (1, 2, 3, 4)] == [None, None, 2000, 0]
    assert [found[i].arrival_ms for i in (1, 2, 3, 4)] == [0, 200, None, 400]
    assert load(path).check_arrivals() is None


@pytest.mark.parametrize("wrapper", ["body", "request"])
def test_a_request_within_its_record_may_say_all_of_it(tmp_path, wrapper):
    """What the record itself says comes first."""
    told = {"session_id": "a", "timestamp": 100, "output_length": 7}
    later = {"session_id": "a", "delay": 5, "timestamp": 1, "output_length": 9}
    path = write(
        tmp_path,
        {wrapper: {"prompt": [1], **told}},
        {wrapper: {"prompt": [2], **later}, "timestamp": 300, "output_length": 8, "delay": None},
    )
    first, second = requests(path)
    assert (first.session, first.arrival_ms, first.output_tokens) == (0, 0, 7)
    assert (second.session, second.arrival_ms, second.output_tokens) == (0, 200, 8)
    assert (first.think_ms, second.think_ms) == (None, 5)


def test_without_a_chat_template_messages_stand_one_behind_the_other(
    tmp_path, plain_tokenizer, hugging_face
):
    workload = load(write(tmp_path, SHARE_GPT), plain_tokenizer)
    _, second = workload.requests()
    text = f"user: {USER['content']}\nassistant: {ASSISTANT['content']}\n"
    ids = hugging_face.encode(f"{text}user: {LATER['content']}\nassistant:")
    assert second.prompt_token_ids == ids
    assert "2 prompts without a chat template, which the tokenizer lacks" in workload.in_words(
        is_timed=False
    )


def test_a_file_is_read_once_for_all_runs(tmp_path, tokenizer):
    path = write(tmp_path, SHARE_GPT)
    source = WorkloadSource(str(path), tokenizer=str(tokenizer)).prepared()
    before = list(source.load().requests())
    path.unlink()
    assert list(source.load().requests()) == before and len(before) == 2


def test_only_so_many(tmp_path):
    path = write(tmp_path, *({"prompt": [i], "max_tokens": 1} for i in range(5)))
    assert len(requests(path, max_requests=2)) == 2


def prompt(**changes):
    return {"prompt": [1], "max_tokens": 1, **changes}


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ({"messages": []}, "messages must be a non-empty list"),
        ({"messages": ["hi"]}, "messages[0]: expected a message with role and content"),
        ({"messages": [{"content": "x"}]}, "messages[0]: expected a message with role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0]: content of type image_url: text alone can be tokenized",
        ),
        ({"messages": [USER], "max_tokens": 1}, "holds text: give the folder"),
        ({"conversations": "x"}, "conversations must be a non-empty list"),
        (prompt(prompt=[]), "prompt must be a non-empty list of whole numbers"),
        (prompt(prompt=[1.5]), "prompt must be a non-empty list of whole numbers"),
        (prompt(prompt=[2**31]), "prompt has 2147483648, expected at most 2147483647"),
        (prompt(max_tokens=0), "max_tokens is 0, expected a whole number >= 1"),
        (prompt(usage={"completion_tokens": -1}), "completion_tokens is -1"),
        (prompt(url="/v1/embeddings"), "url is '/v1/embeddings', expected one of /completions"),
        (
            prompt(timestamp="soon"),
            "timestamp is 'soon', expected a number >= 0 or a time of ISO 8601",
        ),
        (prompt(timestamp=-1), "timestamp is -1, expected a number >= 0 or a time of ISO 8601"),
        (prompt(timestamp=[1]), "timestamp is [1], expected a number >= 0 or a time of ISO 8601"),
        (prompt(timestamp=1), "times must be in all records or in none"),
        (prompt(delay=1), "delay means nothing without a session"),
        (prompt(session="a", delay=-1), "delay is -1, expected a whole number >= 0"),
        ({"text": "x"}, "in no known format; known are prompt_token_ids, prompt, messages"),
        ([1], "expected a JSON object"),
    ],
)
@pytest.mark.parametrize("is_array", [True, False])
def test_a_bad_record_is_named_with_file_and_line(tmp_path, bad, complaint, is_array):
    path = write(tmp_path, prompt(), bad)
    if is_array:
        path.write_text("[\n" + json.dumps(prompt()) + ",\n" + json.dumps(bad) + "\n]\n")
    line = 3 if is_array else 2
    with pytest.raises(BadInputError, match=re.escape(f"{path}, line {line}: ")) as error:
        load(path)
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[", "line 1, column 2: not valid JSON"),
        (
            '[\n{"prompt": [1], "max_tokens": 1}\n{}]',
            "line 3, column 1: not valid JSON (Expecting ',' or ']')",
        ),
        ('[\n{"prompt": [1], "max_tokens": 1},\n{"prompt": ]', "line 3, column 12: not valid JSON"),
        (json.dumps(SHARE_GPT, indent=1), "line 1, column 2: not valid JSON (ends too early)"),
        ('[{"prompt": [1], "max_tokens": 1}]\n[]', "line 2, column 1: not valid JSON (more behind"),
        ("[]", "no requests"),
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("hello\n", "no JSON, and no log of --enable-log-requests"),
        ('{"text": "x"}', "line 1: in no known format; known are prompt_token_ids"),
        ('{"conversations": [{"from": "human", "value": "x"}]}', "no requests"),
    ],
)
def test_a_file_that_is_nothing_of_the_kind(tmp_path, text, complaint):
    path = tmp_path / "odd"
    path.write_text(text)
    with pytest.raises(BadInputError, match=re.escape(complaint)) as error:
        load(path)
    assert str(path) in str(error.value)


def test_tokenizers_that_are_none(tmp_path):
    path = write(tmp_path, {"prompt": "x", "max_tokens": 1})
    with pytest.raises(BadInputError, match="--tokenizer /no/where: expected a folder"):
        load(path, "/no/where")
    with pytest.raises(BadInputError, match=r"--tokenizer .*: cannot be used \(.*\)$") as error:
        load(path, tmp_path)
    assert "\n" not in str(error.value)


def test_a_template_that_does_not_take_the_messages_is_named(tmp_path, tokenizer):
    (tmp_path / "tokenizer").mkdir()
    for file in tokenizer.iterdir():
        (tmp_path / "tokenizer" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer/chat_template.jinja").write_text("{{ raise_exception('alternate!') }}")
    path = write(tmp_path, {"messages": [USER], "max_tokens": 1})
    with pytest.raises(
        BadInputError, match=r"line 1: the model's chat template fails \(alternate!"
    ):
        load(path, tmp_path / "tokenizer")
