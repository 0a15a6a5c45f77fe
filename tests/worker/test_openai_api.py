"""OpenAI's completions and chat completions from a worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.models import write
from support.serving import face

from smolsum.policy.load import encode_chat, load_policy
from smolsum.policy.sampling import generate
from smolsum.worker.engines.mlx import MlxEngine

MESSAGES = [{"role": "user", "content": "a short text"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on disk."""
    return write(tmp_path_factory.mktemp("models") / "m", "qwen2")


@pytest.fixture(scope="module")
def worker(folder: Path) -> Iterator[httpx.Client]:
    """A worker that serves it."""
    with face(MlxEngine(str(folder), dtype="float32", quantize=0, max_model_len=None)) as client:
        yield client


def chat(worker: httpx.Client, **changes: Any) -> httpx.Response:
    return worker.post("/v1/chat/completions", json={"messages": MESSAGES, "seed": 3, "max_tokens": 20} | changes)


def test_chat_answers_with_the_policys_text(worker: httpx.Client, folder: Path) -> None:
    """The answer is the text of what the policy samples, with its usage."""
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
    """Its pieces, its finish reason and its usage."""
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
        ({"top_p": 0.9}, "top_p"),
        ({"tools": [{}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": 0}, "logprobs"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"guided_json": {}}, "guided_json"),
        ({"stream": "yes"}, "stream"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"max_tokens": 100000}, "max_tokens"),
        ({"n": 1000}, "n is"),
        ({"messages": [{"role": "user", "content": "a" * 5000}]}, "prompt"),
    ],
)
def test_unsupported_fields_are_refused(worker: httpx.Client, changes: dict[str, Any], about: str) -> None:
    """A field that would change the distribution, or cannot be honoured, is named."""
    answer = chat(worker, **changes)
    assert answer.status_code == 422
    assert about in answer.json()["error"]
