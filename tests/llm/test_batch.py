"""A model asked over real HTTP amid something else: late, refusing, talking nonsense, hanging, or away for long."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.judge_server import KEY, Reply, answer, failure, serving

from smolsum.errors import UnreachableError, UsageError
from smolsum.llm.batch import BatchClient, Call
from smolsum.llm.client import BadAnswer, Endpoint
from smolsum.llm.retry import RequestBudget, RetryPolicy, WaitHook, use_hook

SCHEMA = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
QUICK = RetryPolicy(attempts=3, deadline_s=2.0, wait_s=0.01)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def number(found: Mapping[str, Any]) -> int:
    """Reads an answer."""
    if not isinstance(found.get("number"), int):
        raise BadAnswer("no number")
    return int(found["number"])


def calls(count: int) -> list[Call]:
    """Questions whose answer is their own number."""
    return [Call(f"Which number? {n}", SCHEMA, number) for n in range(count)]


def right(prompt: str) -> Reply:
    """The answer to one of them."""
    return answer(json.dumps({"number": int(prompt.split()[-1])}))


def panel(
    url: str,
    *,
    retry: RetryPolicy = QUICK,
    wait_s: float = 0.0,
    budget: RequestBudget | None = None,
    key: str = "",
    role: str = "reader",
) -> BatchClient:
    """Somebody to ask."""
    endpoint = Endpoint(url, "judge-a", key, role, "--set task.reader=MODEL:")
    return BatchClient(endpoint, retry=retry, concurrency=8, wait_s=wait_s, budget=budget)


def test_answers_come_in_order_and_are_paid_for_once() -> None:
    """Also where a question stands twice, and in another process, which has the cache."""
    with serving(mischief=lambda prompt, before: right(prompt)) as server:
        asked = panel(server.url)
        assert asked.ask([*calls(20), *calls(3)]) == [*range(20), 0, 1, 2]
        assert asked.ask(calls(20)) == list(range(20))
        assert panel(server.url).ask(calls(20)) == list(range(20))
        assert len(server.asked) == 20


def test_many_at_a_time() -> None:
    """40 answers of 0.2 s, 8 at a time after the first, take about 1.2 s and not 8."""
    with serving(latency_s=0.2, mischief=lambda prompt, before: right(prompt)) as server:
        began = time.monotonic()
        panel(server.url).ask(calls(40))
        assert time.monotonic() - began < 6.0


@pytest.mark.parametrize(
    "trouble",
    [
        failure(429, "slow down", retry_after="0.01"),
        failure(500, "oops"),
        answer("I would say that it is seven."),
        answer('{"number": "seven"}'),
        (200, {}, b"{"),
    ],
)
def test_what_goes_wrong_once_is_asked_again(trouble: Reply) -> None:
    """Too many requests, a broken server, prose, another type, half a body: no value is lost."""
    with serving(mischief=lambda prompt, before: right(prompt) if before else trouble) as server:
        assert panel(server.url).ask(calls(6)) == list(range(6))


def test_what_fails_for_good_is_missing() -> None:
    """None and never 0; told once; not asked again at once; the others have their answers."""
    told: list[tuple[str, str]] = []
    with serving(
        mischief=lambda prompt, before: failure(500, "oops") if prompt.endswith(" 2") else right(prompt)
    ) as server, use_hook(WaitHook(notify=lambda kind, message: told.append((kind, message)))):  # fmt: skip
        asked = panel(server.url)
        assert asked.ask(calls(5)) == [0, 1, None, 3, 4]
        assert asked.ask(calls(5)) == [0, 1, None, 3, 4]
        assert len(server.asked) == 4 + QUICK.attempts
    assert told == [("unanswered", "the reader judge-a failed 1 of 5 questions, the last with HTTP 500: oops")]


def test_one_that_hangs_is_given_up() -> None:
    """Its deadline ends each attempt."""

    def hangs(prompt: str, before: int) -> Reply | None:
        if prompt.endswith(" 1"):
            time.sleep(1.0)
        return right(prompt)

    with serving(mischief=hangs) as server:
        retry = RetryPolicy(attempts=2, deadline_s=0.3, wait_s=0.01)
        assert panel(server.url, retry=retry).ask(calls(3)) == [0, None, 2]


def test_an_outage_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as was said; what was missing is asked again, and the way back is told."""
    told: list[str] = []
    begun = time.monotonic()

    def down(prompt: str, before: int) -> Reply | None:
        return failure(503, "starting") if time.monotonic() - begun < 2.0 else right(prompt)

    with serving(mischief=down) as server, use_hook(WaitHook(notify=lambda kind, message: told.append(kind))):
        assert panel(server.url, wait_s=60.0).ask(calls(30)) == list(range(30))
    assert told == ["reader_lost", "reader_back"]


def test_an_outage_that_lasts_ends_the_wait() -> None:
    """Nobody there: UnreachableError after the wait, and at once if somebody wants to leave."""
    with pytest.raises(UnreachableError, match=r"does not answer: ConnectError.*; none for") as stopped:
        panel("http://127.0.0.1:9/v1", wait_s=1.5).ask(calls(3))
    assert stopped.value.hint
    began = time.monotonic()
    with use_hook(WaitHook(stopping=lambda: True, notify=lambda *_: None)), pytest.raises(UnreachableError):
        panel("http://127.0.0.1:9/v1", wait_s=3600.0).ask(calls(3))
    assert time.monotonic() - began < 10.0


def test_the_whole_wait_is_waited_for() -> None:
    """The last pause is as long as what is left of it, and not given up."""
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="none for 2 s"):
        panel("http://127.0.0.1:9/v1", wait_s=2.0).ask(calls(3))
    assert time.monotonic() - began >= 2.0


def test_an_outage_after_a_refusal_is_one() -> None:
    """Once there was an answer a refusal is about its question: it hides no outage."""

    def reply(prompt: str, before: int) -> Reply:
        number = int(prompt.split()[-1])
        return right(prompt) if number < 2 else failure(400, "no") if number == 2 else failure(500, "oops")

    with serving(mischief=reply) as server, pytest.raises(UnreachableError, match="failed 20 questions in a row"):
        panel(server.url, retry=RetryPolicy(attempts=1)).ask(calls(60))


def test_no_more_calls_than_allowed() -> None:
    """The budget of a run is a limit on requests, not a hope, and one for all who are asked; what they brought is
    kept."""
    with serving(mischief=lambda prompt, before: right(prompt)) as server:
        seven = RequestBudget(7, "task.max_calls")
        assert panel(server.url, budget=seven).ask(calls(4)) == list(range(4))
        with pytest.raises(UnreachableError, match=r"the 7 requests that task\.max_calls allows are used up"):
            panel(server.url, budget=seven, role="grader").ask(calls(30))
        assert len(server.asked) == 7
        more = RequestBudget(27, "task.max_calls")
        assert panel(server.url, budget=more, role="grader").ask(calls(30)) == list(range(30))


def test_what_the_last_allowed_call_did_not_bring_is_no_failure() -> None:
    """Its next attempt is not paid for, so that nothing is known of it: an end, and not a missing value."""
    with serving(mischief=lambda prompt, before: failure(500, "oops") if " 2" in prompt else right(prompt)) as server:
        with pytest.raises(UnreachableError, match="used up"):
            panel(server.url, budget=RequestBudget(4, "task.max_calls")).ask(calls(3))
        assert len(server.asked) == 4


def test_a_wrong_key_or_name_ends_it_with_one_request() -> None:
    """Waiting would not help."""
    with serving(key=KEY) as server, pytest.raises(UsageError, match="refuses the key"):
        panel(server.url, wait_s=60.0, key="wrong").ask(calls(30))
    with serving() as server:
        asked = BatchClient(
            Endpoint(server.url, "judge-x", "", "reader", "--set task.reader=MODEL:"),
            retry=QUICK,
            concurrency=8,
            wait_s=60,
        )
        with pytest.raises(UsageError, match="has no reader 'judge-x'") as refused:
            asked.ask(calls(30))
        assert "did you mean judge-" in str(refused.value.hint)


def test_a_damaged_cache_is_begun_anew(tmp_path: Path) -> None:
    """It holds nothing that cannot be asked again."""
    with serving(mischief=lambda prompt, before: right(prompt)) as server:
        panel(server.url).ask(calls(3))
        (file,) = (tmp_path / "cache").rglob("*.jsonl")
        assert file.parent.name == "reader"
        file.write_bytes(b"not json\n")
        assert panel(server.url).ask(calls(3)) == [0, 1, 2]
        assert len(server.asked) == 6
