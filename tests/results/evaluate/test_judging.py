"""Judging over real HTTP: no score is lost, invented, counted as 0 or paid for twice."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.judge_server import KEY, JudgeServer, Mischief, Reply, answer, failure, score_of, serving
from support.refusals import refuses

from smolsum import console
from smolsum.errors import InterruptedRun, SmolsumError
from smolsum.files import read_jsonl
from smolsum.llm.endpoints import Endpoint
from smolsum.llm.request_policy import MAX_CONSECUTIVE_FAILURES, RequestPolicy
from smolsum.results.evaluate.judge_cost import JudgeCost
from smolsum.results.evaluate.judgements import JUDGEMENTS, Judged, judge_facts, judged_summary
from smolsum.results.evaluate.judging import JudgeJob, JudgeOptions, ask_judge
from smolsum.tasks.tldr.criteria import CRITERIA
from smolsum.types import Prompt, Rollout, RolloutGroup

QUICK = RequestPolicy(attempts=3, deadline_s=5.0, wait_s=0.01)


def group(name: str, source: str, completion: str) -> RolloutGroup:
    """A completion to judge."""
    prompt = Prompt(name, ({"role": "user", "content": source},), (), ("a reference",), {})
    return RolloutGroup(prompt, (Rollout((), (), "stop", 0, "", 0, completion),))


POST = "Noah lost {} keys on the way to work."
COMPLETIONS = [f"Noah lost {n + 3} keys." for n in range(3)]
GROUPS = [group(f"post-{n}", POST.format(n + 3), COMPLETIONS[n]) for n in range(3)]
ALL = len(GROUPS) * len(CRITERIA)


def judge(
    server: JudgeServer, folder: Path, groups: list[RolloutGroup] = GROUPS, *, model: str = "judge-a", rounds: int = 2,
    concurrency: int = 4, fresh: bool = False, agreed: bool = True, key: str | None = None,
) -> tuple[Judged, SmolsumError | None]:  # fmt: skip
    endpoint = Endpoint(server.url, model, server.key if key is None else key)
    cost = JudgeCost(None, agreed=agreed, quiet=agreed)
    options = JudgeOptions(endpoint, (), rounds, replace(QUICK, concurrency=concurrency), cost, fresh)
    return ask_judge(JudgeJob(folder, groups, CRITERIA, "again"), endpoint, options)


def scores(judged: Judged) -> dict[tuple[str, int, str], float | None]:
    return {(j.id, j.round, j.metric): j.score for found in judged.judgements.values() for j in found}


def expected(
    server: JudgeServer, groups: list[RolloutGroup] = GROUPS, rounds: int = 2
) -> dict[tuple[str, int, str], float]:
    """What the server says of each completion and metric: by its prompts, as it sees nothing else."""
    found = {}
    for prompt in server.prompts():
        for n, completion in enumerate(COMPLETIONS):
            if f"Actual Output:\n{completion} \n" in prompt:
                metric = next(c.name for c in CRITERIA if c.steps[0] in prompt)
                for number in range(1, rounds + 1):
                    found[f"post-{n}", number, metric] = score_of("judge-a", prompt) / 10
    return found


def by_post(n: int, reply: Reply) -> Mischief:
    """Mischief with one post alone."""
    return lambda prompt, before: reply if COMPLETIONS[n] in prompt else None


def test_every_score_arrives(tmp_path: Path) -> None:
    """Each question is asked once a round, on one client; scores are the judge's, divided by ten; each has a line with
    judge, score and reason."""
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
    rows = read_jsonl(tmp_path / JUDGEMENTS)
    assert len({(row["id"], row["round"], row["metric"]) for row in rows}) == len(rows) == 2 * ALL
    assert {row["judge"] for row in rows} == {f"judge-a at {server.url}"}
    assert all(0 <= row["score"] <= 1 and row["reason"] == "as the steps say" for row in rows)


def test_each_criterion_shows_its_texts_alone(tmp_path: Path) -> None:
    """Clarity is judged on the summary alone, the others on post and summary, none on the reference."""
    with serving() as server:
        judge(server, tmp_path, rounds=1)
    for prompt in server.prompts():
        assert (POST.format(3) in prompt or "to work" in prompt) == ("Clarity" not in prompt and "Input:\n" in prompt)
        assert "Expected Output" not in prompt
    alone = [prompt for prompt in server.prompts() if "Input:\n" not in prompt]
    assert len(alone) == len(GROUPS)
    assert all(CRITERIA[3].steps[0] in prompt for prompt in alone)


NO_SCORES = ('"many"', "11", "-1", "0.8", "NaN", "true", "null", "9" * 400)
BAD_SCORES = [f'{{"score": {score}, "reason": ""}}' for score in NO_SCORES]
BAD_SCORES += ['{"reason": "no score"}', "I would call that a fine summary."]


def test_an_answer_without_a_score_is_asked_again(tmp_path: Path) -> None:
    """Whatever is in it; its tokens count."""
    prompts: list[str] = []

    def bad_at_first(prompt: str, before: int) -> Reply | None:
        prompts.append(prompt)
        return None if before else answer(BAD_SCORES[len(set(prompts)) % len(BAD_SCORES)])

    with serving(mischief=bad_at_first) as server:
        judged, failed = judge(server, tmp_path, rounds=1, concurrency=1)
        assert failed is None
        assert not judged.missing
        assert scores(judged) == pytest.approx(expected(server, rounds=1))
        assert len(server.asked) == 2 * ALL == judged.usage["calls"]
        assert judged.usage["output_tokens"] == 50 * 2 * ALL


@pytest.mark.parametrize(
    ("always", "error"),
    [
        (failure(500, "oops"), "HTTP 500: oops"),
        (failure(400, "this model's context is 10 tokens"), "HTTP 400: this model's context is 10 tokens"),
        (answer('{"score": ' + "9" * 400 + ', "reason": ""}'), f"a score of {'9' * 20}, not one from 0 to 10"),
    ],
)
def test_a_question_that_fails_for_good_is_missing(always: Reply, error: str, tmp_path: Path) -> None:
    """It is listed with its reason, never 0; the others are scored."""
    with serving(mischief=by_post(1, always)) as server:
        judged, failed = judge(server, tmp_path)
        assert failed is None
        assert {(j.id, j.score, j.error) for j in judged.missing} == {("post-1", None, error)}
        assert len(judged.missing) == 2 * len(CRITERIA)
        others = {key: score for key, score in expected(server).items() if key[0] != "post-1"}
        assert {key: score for key, score in scores(judged).items() if score is not None} == pytest.approx(others)
    columns = judged.columns(CRITERIA)
    assert [columns["post-1"][name] for name in ("faithfulness", "composite", "pass_rate", "passed")] == [None] * 4
    assert columns["post-1"]["rounds"]["composite"] == [None, None]
    summary = judged_summary(CRITERIA, list(columns.values()))
    assert summary["composite"] == pytest.approx(sum(others.values()) / (len(GROUPS) - 1) / 2)


def test_damaged_judgements_are_an_error_with_file_and_line(tmp_path: Path) -> None:
    """None is passed over in silence."""
    with serving() as server:
        judge(server, tmp_path, rounds=1)
        path = tmp_path / JUDGEMENTS
        rows = read_jsonl(path)
        for damage in ({"score": "1"}, {"score": 7}, {"key": None}, {"attempts": "x"}):
            path.write_text("".join(json.dumps(row) + "\n" for row in [rows[0], rows[1] | damage, *rows[2:]]))
            with refuses("judgements.jsonl:2", error=SmolsumError):
                judge(server, tmp_path, rounds=1)


def test_only_what_is_missing_is_asked_again(tmp_path: Path) -> None:
    """A second evaluation asks the failures alone; the first one's scores stay."""
    with serving(mischief=by_post(2, failure(500, "oops"))) as server:
        first, _ = judge(server, tmp_path)
        assert len(first.missing) == 2 * len(CRITERIA)
        server.recover()
        second, _ = judge(server, tmp_path)
        assert len(server.asked) == 2 * len(CRITERIA)
        assert all(COMPLETIONS[2] in prompt for prompt in server.prompts())
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
        again = [group(f"other-{n}", POST.format(n + 3), COMPLETIONS[n]) for n in range(3)]
        second, _ = judge(server, tmp_path / "two", again)
        assert not server.asked
        assert list(scores(second).values()) == list(scores(first).values())
        assert second.usage["cached"] == 2 * ALL
        changed = [group("post-0", POST.format(3), "Nothing of that kind.")]
        judge(server, tmp_path / "two", changed)
        assert len(server.asked) == 2 * len(CRITERIA)
        server.asked.clear()
        twins = [group(name, "A new post.", "Both say this.") for name in "ab"]
        judged, _ = judge(server, tmp_path / "three", twins)
        assert len(server.asked) == 2 * len(CRITERIA)
        assert not judged.missing


def test_the_user_approves_the_cost_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Calls, tokens and cost are known before the first call; without consent none is made."""
    monkeypatch.setattr(console, "can_ask", lambda: True)
    monkeypatch.setattr(console, "agree", lambda question: False)
    with serving() as server:
        with pytest.raises(InterruptedRun):
            judge(server, tmp_path, agreed=False)
        assert not server.asked
    said = re.search(r"judge judge-a: (\d+) calls, about ([\d,]+) tokens in .*, price unknown", capsys.readouterr().err)
    assert said is not None
    assert int(said[1]) == 2 * ALL
    assert int(said[2].replace(",", "")) > 100 * 2 * ALL


def test_a_refused_key_ends_it_before_the_first_question(tmp_path: Path) -> None:
    with serving(key=KEY) as server:
        with refuses("key"):
            judge(server, tmp_path, key="wrong")
        assert not server.asked


def test_a_judge_that_fails_on_the_way_leaves_its_scores(tmp_path: Path) -> None:
    """No attempts are wasted on a quota that will not come back; what was scored stays."""
    empty = failure(429, "You exceeded your current quota", "insufficient_quota")
    with serving(mischief=by_post(1, empty)) as server:
        judged, failed = judge(server, tmp_path, concurrency=1)
        assert isinstance(failed, SmolsumError)
        assert "no credit" in failed.message
        assert len(server.asked) == len(CRITERIA) + 1
    assert sum(score is not None for score in scores(judged).values()) == len(CRITERIA)


def test_two_judges_are_compared(tmp_path: Path) -> None:
    """The summary has the agreement of the two, and the noise of each."""
    with serving() as server:
        first, second = (judge(server, tmp_path, model=model)[0] for model in ("judge-a", "judge-b"))
    assert first.spec.name != second.spec.name
    facts = judge_facts(CRITERIA, first, second)
    assert facts["second"]["agreement"]["composite"]["n"] == len(GROUPS)
    assert facts["noise"]["faithfulness"]["round_sd"] == 0
    json.dumps(facts, allow_nan=False)


def test_judges_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    """Scores of another server's model of the same name are neither taken nor mixed in; each line has its endpoint."""
    with serving() as one, serving() as two:
        first, _ = judge(one, tmp_path / "a", rounds=1)
        second, _ = judge(two, tmp_path / "a", rounds=1)
        assert (len(one.asked), len(two.asked)) == (ALL, ALL)
        assert first.spec.name != second.spec.name
        assert {row["endpoint"] for row in read_jsonl(tmp_path / "a" / JUDGEMENTS)} == {one.url, two.url}
        assert judge_facts(CRITERIA, first)["endpoint"] == one.url


def test_fresh_asks_again_once(tmp_path: Path) -> None:
    """Scores of other evaluations are ignored, those of this one kept."""
    with serving() as server:
        judge(server, tmp_path / "a", rounds=1)
        judge(server, tmp_path / "b", rounds=1)
        assert len(server.asked) == ALL
        for _ in range(2):
            judged, _ = judge(server, tmp_path / "b", rounds=1, fresh=True)
            assert len(server.asked) == 2 * ALL
            assert not judged.missing


def test_known_refusals_end_nothing(tmp_path: Path) -> None:
    """Some questions are refused for good: the same command again fails no sooner, and scores stay."""
    groups = [group(f"post-{n}", f"Post {n}.", f"Summary {n} of it.") for n in range(MAX_CONSECUTIVE_FAILURES)]
    refuse: Mischief = lambda prompt, before: failure(400, "no") if "Summary 0" not in prompt else None  # noqa: E731
    with serving(mischief=refuse) as server:
        for _ in range(2):
            judged, failed = judge(server, tmp_path, groups, rounds=1)
            assert failed is None
            assert len(judged.missing) == len(CRITERIA) * (MAX_CONSECUTIVE_FAILURES - 1)
            assert sum(score is not None for score in scores(judged).values()) == len(CRITERIA)


def test_a_damaged_cache_line_costs_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
