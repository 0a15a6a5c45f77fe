"""Many questions over real HTTP while something else is under way: answers in order, outages, limits, the cache."""

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.judge_server import KEY, Reply, answer, failure, serving
from support.refusals import refuses
from support.training import PATIENCE_S

from smolsum import console
from smolsum.console import WaitHook, use_hook
from smolsum.errors import UnreachableError
from smolsum.files import read_jsonl
from smolsum.llm import batch
from smolsum.llm.batch import BatchClient
from smolsum.llm.cache import AnswerCache, KeptAnswer
from smolsum.llm.client import BadAnswer, Call
from smolsum.llm.endpoints import Endpoint
from smolsum.llm.request_policy import RequestBudget, RequestPolicy

SCHEMA = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
QUICK = RequestPolicy(attempts=3, deadline_s=2.0, wait_s=0.01)
NOTHING = "http://127.0.0.1:9/v1"
"""an address where nothing listens"""


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


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


def client(
    url: str, requests: RequestPolicy = QUICK, *, model: str = "judge-a", key: str = "", role: str = "reader",
    **more: Any,
) -> BatchClient:  # fmt: skip
    """A client for one model at this address, which does not wait for it unless it is said."""
    endpoint = Endpoint(url, model, key, role, "--set task.reader=MODEL:")
    return BatchClient(endpoint, requests, **({"wait_s": 0.0} | more))


def test_answers_come_in_order_and_are_paid_for_once() -> None:
    """Also for a question that occurs twice, and in another process, which has the cache."""
    with serving(mischief=lambda prompt, before: right(prompt)) as server:
        one = client(server.url)
        assert one.ask([*calls(20), *calls(3)]) == [*range(20), 0, 1, 2]
        assert one.ask(calls(20)) == list(range(20))
        assert client(server.url).ask(calls(20)) == list(range(20))
        assert len(server.asked) == 20


def test_questions_are_asked_at_the_same_time() -> None:
    """After the first, each answer waits until eight questions are there."""
    eight = threading.Barrier(8)

    def together(prompt: str, before: int) -> Reply:
        if prompt.split()[-1] != "0":
            eight.wait(PATIENCE_S)
        return right(prompt)

    with serving(mischief=together) as server:
        patient = RequestPolicy(attempts=1, deadline_s=PATIENCE_S)
        assert client(server.url, patient).ask(calls(17)) == list(range(17))


@pytest.mark.parametrize("trouble", [answer('{"number": "seven"}'), (200, {}, b"{")])
def test_a_failure_that_passes_costs_no_value(trouble: Reply) -> None:
    """An answer of another type, half a body: each question is asked again."""
    with serving(mischief=lambda prompt, before: right(prompt) if before else trouble) as server:
        assert client(server.url).ask(calls(6)) == list(range(6))


def test_a_question_that_fails_for_good_is_missing() -> None:
    """None and never 0; reported once; not asked again at once; the others have their answers."""
    events: list[tuple[str, str]] = []
    hook = WaitHook(notify=lambda kind, message: events.append((kind, message)))
    broken: Reply = failure(500, "oops")
    with serving(mischief=lambda p, n: broken if p.endswith(" 2") else right(p)) as server, use_hook(hook):
        one = client(server.url)
        assert one.ask(calls(5)) == [0, 1, None, 3, 4]
        assert one.ask(calls(5)) == [0, 1, None, 3, 4]
        assert len(server.asked) == 4 + QUICK.attempts
    assert events == [("unanswered", "the reader judge-a failed 1 of 5 questions; the last failure: HTTP 500: oops")]


def test_an_outage_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unanswered questions are asked again, and the end of the outage is an event."""
    monkeypatch.setattr(batch, "FIRST_PAUSE_S", 0.01)
    events: list[str] = []

    def down(prompt: str, before: int) -> Reply | None:
        return right(prompt) if events else failure(503, "starting")

    hook = WaitHook(notify=lambda kind, message: events.append(kind))
    with serving(mischief=down) as server, use_hook(hook):
        assert client(server.url, wait_s=60.0).ask(calls(30)) == list(range(30))
    assert events == ["reader_lost", "reader_back"]


def test_an_outage_that_lasts_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the whole wait, of which the last pause is what is left, and at once if the user wants to stop."""
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr(batch, "time", clock)
    monkeypatch.setattr(console, "time", clock)
    monkeypatch.setattr(console, "POLL_S", 3600.0)
    with refuses("ConnectError", "none for 4 s", error=UnreachableError):
        client(NOTHING, wait_s=3.5).ask(calls(3))
    assert pauses == [1.0, 2.0, 0.5]
    with use_hook(WaitHook(stopping=lambda: True, notify=lambda *_: None)), refuses(error=UnreachableError):
        client(NOTHING, wait_s=3600.0).ask(calls(3))
    assert len(pauses) == 3


def test_an_outage_after_a_refusal_is_one() -> None:
    """A refusal after the first answer is about its question: it hides no outage."""

    def reply(prompt: str, before: int) -> Reply:
        number = int(prompt.split()[-1])
        return right(prompt) if number < 2 else failure(400, "no") if number == 2 else failure(500, "oops")

    with serving(mischief=reply) as server, refuses("20 questions in a row", error=UnreachableError):
        client(server.url, RequestPolicy(attempts=1)).ask(calls(60))


def test_a_budget_limits_all_clients_together() -> None:
    """It counts requests, and answers are kept for the next budget."""
    with serving(mischief=lambda prompt, before: right(prompt)) as server:
        seven = RequestBudget(7, "task.max_calls")
        assert client(server.url, budget=seven).ask(calls(4)) == list(range(4))
        with refuses("7 requests", "task.max_calls", error=UnreachableError):
            client(server.url, budget=seven, role="grader").ask(calls(30))
        assert len(server.asked) == 7
        more = RequestBudget(27, "task.max_calls")
        assert client(server.url, budget=more, role="grader").ask(calls(30)) == list(range(30))


def test_the_end_of_a_budget_is_no_failure() -> None:
    """Without its next attempt nothing is known of a question: an error, and not a missing value."""
    with serving(mischief=lambda prompt, before: failure(500, "oops") if " 2" in prompt else right(prompt)) as server:
        with refuses("task.max_calls", error=UnreachableError):
            client(server.url, budget=RequestBudget(4, "task.max_calls")).ask(calls(3))
        assert len(server.asked) == 4


def test_a_wrong_key_or_name_is_not_waited_for() -> None:
    """One request shows it; for a name the endpoint's own ones are offered."""
    with serving(key=KEY) as server, refuses("key"):
        client(server.url, wait_s=60.0, key="wrong").ask(calls(30))
    with serving() as server, refuses("no reader 'judge-x'", "did you mean judge-"):
        client(server.url, model="judge-x", wait_s=60.0).ask(calls(30))


def cache() -> AnswerCache[KeptAnswer]:
    """The answers of one reader."""
    return AnswerCache("reader", "a model/at http://h", KeptAnswer, "again")


def test_damaged_lines_cost_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are counted and left in the file; a stored refusal is known but no answer."""
    with cache() as written:
        written.add(KeptAnswer("a", 1))
        written.add(KeptAnswer("b", None))
    (path,) = tmp_path.rglob("*.jsonl")
    assert path == tmp_path / "smolsum" / "reader" / "a-model-at-http-h.jsonl"
    content = path.read_bytes() + b'{nonsense\n{"id": 3}\n{"key": 3, "answer": 4}\n[]\n'
    path.write_bytes(content)
    assert {key: kept.answer for key, kept in cache().known.items()} == {"a": 1, "b": None}
    assert path.read_bytes() == content
    assert f"warning: skipped 4 damaged lines of {path}" in capsys.readouterr().err


def test_processes_share_a_cache(tmp_path: Path) -> None:
    """Lines of processes that open and append at the same time are all there, whole."""
    code = (
        "import sys; from smolsum.llm.cache import AnswerCache, KeptAnswer\n"
        "cache = AnswerCache('reader', 'shared', KeptAnswer, 'again')\n"
        "for n in range(100):\n"
        "    with cache: cache.add(KeptAnswer(f'{sys.argv[1]}{n}', sys.argv[1] * 5000))\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, letter]) for letter in "xyz"]
    assert [process.wait(PATIENCE_S) for process in processes] == [0, 0, 0]
    rows = read_jsonl(tmp_path / "smolsum" / "reader" / "shared.jsonl")
    assert {row["key"] for row in rows} == {f"{letter}{n}" for letter in "xyz" for n in range(100)}
    assert all(row["answer"] == row["key"][0] * 5000 for row in rows)
