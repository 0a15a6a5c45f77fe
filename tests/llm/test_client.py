"""One question over real HTTP: the meaning of every answer and failure."""

import asyncio
import json
from typing import Any

import pytest
from support.judge_server import KEY, JudgeServer, Reply, answer, failure, serving
from support.refusals import refuses

from smolsum.errors import SmolsumError, UsageError
from smolsum.llm.client import Answer, BadAnswer, Call, ChatClient, Declined, NoAnswer, parse_object
from smolsum.llm.endpoints import Endpoint

SCHEMA = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}
QUESTION = Call("How good is it?", SCHEMA, lambda found: found)


def ask(server: JudgeServer, model: str = "judge-a", key: str = "", call: Call = QUESTION) -> Answer:

    async def asked() -> Answer:
        async with ChatClient(Endpoint(server.url, model, key), connections=1) as client:
            return await client.ask(call)

    return asyncio.run(asked())


@pytest.mark.parametrize(
    ("reply", "kind", "says"),
    [
        (failure(429, "slow down", Retry_After="0.3"), NoAnswer, "HTTP 429: slow down"),
        (failure(500, "oops"), NoAnswer, "HTTP 500: oops"),
        (failure(503, "overloaded"), NoAnswer, "HTTP 503: overloaded"),
        ((500, {}, b"<!doctype html><p>Hi"), NoAnswer, "HTTP 500: a web page"),
        ((200, {}, b"{not json"), BadAnswer, "not a chat completion"),
        ((200, {}, b"{}"), BadAnswer, "not a chat completion"),
        (answer(""), BadAnswer, "an empty answer"),
        (failure(400, "too long"), Declined, "HTTP 400: too long"),
        (failure(429, "You exceeded your current quota", "insufficient_quota"), SmolsumError, "no credit left"),
        (failure(404, "nothing here"), UsageError, "has no judge 'judge-a'"),
        ((200, {"Content-Type": "text/html"}, b"<!DOCTYPE html><p>Hi"), UsageError, "a web page"),
        ((405, {}, b"<html>no"), UsageError, "HTTP 405"),
    ],
)
def test_failures_say_whether_to_ask_again(reply: Reply, kind: type[Exception], says: str) -> None:
    """NoAnswer and BadAnswer may pass, Declined concerns this question, a SmolsumError every other one too."""
    with serving(mischief=lambda prompt, before: reply) as server, pytest.raises(kind, match=says) as caught:
        ask(server)
    assert type(caught.value) is kind
    assert getattr(caught.value, "retry_after", None) == (0.3 if "Retry-After" in reply[1] else None)


def test_failures_that_concern_every_question_are_usage_errors() -> None:
    """A refused key, an unknown model, and a moved endpoint, whose remedy is another base URL, not another model."""
    with serving(key=KEY) as server:
        with refuses("key"):
            ask(server, key="wrong")
        with refuses("'judge-x'"):
            ask(server, "judge-x", KEY)
    moved = (301, {"Location": "https://h/v1/chat/completions"}, b"")
    with serving(mischief=lambda *_: moved) as server, refuses("export OPENAI_BASE_URL=https://h/v1"):
        ask(server)


def test_a_server_that_is_gone_may_come_back() -> None:
    """A refused connection is no answer."""
    with serving() as server:
        pass
    with pytest.raises(NoAnswer, match="ConnectError"):
        ask(server)


def test_a_server_without_response_formats_is_asked_without() -> None:
    """The prompt wants JSON too."""
    with serving(structured=False) as server:
        assert "score" in ask(server).value
        assert len(server.asked) == 1


@pytest.mark.parametrize("usage", [[{"prompt_tokens": 900}], "none", {"prompt_tokens": -3, "completion_tokens": 1e300}])
def test_token_counts_that_are_not_numbers_are_zero(usage: Any) -> None:
    """The answer stands."""
    status, headers, body = answer('{"score": 7}')
    changed = json.dumps(json.loads(body) | {"usage": usage}).encode()
    with serving(mischief=lambda prompt, before: (status, headers, changed)) as server:
        assert ask(server) == Answer({"score": 7}, 0, 0)


@pytest.mark.parametrize(
    "text",
    [
        '<think>maybe {"a"} or {b}</think>\n{"reason": "ok", "score": 10}',
        '{"score": 1}? No: ```json\n{"score": 10, "reason": "{}"}\n``` {"note": 1}',
        'Here it is:\n```json\n{"score": 10, "reason": "so"}\n```',
    ],
)
def test_the_last_object_with_the_key_counts(text: str) -> None:
    """Braces in what a model thinks aloud hide no answer, and fences do no harm."""
    assert parse_object(text, ["score"])["score"] == 10


@pytest.mark.parametrize("text", ["I would call that a fine summary.", "[7]", "{", "{" * 5000])
def test_an_answer_without_an_object_is_a_bad_one(text: str) -> None:
    """However many braces it has."""
    with pytest.raises(BadAnswer, match="no JSON in the answer"):
        parse_object(text, ())


ECHO = f"{'x' * 100} invalid key s3cret-of-mine, sent as Bearer s3cret-of-mine"


@pytest.mark.parametrize(
    "reply", [failure(401, ECHO), failure(400, ECHO), (200, {}, ECHO.encode()), answer("", note="s3cret-of-mine")]
)
def test_a_key_that_a_server_repeats_is_not_shown(reply: Reply) -> None:
    """Neither in the error for a refused key, nor where an answer cannot be read or a question is declined."""
    with (
        serving(mischief=lambda prompt, before: reply) as server,
        pytest.raises((UsageError, Declined, BadAnswer)) as caught,
    ):
        ask(server, key="s3cret-of-mine")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks5://me:secret@1.2.3.4:5"), ("HTTPS_PROXY", "foo://me:secret@h:1"),
        ("SSL_CERT_FILE", "/no/such/file"),
    ],
)  # fmt: skip
def test_bad_proxies_and_certificates_are_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a password; a model on this machine needs neither."""
    for other in ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_DIR"):
        monkeypatch.delenv(other, raising=False)
        monkeypatch.delenv(other.lower(), raising=False)
    monkeypatch.setenv(name, value)
    with refuses(name) as refused:
        ChatClient(Endpoint("https://api.openai.com/v1", "m", "k"), connections=1)
    assert "secret" not in f"{refused.value.message} {refused.value.hint}"
    with serving() as server:
        assert ask(server).value
