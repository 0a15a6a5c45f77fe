"""Reader, grader and ranking by models, over real HTTP."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import stamina
from support.documents_of import config, group
from support.judge_server import JudgeServer, Mischief, answer, failure, serving
from support.reading_server import DOCUMENT, QUESTIONS, brain
from support.refusals import refuses

from smolsum.errors import UnreachableError
from smolsum.tasks import TASKS
from smolsum.tasks.data import Example, generated_split
from smolsum.tasks.doc_qa.documents import UNANSWERABLE, Question, QuestionSet
from smolsum.tasks.doc_qa.reader_model import clients_of
from smolsum.tasks.doc_qa.task import score_answered, score_ranking

EXAMPLE = Example("d", DOCUMENT, ("x",), QuestionSet(tuple(Question(q, a) for q, a in QUESTIONS.items())).as_metadata())
SETTINGS = config(reader="judge-a", grader="judge-b", wait_s=0.3, attempts=2, deadline_s=2.0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[JudgeServer]:
    """The reader that the settings name; there is no pause between attempts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving(mischief=brain) as server, stamina.set_testing(True, attempts=2, cap=True):
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        clients_of.cache_clear()
        yield server


def answered(*texts: str, example: Example = EXAMPLE) -> list[float | None]:
    """The shares of the document's questions that these texts answer."""
    (found,) = score_answered([group(example, texts)], SETTINGS)
    return found


def troubled(server: JudgeServer, trouble: Mischief) -> None:
    """Lets the server misbehave where `trouble` has a reply."""
    server.mischief = lambda prompt, before: trouble(prompt, before) or brain(prompt, before)


def test_a_summary_is_read_alone_and_graded(server: JudgeServer) -> None:
    """By hand: 2 of 3 answered, one of them wrongly; no question goes to an empty text, nothing graded where the text
    is silent; reader and grader are the models that were named."""
    texts = ["The car is red. The house is grey.", "", "The hat was green, the car is red, the house is blue."]
    assert answered(*texts) == [pytest.approx(1 / 3), 0.0, 1.0]
    by_model = {model: [p for m, p in server.asked if m == model] for model in ("judge-a", "judge-b")}
    assert len(by_model["judge-a"]) == 6
    assert len(by_model["judge-b"]) == 4  # the car's answer is the same twice
    assert all(DOCUMENT not in prompt for prompt in by_model["judge-a"])
    assert all(DOCUMENT in prompt for prompt in by_model["judge-b"])


def test_a_failure_is_missing(server: JudgeServer) -> None:
    """One answer that never comes makes the summary's share missing; the others have theirs."""
    oops = failure(500, "oops")
    troubled(server, lambda p, n: oops if p.startswith("Answer") and "is grey" in p and "hat?" in p else None)
    assert answered("The car is red. The house is grey.", "The car is red.") == [None, pytest.approx(1 / 3)]


@pytest.mark.usefixtures("server")
def test_silence_is_right_where_the_document_is_silent() -> None:
    """A question that is kept although nothing answers it."""
    asked = QuestionSet((Question("What colour is the dog?", UNANSWERABLE), Question("What colour is the car?", "red")))
    example = replace(EXAMPLE, metadata=asked.as_metadata())
    assert answered("The hat is green.", "The car is red.", example=example) == [0.5, 1.0]


def test_a_group_is_ranked_in_one_call(server: JudgeServer) -> None:
    """Each different text is shown once; equal texts have equal scores; a group of one text is not shown at all."""
    texts = ["The car is red.", "Nothing.", "The car is red.", "The car is red, the hat is green."]
    groups = [group(EXAMPLE, texts), group(EXAMPLE, ["Nothing."] * 2)]
    assert score_ranking(groups, SETTINGS) == [pytest.approx([1 / 3, 0.0, 1 / 3, 2 / 3]), [0.5, 0.5]]
    assert len(server.asked) == 1
    assert "3 summaries" in server.asked[0][1]


@pytest.mark.parametrize(
    "scores",
    [
        [], [1, 2], "high", [{"summary": 1, "score": 0.5}],
        *([{"summary": 1, "score": 0.5}, other]
          for other in ({"summary": 1, "score": 0.6}, {"summary": 2, "score": 1.5}, {"summary": 2, "score": "high"},
                        {"summary": 2, "score": True})),
    ],
)  # fmt: skip
def test_a_ranking_that_is_none_is_missing(server: JudgeServer, scores: object) -> None:
    """Incomplete, doubled, out of range, no number: the whole group is missing, never 0."""
    troubled(server, lambda prompt, before: answer(json.dumps({"scores": scores})) if "summaries" in prompt else None)
    assert score_ranking([group(EXAMPLE, ["a", "b"])], SETTINGS) == [[None, None]]


def test_a_reader_that_is_away(server: JudgeServer) -> None:
    """The wait ends in an error that a run is saved for."""
    troubled(server, lambda prompt, before: failure(503, "down"))
    with refuses("reader judge-a", error=UnreachableError):
        answered("The car is red.")


def test_measures_ask_ahead(server: JudgeServer) -> None:
    """An evaluation asks about all summaries at once; measuring them one by one then costs nothing, and the document is
    asked once for its ceiling."""
    task, short = TASKS["doc-qa"], replace(SETTINGS, task=replace(SETTINGS.task, max_words=4))
    prompt, rollouts = (found := group(EXAMPLE, ["The car is red. The hat is green.", "No."])).prompt, found.rollouts
    task.evaluation.ask_ahead([(prompt, rollout) for rollout in rollouts], short)
    before = len(server.asked)
    measure = task.evaluation.measurer([generated_split("test", [EXAMPLE])], short)
    first, second = (measure(prompt, rollout) for rollout in rollouts)
    assert len(server.asked) == before
    assert [first[name] for name in ("answered", "answered_within", "ceiling")] == pytest.approx([2 / 3, 1 / 3, 1.0])
    assert (first["words"], first["over_limit"], second["over_limit"]) == (8, 1.0, 0.0)
    assert second["answered"] == 0.0
    summary = task.evaluation.summarise([first, second])
    assert summary["answered_within"] == pytest.approx(1 / 6)
    assert summary["unread"] == 0.0
    unread = task.evaluation.summarise([first, second | {"answered": None, "answered_within": None}])
    assert unread["answered"] == pytest.approx(2 / 3)
    assert unread["unread"] == 1.0
