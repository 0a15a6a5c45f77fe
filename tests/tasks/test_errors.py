"""The error taxonomy: what each kind says of a row, and what a summary has of it."""

from typing import Any

import pytest

from smolsum.results.evaluate.tables import closing_tables, describe_task, error_shares
from smolsum.tasks import TASKS
from smolsum.tasks.text_metrics import length_row

FINE = {"copied": 0.1, "repeated_trigrams": 0.0, "empty": 0.0, "facts_wrong": 0, "faithfulness": 0.9}
NAMES = [kind.name for kind in TASKS["tldr"].evaluation.errors]


def row(tokens: int = 64, **changes: Any) -> dict[str, Any]:
    """A summary of 64 tokens with nothing wrong except for the changes."""
    return {**length_row(tokens, 64, 5), **FINE, **changes}


@pytest.mark.parametrize(
    ("wrong", "kinds"),
    [
        (row(), []), (row(59), []), (row(69), []), (row(70), ["too long"]), (row(58), ["too short"]),
        (row(copied=0.51), ["copied"]), (row(repeated_trigrams=0.21), ["repetitive"]),
        (row(nonwords=0.01), ["non-words"]),
        (row(0, empty=1.0, copied=None), ["too short", "empty"]), (row(facts_wrong=1), ["wrong facts"]),
        (row(supported=1.0), []), (row(supported=0.9), ["unsupported"]), (row(supported=None), []),
        (row(faithfulness=0.49), ["unfaithful"]),
    ],
)  # fmt: skip
def test_kinds(wrong: dict[str, Any], kinds: list[str]) -> None:
    """A row has exactly these errors."""
    assert [kind.name for kind in TASKS["tldr"].evaluation.errors if kind.shown(wrong)] == kinds


def test_shares_are_of_those_that_can_tell() -> None:
    """What no row can tell has no share, and a row that cannot tell is in no share."""
    unjudged = [{k: v for k, v in row(tokens).items() if k != "faithfulness"} for tokens in (64, 90)]
    shares = error_shares(TASKS["tldr"].evaluation.errors, [*unjudged, row(30, copied=None)])
    assert list(shares) == [f"errors/{name}" for name in NAMES]
    assert shares["errors/too long"] == pytest.approx(1 / 3)
    assert shares["errors/unfaithful"] == 0.0
    assert error_shares(TASKS["tldr"].evaluation.errors, unjudged)["errors/unfaithful"] is None


def test_a_summary_explains_itself() -> None:
    """Titles and texts of what there is; all that a reader needs who knows no task."""
    described = describe_task(TASKS["tldr"], {"meteor": 0.25, "rouge": None})
    assert described["headlines"] == [{"metric": "meteor", "title": "METEOR", "text": "0.250"}]
    assert described["panels"] == [{"title": "overlap with the reference", "headlines": described["headlines"]}]
    assert described["watched"] == {"within_tol": ["length/within_tol"]}
    assert (described["score"], list(described["errors"])) == ("composite", NAMES)
    assert described["criteria"] == ["faithfulness", "coverage", "conciseness", "clarity"]


def test_asked_and_got_are_compared_where_lengths_differ() -> None:
    """With one target for all the correlation is not known, and the table would repeat the lengths'."""
    for correlation, titles in ((0.5, ["asked and got"]), (None, [])):
        found = describe_task(TASKS["tldr"], {"length/off_target": 3.0, "length/correlation": correlation})
        assert [panel["title"] for panel in found["panels"] if panel["title"] == "asked and got"] == titles


def test_a_training_closes_with_asked_and_got_where_lengths_differ() -> None:
    """A row for each evaluation, also for one that has no value of it."""
    start = {"meteor": 0.25, "length/off_target": 33.0, "length/correlation": None}
    after = {"meteor": 0.5, "length/off_target": 1.25, "length/correlation": 0.999}
    assert closing_tables(TASKS["tldr"], {"start": start, "exact": after}, "test split") == [
        ("test split", ["model", "METEOR"], [["start", "0.250"], ["after exact", "0.500"]]),
        (
            "asked and got",
            ["model", "mean error", "correlation"],
            [["start", "33.00", "-"], ["after exact", "1.25", "0.999"]],
        ),
    ]
    one_length = {"start": start, "exact": after | {"length/correlation": None}}
    assert [title for title, *_ in closing_tables(TASKS["tldr"], one_length, "test split")] == ["test split"]
