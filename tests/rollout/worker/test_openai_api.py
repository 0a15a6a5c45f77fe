"""OpenAI's completions and chat completions from a worker."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from support.serving import engine_of, face, refused

from smolsum.policy.load import encode_chat, load_policy
from smolsum.policy.sampling import generate

MESSAGES: Any = [{"role": "user", "content": "a short text"}]


def chat(worker: httpx.Client, **changes: Any) -> httpx.Response:
    return worker.post("/v1/chat/completions", json={"messages": MESSAGES, "seed": 3, "max_tokens": 20} | changes)


def test_chat_answers_with_the_policys_text(worker: httpx.Client, folder: Path) -> None:
    policy = load_policy(str(folder), dtype="float32")
    prompt = encode_chat(policy, MESSAGES)
    (here,) = generate(policy.model, [prompt], [[3, 4]], eos_ids=policy.eos_ids, temperature=1, max_new_tokens=20)
    found = chat(worker, n=2).json()
    expected = [policy.tokenizer.decode(list(c.token_ids), skip_special_tokens=True) for c in here]
    assert [choice["message"]["content"] for choice in found["choices"]] == expected
    assert [choice["finish_reason"] for choice in found["choices"]] == [c.finish_reason for c in here]
    assert found["usage"]["prompt_tokens"] == len(prompt)
    assert found["usage"]["completion_tokens"] == sum(len(c.token_ids) for c in here)
    (model,) = worker.get("/v1/models").json()["data"]
    assert (model["id"], model["owned_by"], model["created"] > 10**9) == ("m", "smolsum", True)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_stream_adds_up_to_the_whole_answer(worker: httpx.Client, path: str) -> None:
    chatting = "chat" in path
    body = {"messages": MESSAGES} if chatting else {"prompt": "a short text"}
    body |= {"seed": 5, "max_tokens": 30}
    choice = worker.post(path, json=body).json()["choices"][0]
    whole = choice["message"]["content"] if chatting else choice["text"]
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    with worker.stream("POST", path, json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        *events, done = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert done == "[DONE]"
    *pieces, usage = [json.loads(event) for event in events]
    if chatting:
        assert pieces[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        pieces = pieces[1:]
    texts = [c["choices"][0]["delta"].get("content", "") if chatting else c["choices"][0]["text"] for c in pieces]
    assert "".join(texts) == whole
    assert len(texts) > 1
    assert usage["usage"]["completion_tokens"] >= len(texts) - 1
    assert [c["choices"][0]["finish_reason"] for c in pieces][-1] == choice["finish_reason"]


@pytest.mark.parametrize(
    ("changes", "about"),
    [
        ({"top_p": 0}, "top_p"), ({"top_p": True}, "top_p"), ({"top_k": 5}, "top_k"),
        ({"presence_penalty": 0.5}, "presence_penalty"), ({"tools": [{}]}, "tools"), ({"echo": True}, "echo"),
        ({"prompt": "a"}, "prompt"), ({"stop": ""}, "stop"), ({"stop": [5]}, "stop"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"), ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": 0}, "logprobs"), ({"tool_choice": "auto"}, "tool_choice"), ({"guided_json": {}}, "guided_json"),
        ({"stream": "yes"}, "stream"), ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"max_tokens": 100000}, "max_tokens"), ({"n": 1000}, "n is"),
        ({"messages": [{"role": "user", "content": "a" * 5000}]}, "prompt"),
    ],
)  # fmt: skip
def test_unsupported_fields_are_refused(worker: httpx.Client, changes: dict[str, Any], about: str) -> None:
    """A field that would change the distribution, or cannot be honoured, is named."""
    answer = chat(worker, **changes)
    assert refused(answer, 422, about)
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", None)
    assert error["param"] in (*changes, "messages")


@pytest.fixture
def client(worker: httpx.Client) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{worker.base_url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_models_are_listed_and_retrieved_and_another_one_is_404(client: OpenAI) -> None:
    """By the official client, which reads type, code and message of an error."""
    assert [model.id for model in client.models.list()] == ["m"]
    assert client.models.retrieve("m").owned_by == "smolsum"
    for ask in (
        lambda: client.models.retrieve("gpt-5"),
        lambda: client.models.retrieve("a/b/c"),
        lambda: client.chat.completions.create(model="gpt-5", messages=MESSAGES),
        lambda: client.completions.create(model="gpt-5", prompt="a"),
    ):
        with pytest.raises(openai.NotFoundError, match="this worker has no model") as caught:
            ask()
        assert (caught.value.code, caught.value.type) == ("model_not_found", "invalid_request_error")
        assert "use 'm'" in caught.value.message
    with pytest.raises(openai.UnprocessableEntityError) as wrong:
        client.completions.create(model="m", prompt="a", max_tokens=10**6)
    assert (wrong.value.param, "hint: " in wrong.value.message) == ("max_tokens", True)
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.embeddings.create(model="m", input="a")


def test_a_wrong_token_is_an_authentication_error(folder: Path) -> None:
    """The trainer's paths keep their own form."""
    with face(engine_of(folder), token="secret") as served:
        with (
            OpenAI(base_url=f"{served.base_url}/v1", api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError) as caught,
        ):
            client.models.list()
        assert (caught.value.code, "SMOLSUM_WORKER_TOKEN" in caught.value.message) == ("invalid_api_key", True)
        assert served.post("/v1/rollouts", json={}).json().keys() == {"error", "hint"}


def test_text_parts_are_joined(client: OpenAI) -> None:
    """As chat interfaces send them; the name `developer` is that of the system's turn."""
    parts: Any = [{"type": "text", "text": "a short"}, {"type": "text", "text": " text"}]
    ask = dict[str, Any](model="m", seed=3, max_tokens=20)
    answers = [
        client.chat.completions.create(messages=messages, **ask).choices[0].message.content
        for messages in (
            MESSAGES,
            [{"role": "user", "content": parts}],
            [{"role": "developer", "content": "Be short."}, *MESSAGES],
            [{"role": "system", "content": "Be short."}, *MESSAGES],
        )
    ]
    assert answers[0] == answers[1] != answers[2] == answers[3]


def test_prompts_may_be_texts_token_ids_or_lists_of_either(client: OpenAI, folder: Path) -> None:
    """Each prompt has its `n` choices in order, the same as alone; prompts are counted once."""
    encode = load_policy(str(folder), dtype="float32").tokenizer.encode
    texts = ["a b", "c d e"]
    ask = dict[str, Any](model="m", seed=1, max_tokens=6, n=2)
    alone = [client.completions.create(prompt=text, **ask).choices for text in texts]
    expected = [choice.text for choices in alone for choice in choices]
    prompts: list[Any] = [texts, [encode(text) for text in texts]]
    for prompt in prompts:
        found = client.completions.create(prompt=prompt, **ask)
        assert [choice.text for choice in found.choices] == expected
        assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
        assert found.usage is not None
        assert found.usage.prompt_tokens == sum(len(encode(text)) for text in texts)
    assert client.completions.create(prompt=encode(texts[0]), **ask).choices[0].text == expected[0]
    wrong: Any
    for wrong in ([], [[]], ["a", 5], [[5], [10**9]], [None], {"a": 1}):
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            client.completions.create(prompt=wrong, **ask)
        assert caught.value.param == "prompt"


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_text_ends_a_choice_before_it(client: OpenAI, stream: bool) -> None:
    """Also one over several tokens, of which no part appears; what only begins as one is not lost."""
    ask = dict[str, Any](model="m", prompt="a b", seed=1, max_tokens=30)
    whole = client.completions.create(**ask).choices[0]
    stop = whole.text[8:11]
    assert whole.text.index(stop) == 8

    def text(**changes: Any) -> tuple[str, str | None]:
        found = client.completions.create(**ask | changes, stream=stream)
        if not stream:
            return found.choices[0].text, found.choices[0].finish_reason
        choices = [event.choices[0] for event in found]
        assert [choice.finish_reason for choice in choices[:-1]] == [None] * (len(choices) - 1)
        return "".join(choice.text for choice in choices), choices[-1].finish_reason

    assert text(stop=stop) == (whole.text[:8], "stop")
    assert text(stop=["never", f"{stop}never", stop]) == (whole.text[:8], "stop")
    assert text(stop=[f"{whole.text[-2:]}never"]) == (whole.text, whole.finish_reason)
    assert text(stop=["never"] * 4) == (whole.text, whole.finish_reason)


def test_log_probs_are_those_of_the_policy(client: OpenAI, worker: httpx.Client, folder: Path) -> None:
    """Of a chat and of a completion, whole and streamed: as /v1/logprobs scores the same tokens; the likeliest come
    first."""
    policy = load_policy(str(folder), dtype="float32")
    prompt = policy.tokenizer.encode("a b")
    ask = dict[str, Any](model="m", prompt=prompt, seed=1, max_tokens=12)
    found = client.completions.create(**ask, logprobs=3).choices[0].logprobs
    assert found is not None
    ids = [policy.tokenizer.encode(text)[0] for text in found.tokens or []]
    body = {"sequences": [{"prompt_ids": prompt, "completion_ids": ids}]}
    (scored,) = worker.post("/v1/logprobs", json=body).json()["logprobs"]
    assert found.token_logprobs == pytest.approx(scored, abs=1e-4)
    assert [len(best) for best in found.top_logprobs or []] == [3] * 12
    rows = zip(found.top_logprobs or [], found.tokens or [], found.token_logprobs or [], strict=True)
    for best, token, logprob in rows:
        assert max(best.values()) >= logprob - 1e-6
        assert best.get(token, logprob) == pytest.approx(logprob, abs=1e-6)
    assert found.text_offset == list(range(12))
    events = list(client.completions.create(**ask, logprobs=3, stream=True))
    pieces = [event.choices[0].logprobs for event in events]
    assert [value for piece in pieces for value in (piece and piece.token_logprobs) or []] == found.token_logprobs
    assert [value for piece in pieces for value in (piece and piece.text_offset) or []] == found.text_offset
    chatted = client.chat.completions.create(
        model="m", messages=MESSAGES, seed=3, max_tokens=9, logprobs=True, top_logprobs=2
    )
    content = chatted.choices[0].logprobs
    assert content is not None
    tokens = content.content or []
    written = "".join(token.token for token in tokens)  # special tokens too
    assert written.replace("<|im_start|>", "").replace("<|im_end|>", "") == chatted.choices[0].message.content
    assert all(len(token.top_logprobs) == 2 for token in tokens)
    assert all(token.logprob <= token.top_logprobs[0].logprob + 1e-6 for token in tokens)
    assert all(bytes(token.bytes or []).decode() == token.token for token in tokens)
    assert client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=2).choices[0].logprobs is None


def test_echo_scores_the_prompt(client: OpenAI, worker: httpx.Client, folder: Path) -> None:
    """As evaluation harnesses ask for the likelihood of a text: the prompt's tokens with their log-probs, then what is
    sampled; with 0 new tokens nothing is."""
    prompt = load_policy(str(folder), dtype="float32").tokenizer.encode("a longer text " * 12)
    assert len(prompt) > 128  # in more than one piece
    body = {"sequences": [{"prompt_ids": prompt[:1], "completion_ids": prompt[1:]}]}
    (scored,) = worker.post("/v1/logprobs", json=body).json()["logprobs"]
    ask = dict[str, Any](model="m", prompt=[prompt], temperature=0, echo=True, logprobs=1)
    for new in (1, 0):
        (choice,) = client.completions.create(**ask, max_tokens=new).choices
        found = choice.logprobs
        assert found is not None
        assert found.token_logprobs is not None
        assert len(found.token_logprobs) == len(prompt) + new
        assert found.token_logprobs[0] is None
        assert found.token_logprobs[1 : len(prompt)] == pytest.approx(scored, abs=1e-4)
        assert [best is None for best in found.top_logprobs or []] == [True] + [False] * (len(prompt) - 1 + new)
        assert "".join(found.tokens or []) == choice.text
    assert client.completions.create(model="m", prompt="a b", max_tokens=3, echo=True).choices[0].text.startswith("a b")


def test_top_p_keeps_the_likeliest_tokens(client: OpenAI) -> None:
    """Close to 0 it is greedy; at 0.5 only tokens of the likeliest half come; others in the batch are not changed."""
    ask = dict[str, Any](model="m", prompt="a b", seed=1, max_tokens=30)
    greedy = client.completions.create(**ask | {"temperature": 0}).choices[0].text
    assert client.completions.create(**ask, top_p=1e-6).choices[0].text == greedy
    assert client.completions.create(**ask, top_p=1).choices == client.completions.create(**ask).choices
    whole = client.completions.create(**ask, n=8, logprobs=20).choices
    half = client.completions.create(**ask, n=8, top_p=0.5, logprobs=20).choices
    assert [choice.text for choice in whole] != [choice.text for choice in half]
    for choice in half:
        assert choice.logprobs is not None
        for best, logprob in zip(choice.logprobs.top_logprobs or [], choice.logprobs.token_logprobs or [], strict=True):
            kept = [math.exp(value) for value in best.values() if value > -1000]
            assert logprob > -1000
            # what is left sums to 1 again, and without its least likely token it was less than half
            assert sum(kept) == pytest.approx(1, abs=0.05) or len(kept) == 20


@pytest.mark.parametrize("name", ["top_p", "top_k", "min_p", "repetition_penalty", "stop", "logit_bias"])
def test_rollouts_for_training_refuse_what_changes_them(worker: httpx.Client, name: str) -> None:
    """A neutral value is no change."""
    values: dict[str, Any] = {"stop": ["a"], "logit_bias": {"5": 1}}
    neutral: dict[str, Any] = {"stop": [], "logit_bias": {}, "top_k": 0, "min_p": 0}
    body = {"temperature": 1, "max_new_tokens": 3, "requests": [{"id": "a", "prompt_ids": [5, 6], "seed": 1}]}
    assert worker.post("/v1/rollouts", json=body | {name: neutral.get(name, 1)}).is_success
    assert refused(worker.post("/v1/rollouts", json=body | {name: values.get(name, 0.5)}), 422, name)
