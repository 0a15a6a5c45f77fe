"""Judging over real HTTP: whatever the endpoint does, no score is lost, invented or counted as 0."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.judge_server import KEY, JudgeServer, Mischief, Reply, answer, failure, score_of, serving

from smolsum.errors import SmolsumError, UnreachableError, UsageError
from smolsum.evaluate.judge_metrics import judged_columns, judged_summary
from smolsum.evaluate.judging import (
    JUDGEMENTS,
    Estimate,
    Item,
    Judged,
    JudgeJob,
    JudgeOptions,
    ask_judge,
    judge_facts,
    judges_agreement,
)
from smolsum.files import read_jsonl
from smolsum.llm.client import ChatClient, Endpoint, find_endpoint
from smolsum.llm.retry import MAX_CONSECUTIVE_FAILURES, RetryPolicy
from smolsum.tasks.tldr import CRITERIA

QUICK = RetryPolicy(attempts=3, deadline_s=5.0, wait_s=0.01)
ITEMS = [
    Item(f"post-{n}", f"Noah lost {n + 3} keys on the way to work.", f"Noah lost {n + 3} keys.", (f"{n} keys",))
    for n in range(3)
]
ALL = len(ITEMS) * len(CRITERIA)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def judge(
    server: JudgeServer,
    folder: Path,
    items: list[Item] = ITEMS,
    *,
    model: str = "judge-a",
    rounds: int = 2,
    retry: RetryPolicy = QUICK,
    concurrency: int = 4,
    fresh: bool = False,
    approve: Callable[[Estimate], bool] = lambda estimate: True,
    key: str | None = None,
) -> tuple[Judged, SmolsumError | None]:
    endpoint = Endpoint(server.url, model, server.key if key is None else key)
    options = JudgeOptions(endpoint, None, rounds, concurrency, retry, lambda name, cost: approve(cost), fresh)
    return ask_judge(JudgeJob(folder, items, CRITERIA, "again"), endpoint, options)


def scores(judged: Judged) -> dict[tuple[str, int, str], float | None]:
    return {(j.id, j.round, j.metric): j.score for found in judged.judgements.values() for j in found}


def expected(server: JudgeServer, items: list[Item] = ITEMS, rounds: int = 2) -> dict[tuple[str, int, str], float]:
    """What the server says of each completion and metric: by its prompts, as it sees nothing else."""
    found = {}
    for prompt in server.prompts():
        for item in items:
            if f"Actual Output:\n{item.completion} \n" in prompt:
                metric = next(c.name for c in CRITERIA if c.steps[0] in prompt)
                for number in range(1, rounds + 1):
                    found[item.id, number, metric] = score_of("judge-a", prompt) / 10
    return found


def by_post(n: int, reply: Callable[[int], Reply | None]) -> Mischief:
    """Mischief with one post alone."""
    return lambda prompt, before: reply(before) if ITEMS[n].completion in prompt else None


def test_every_score_arrives(tmp_path: Path) -> None:
    """Each question is asked once a round, on one client; scores are the judge's, divided by ten."""
    with serving(key=KEY) as server:
        judged, failed = judge(server, tmp_path)
        assert failed is None
        assert not judged.missing
        assert scores(judged) == pytest.approx(expected(server))
        assert len(scores(judged)) == 2 * ALL == len(server.asked)
        assert set(server.prompts().values()) == {2}
        assert server.connections <= 5  # four at a time, and the list of models
    assert judged.usage["calls"] == 2 * ALL
    assert (judged.usage["input_tokens"], judged.usage["output_tokens"]) == (900 * 2 * ALL, 50 * 2 * ALL)


def test_what_each_metric_shows(tmp_path: Path) -> None:
    """Clarity is judged on the summary alone, the others on post and summary; nobody shows the reference."""
    with serving() as server:
        judge(server, tmp_path, rounds=1)
    for prompt in server.prompts():
        assert (ITEMS[0].source in prompt or "to work" in prompt) == ("Clarity" not in prompt and "Input:\n" in prompt)
        assert "Expected Output" not in prompt
    alone = [prompt for prompt in server.prompts() if "Input:\n" not in prompt]
    assert len(alone) == len(ITEMS)
    assert all(CRITERIA[3].steps[0] in prompt for prompt in alone)


@pytest.mark.parametrize(
    ("once", "least_s"),
    [
        (failure(429, "slow down", Retry_After="0.3"), 0.3),
        (failure(500, "oops"), 0.0),
        (failure(503, "overloaded"), 0.0),
        ((200, {}, b"{not json"), 0.0),
        ((200, {}, b"{}"), 0.0),
        (answer(""), 0.0),
        (answer("I would call that a fine summary."), 0.0),
        (answer('{"reason": "no score"}'), 0.0),
        (answer('{"score": "many", "reason": ""}'), 0.0),
        (answer('{"score": 11, "reason": ""}'), 0.0),
        (answer('{"score": -1, "reason": ""}'), 0.0),
        (answer('{"score": 0.8, "reason": ""}'), 0.0),
        (answer('{"score": NaN, "reason": ""}'), 0.0),
        (answer('{"score": true, "reason": ""}'), 0.0),
        (answer('{"score": null, "reason": ""}'), 0.0),
        (answer("[7]"), 0.0),
    ],
)
def test_what_passes_is_asked_again(once: Reply, least_s: float, tmp_path: Path) -> None:
    """An answer that is none is not a score: the question is asked again, after as long as the judge says."""
    with serving(mischief=by_post(1, lambda before: once if before == 0 else None)) as server:
        began = time.monotonic()
        judged, failed = judge(server, tmp_path, rounds=1)
        assert time.monotonic() - began >= least_s
        assert failed is None
        assert not judged.missing
        assert scores(judged) == pytest.approx(expected(server, rounds=1))
        assert len(server.asked) == ALL + len(CRITERIA) == judged.usage["calls"]
        paid = ALL + len(CRITERIA) * (once[0] == 200 and b"usage" in once[2] and b'"content": ""' not in once[2])
        assert judged.usage["output_tokens"] == 50 * paid


@pytest.mark.parametrize(
    "always",
    [
        failure(500, "oops"),
        failure(429, "slow down"),
        failure(400, "this model's maximum context length is 10 tokens"),
        answer("A fine summary."),
        answer('{"score": 12, "reason": ""}'),
    ],
)
def test_what_does_not_pass_is_missing(always: Reply, tmp_path: Path) -> None:
    """A question that fails for good is missing and listed with its reason, never 0; the others are scored."""
    with serving(mischief=by_post(1, lambda before: always)) as server:
        judged, failed = judge(server, tmp_path)
        assert failed is None
        assert {(j.id, j.score) for j in judged.missing} == {("post-1", None)}
        assert len(judged.missing) == 2 * len(CRITERIA)
        assert all(j.error for j in judged.missing)
        others = {key: score for key, score in expected(server).items() if key[0] != "post-1"}
        assert {key: score for key, score in scores(judged).items() if score is not None} == pytest.approx(others)
    row = judged_columns(CRITERIA, 2, judged.judgements["post-1"])
    assert [row[name] for name in ("faithfulness", "composite", "pass_rate", "passed")] == [None] * 4
    assert row["rounds"]["composite"] == [None, None]
    summary = judged_summary(CRITERIA, [judged_columns(CRITERIA, 2, found) for found in judged.judgements.values()])
    assert summary["composite"] == pytest.approx(sum(others.values()) / (len(ITEMS) - 1) / 2)


def test_a_judge_that_hangs_is_given_up(tmp_path: Path) -> None:
    """An answer that never comes ends at its deadline, and holds up nobody else."""
    with serving() as server:

        def hang(before: int) -> None:
            server.stopped.wait(30)

        server.mischief = by_post(1, hang)
        began = time.monotonic()
        judged, _ = judge(server, tmp_path, rounds=1, retry=RetryPolicy(attempts=2, deadline_s=0.5, wait_s=0.01))
        assert time.monotonic() - began < 20
    assert {j.id for j in judged.missing} == {"post-1"}
    assert all("no answer within 0.5 s" in j.error for j in judged.missing)


def test_late_answers_count(tmp_path: Path) -> None:
    """Late is not lost."""
    with serving(latency_s=0.3) as server:
        judged, _ = judge(server, tmp_path, rounds=1)
    assert not judged.missing


def test_only_what_is_missing_is_asked_again(tmp_path: Path) -> None:
    """A second evaluation asks the failures alone; the first one's scores stay."""
    with serving(mischief=by_post(2, lambda before: failure(500, "oops"))) as server:
        first, _ = judge(server, tmp_path)
        assert len(first.missing) == 2 * len(CRITERIA)
        server.asked.clear()
        server.mischief = lambda prompt, before: None
        second, _ = judge(server, tmp_path)
        assert len(server.asked) == 2 * len(CRITERIA)
        assert all(ITEMS[2].completion in prompt for prompt in server.prompts())
        assert not second.missing
        kept = {key: score for key, score in scores(first).items() if score is not None}
        assert kept.items() <= scores(second).items()
        server.asked.clear()
        third, _ = judge(server, tmp_path)
        assert not server.asked
        assert scores(third) == scores(second)
    attempts = 2 * ALL + 2 * len(CRITERIA) * (QUICK.attempts - 1) + 2 * len(CRITERIA)
    assert first.usage["calls"] == attempts - 2 * len(CRITERIA)
    assert third.usage["calls"] == second.usage["calls"] == attempts
    assert third.usage["input_tokens"] == 900 * 2 * ALL  # what failed with HTTP 500 counted none


def test_a_torn_line_is_asked_again(tmp_path: Path) -> None:
    """What a killed process left of a last line is no score."""
    with serving() as server:
        judge(server, tmp_path, rounds=1)
        lines = tmp_path / JUDGEMENTS
        content = lines.read_bytes()
        lines.write_bytes(content[:-20])
        for cache in (tmp_path / "cache").rglob("*.jsonl"):
            cache.unlink()
        server.asked.clear()
        judged, _ = judge(server, tmp_path, rounds=1)
        assert len(server.asked) == 1
        assert not judged.missing
    assert len(read_jsonl(lines)) == ALL


def test_the_same_texts_are_paid_for_once(tmp_path: Path) -> None:
    """Another evaluation, or another example, with the same texts takes the scores that are there."""
    with serving() as server:
        first, _ = judge(server, tmp_path / "one")
        server.asked.clear()
        again = [Item(f"other-{item.id}", item.source, item.completion, item.references) for item in ITEMS]
        second, _ = judge(server, tmp_path / "two", again)
        assert not server.asked
        assert list(scores(second).values()) == list(scores(first).values())
        assert second.usage["cached"] == 2 * ALL
        changed = [Item("post-0", ITEMS[0].source, "Nothing of that kind.", ())]
        judge(server, tmp_path / "two", changed)
        assert len(server.asked) == 2 * len(CRITERIA)
        server.asked.clear()
        twins = [Item("a", "A new post.", "Both say this.", ()), Item("b", "A new post.", "Both say this.", ())]
        judged, _ = judge(server, tmp_path / "three", twins)
        assert len(server.asked) == 2 * len(CRITERIA)
        assert not judged.missing


def test_lines_say_who_judged_what(tmp_path: Path) -> None:
    """One line for each (example, round, metric), with judge, score, reason and tokens."""
    with serving() as server:
        judge(server, tmp_path)
    rows = read_jsonl(tmp_path / JUDGEMENTS)
    assert len({(row["id"], row["round"], row["metric"]) for row in rows}) == len(rows) == 2 * ALL
    assert {row["judge"] for row in rows} == {f"judge-a at {server.url}"}
    assert all(0 <= row["score"] <= 1 and row["reason"] == "as the steps say" for row in rows)


def test_the_user_is_asked_first(tmp_path: Path) -> None:
    """Calls, tokens and cost are known before the first call; without consent none is made."""
    told: list[Estimate] = []

    def refuse(estimate: Estimate) -> bool:
        told.append(estimate)
        return False

    with serving() as server:
        judged, _ = judge(server, tmp_path, approve=refuse)
        assert not server.asked
    assert len(judged.missing) == 2 * ALL == told[0].calls
    assert told[0].input_tokens > 100 * told[0].calls
    assert told[0].dollars is None


def test_an_unknown_judge_costs_one_request(tmp_path: Path) -> None:
    """A judge that the endpoint does not have ends it all at the first question, with a name that it has."""
    with serving() as server:
        judged, failed = judge(server, tmp_path, model="judge-x")
        assert isinstance(failed, UsageError)
        assert failed.hint == "did you mean judge-b?"
        assert not server.asked
    assert len(judged.missing) == 2 * ALL


def test_a_refused_key_is_said_at_once(tmp_path: Path) -> None:
    """A wrong key is an error before the first question."""
    with serving(key=KEY) as server:
        with pytest.raises(UsageError, match="refuses the key"):
            judge(server, tmp_path, key="wrong")
        assert not server.asked


def test_an_account_without_credit_ends_it(tmp_path: Path) -> None:
    """No attempts are wasted on a quota that will not come back; what was scored stays."""
    empty = failure(429, "You exceeded your current quota", "insufficient_quota")
    with serving(mischief=by_post(1, lambda before: empty)) as server:
        judged, failed = judge(server, tmp_path, concurrency=1)
        assert isinstance(failed, SmolsumError)
        assert "no credit" in failed.message
        assert len(server.asked) == len(CRITERIA) + 1
    assert sum(score is not None for score in scores(judged).values()) == len(CRITERIA)


@pytest.mark.parametrize(
    ("always", "kind"),
    [
        (answer("Splendid!"), SmolsumError),
        (failure(400, "no such parameter"), SmolsumError),
        (failure(500, "oops"), UnreachableError),
    ],
)
def test_a_judge_that_never_scores_is_left_soon(always: Reply, kind: type[SmolsumError], tmp_path: Path) -> None:
    """After some failures in a row nothing more is asked: a paid judge that answers prose costs no thousands."""
    items = [Item(f"p{n}", f"post {n}", f"summary {n}", ()) for n in range(40)]
    retry = RetryPolicy(attempts=2, deadline_s=5, wait_s=0.001)
    with serving(mischief=lambda prompt, before: always) as server:
        judged, failed = judge(server, tmp_path, items, retry=retry, rounds=1)
        assert type(failed) is kind
        assert len(server.asked) <= 2 * (MAX_CONSECUTIVE_FAILURES + 4)
    assert all(score is None for score in scores(judged).values())


def test_nothing_listens(tmp_path: Path) -> None:
    """A port that nobody serves is said at once."""
    with serving() as server:
        pass
    with pytest.raises(UnreachableError, match="does not answer"):
        judge(server, tmp_path)


def test_a_server_without_response_formats(tmp_path: Path) -> None:
    """An endpoint that cannot promise JSON is asked without; the prompt wants JSON too, and fences do no harm."""
    with serving(structured=False) as server:
        server.mischief = lambda prompt, before: answer(
            f'Here it is:\n```json\n{{"score": {score_of("judge-a", prompt)}, "reason": "so"}}\n```'
        )
        judged, _ = judge(server, tmp_path, rounds=1)
        assert scores(judged) == pytest.approx(expected(server, rounds=1))


def test_two_judges(tmp_path: Path) -> None:
    """A second judge has judgements of its own; the summary says how far the two agree, and how much each wavers."""
    with serving() as server:
        first, _ = judge(server, tmp_path)
        second, _ = judge(server, tmp_path, model="judge-b")
    agreed = judges_agreement(CRITERIA, first, second)
    assert agreed["composite"]["n"] == len(ITEMS)
    assert first.spec.name != second.spec.name
    facts = judge_facts(CRITERIA, first)
    assert facts["noise"]["faithfulness"]["round_sd"] == 0
    json.dumps(facts, allow_nan=False)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({}, "OPENAI_API_KEY is not set"),
        ({"OPENAI_BASE_URL": "localhost:80"}, "not a URL"),
        ({"OPENAI_BASE_URL": "http://"}, "not a URL"),
        ({"OPENAI_API_KEY": "kéy"}, "that no key has"),
    ],
)
def test_endpoint_is_checked(environ: dict[str, str], says: str) -> None:
    """No key for OpenAI, and no URL, are said before anything is asked."""
    with pytest.raises(UsageError, match=says):
        find_endpoint("judge-a", environ)


def test_endpoint_of_ones_own_needs_no_key() -> None:
    """A server of one's own may want none; and a key is in no message."""
    assert find_endpoint("m", {"OPENAI_BASE_URL": "http://localhost:1/v1/"}).url == "http://localhost:1/v1"
    endpoint = find_endpoint("m", {"OPENAI_API_KEY": "secret"})
    assert httpx.URL(endpoint.url).host == "api.openai.com"
    assert "secret" not in repr(endpoint)


def test_columns_of_one_example() -> None:
    """Means over rounds, their sum, rounds that pass: with a missing score neither the mean nor the passes take a 0."""

    class Said:
        def __init__(self, metric: str, number: int, score: float | None) -> None:
            self.metric, self.round, self.score = metric, number, score

    found: Any = [Said(c.name, n, 0.5 if n == 1 else 0.9) for c in CRITERIA for n in (1, 2, 3)]
    found[0].score = 0.4  # faithfulness in round 1
    found[-1].score = None  # clarity in round 3
    row = judged_columns(CRITERIA, 3, found)
    assert row["faithfulness"] == pytest.approx((0.4 + 0.9 + 0.9) / 3)
    assert row["clarity"] == pytest.approx(0.7)
    assert row["composite"] == pytest.approx(row["faithfulness"] + 2 * (0.5 + 0.9 + 0.9) / 3 + 0.7)
    assert row["rounds"]["passed"] == [0.0, 1.0, None]
    assert row["pass_rate"] == 0.5
    assert row["passed"] == 0.0
    assert row["rounds"]["composite"] == [pytest.approx(1.9), pytest.approx(3.6), None]


def test_judges_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """What another server's model of the same name said is neither taken nor mixed in; each line says who was asked."""
    with serving() as one, serving() as two:
        first, _ = judge(one, tmp_path / "a", rounds=1)
        second, _ = judge(two, tmp_path / "a", rounds=1)
        assert (len(one.asked), len(two.asked)) == (ALL, ALL)
        assert first.spec.name != second.spec.name
        assert {row["endpoint"] for row in read_jsonl(tmp_path / "a" / JUDGEMENTS)} == {one.url, two.url}
        assert judge_facts(CRITERIA, first)["endpoint"] == one.url
    assert Endpoint("https://api.openai.com/v1", "m").name == "m"
    assert Endpoint("http://me:secret@h/v1?key=x", "m").name == "m at http://h/v1"


def test_fresh_scores(tmp_path: Path) -> None:
    """Without the cache the judge is asked again, once; what this evaluation itself was told is kept."""
    with serving() as server:
        judge(server, tmp_path / "a", rounds=1)
        judge(server, tmp_path / "b", rounds=1)
        assert len(server.asked) == ALL
        for _ in range(2):
            judged, _ = judge(server, tmp_path / "b", rounds=1, fresh=True)
            assert len(server.asked) == 2 * ALL
            assert not judged.missing


def test_refusals_that_are_known_end_nothing(tmp_path: Path) -> None:
    """Some questions are refused for good: the same command again fails no sooner, and scores stay."""
    items = [Item(f"post-{n}", f"Post {n}.", f"Summary {n} of it.", ()) for n in range(MAX_CONSECUTIVE_FAILURES)]
    refuse: Mischief = lambda prompt, before: failure(400, "no") if "Summary 0" not in prompt else None  # noqa: E731
    with serving(mischief=refuse) as server:
        for _ in range(2):
            judged, failed = judge(server, tmp_path, items, rounds=1)
            assert failed is None
            assert len(judged.missing) == len(CRITERIA) * (MAX_CONSECUTIVE_FAILURES - 1)
            assert sum(score is not None for score in scores(judged).values()) == len(CRITERIA)


def test_a_bad_line_costs_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a damaged cache all whole lines count, and none is deleted."""
    with serving() as server:
        judge(server, tmp_path / "a", rounds=1)
        (cache,) = (tmp_path / "cache" / "smolsum" / "judge").glob("*.jsonl")
        lines = cache.read_bytes().splitlines(keepends=True)
        foul = [b"{nonsense\n", b'{"id": 3}\n', lines[1].replace(b'"score": ', b'"score": 7'), *lines[2:]]
        cache.write_bytes(b"".join([lines[0], *foul]))
        server.asked.clear()
        judged, _ = judge(server, tmp_path / "b", rounds=1)
        assert len(server.asked) == 1
        assert not judged.missing
        assert cache.read_bytes().startswith(b"".join([lines[0], *foul]))
    assert "warning: skipped 3 damaged lines of" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [{"score": "1"}, {"score": 7}, {"key": None}, {"attempts": "x"}])
def test_damaged_judgements(damage: dict[str, Any], tmp_path: Path) -> None:
    """A line that is no judgement is an error that names it."""
    with serving() as server:
        judge(server, tmp_path, rounds=1)
        path = tmp_path / JUDGEMENTS
        rows = read_jsonl(path)
        path.write_text("".join(json.dumps(row) + "\n" for row in [rows[0], rows[1] | damage, *rows[2:]]))
        with pytest.raises(SmolsumError, match=r"judgements\.jsonl:2 is damaged"):
            judge(server, tmp_path, rounds=1)


def test_two_processes_share_a_cache(tmp_path: Path) -> None:
    """Lines of processes that open and append at the same time are all there, whole."""
    code = (
        "import sys; from pathlib import Path; from smolsum.files import Lines\n"
        "for n in range(200):\n"
        "    with Lines(Path(sys.argv[1]), '', shared=True) as lines:\n"
        "        lines.append(b'{\"a\": \"' + sys.argv[2].encode() * 5000 + b'\"}\\n')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "cache.jsonl")]
    processes = [subprocess.Popen([*command, letter]) for letter in "xyz"]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert len(read_jsonl(tmp_path / "cache.jsonl")) == 600


@pytest.mark.parametrize(
    "said",
    [
        '<think>maybe {"a"} or {b}</think>\n{"reason": "ok", "score": 10}',
        '{"score": 1}? No: ```json\n{"score": 10, "reason": "{}"}\n``` {"note": 1}',
    ],
)
def test_the_last_object_with_a_score_counts(said: str, tmp_path: Path) -> None:
    """Braces in what a model thinks aloud hide no score."""
    with serving(mischief=lambda prompt, before: answer(said)) as server:
        judged, failed = judge(server, tmp_path, rounds=1)
        assert failed is None
        assert set(scores(judged).values()) == {1.0}
        assert len(server.asked) == ALL


def test_all_attempts_are_made_however_long_the_pauses(tmp_path: Path) -> None:
    """Pauses that the judge asks for are no time that its answers took."""
    slow = failure(429, "slow down", Retry_After="0.4")
    with serving(mischief=by_post(1, lambda before: slow if before < 5 else None)) as server:
        judged, _ = judge(server, tmp_path, rounds=1, retry=RetryPolicy(attempts=6, deadline_s=0.5, wait_s=0.01))
        assert not judged.missing
        assert len(server.asked) == ALL + 5 * len(CRITERIA)


@pytest.mark.parametrize(
    ("reply", "says", "hint"),
    [
        ((301, {"Location": "https://h/v1/chat/completions"}, b""), "has moved", "OPENAI_BASE_URL=https://h/v1"),
        ((200, {"Content-Type": "text/html"}, b"<!DOCTYPE html><p>Hi"), "a web page", "OPENAI_BASE_URL"),
        ((405, {}, b"<html>no"), "HTTP 405", "OPENAI_BASE_URL"),
    ],
)
def test_what_is_no_endpoint(reply: Reply, says: str, hint: str, tmp_path: Path) -> None:
    """The remedy is another base URL, not another judge."""
    with serving(mischief=lambda prompt, before: reply) as server:
        _, failed = judge(server, tmp_path, rounds=1)
    assert isinstance(failed, UsageError)
    assert says in failed.message
    assert failed.hint is not None
    assert hint in failed.hint


@pytest.mark.parametrize("usage", [[{"prompt_tokens": 900}], "none", {"prompt_tokens": -3, "completion_tokens": 1e300}])
def test_usage_that_is_none(usage: Any, tmp_path: Path) -> None:
    """Tokens that are no numbers count as none; the score stands."""
    status, headers, body = answer('{"reason": "", "score": 10}')
    told = json.dumps(json.loads(body) | {"usage": usage}).encode()
    with serving(mischief=lambda prompt, before: (status, headers, told)) as server:
        judged, _ = judge(server, tmp_path, rounds=1)
    assert set(scores(judged).values()) == {1.0}
    assert judged.usage["input_tokens"] == judged.usage["output_tokens"] == 0


def test_a_score_of_many_digits(tmp_path: Path) -> None:
    """It is out of range like any other."""
    many = answer('{"reason": "", "score": ' + "9" * 400 + "}")
    with serving(mischief=by_post(1, lambda before: many)) as server:
        judged, failed = judge(server, tmp_path, rounds=1)
    assert failed is None
    assert {j.error for j in judged.missing} == {f"a score of {'9' * 20}, not one from 0 to 10"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks5://me:secret@1.2.3.4:5"),
        ("HTTPS_PROXY", "foo://me:secret@h:1"),
        ("SSL_CERT_FILE", "/no/such/file"),
    ],
)
def test_what_the_environment_names(name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy or certificates that cannot be used are named, without a password; a judge on this machine needs none."""
    for other in ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_DIR"):
        monkeypatch.delenv(other, raising=False)
        monkeypatch.delenv(other.lower(), raising=False)
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as raised:
        ChatClient(Endpoint("https://api.openai.com/v1", "m", "k"), connections=1)
    assert name in f"{raised.value.message} {raised.value.hint}"
    assert "secret" not in f"{raised.value.message} {raised.value.hint}"
    with serving() as server:
        assert not judge(server, tmp_path, rounds=1)[0].missing


@pytest.mark.parametrize("key", ["one\ntwo", "caf\xe9", "a\x1bb", "sk one"])
def test_keys_that_are_none(key: str) -> None:
    """Refused, and not shown."""
    with pytest.raises(UsageError) as raised:
        find_endpoint("m", {"OPENAI_API_KEY": key})
    assert key not in f"{raised.value.message} {raised.value.hint}"


def test_a_password_in_the_url_is_not_shown() -> None:
    """Neither in errors nor in what is written down."""
    for url in ("ftp://me:secret@h/v1", "http://me:secret@"):
        with pytest.raises(UsageError) as raised:
            find_endpoint("m", {"OPENAI_BASE_URL": url})
        assert "secret" not in raised.value.message
    assert "secret" not in find_endpoint("m", {"OPENAI_BASE_URL": "http://me:secret@h/v1"}).address
