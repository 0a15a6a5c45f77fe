"""Support by the post among the measures of summaries: its column, its mean, its error, and constraints on it."""

from typing import Any

import numpy as np
import pytest

from smolsum.config.constraints import parse_constraints
from smolsum.config.sections import Config
from smolsum.grpo.constrained_values import measure
from smolsum.results.evaluate.tables import error_shares
from smolsum.tasks import TASKS
from smolsum.tasks.tldr.settings import TldrConfig
from smolsum.types import Prompt, Rollout, RolloutGroup

EVALUATION = TASKS["tldr"].evaluation
CONFIG = Config(task=TldrConfig())
POST = ({"role": "user", "content": "My brother Noah sold it to Zoe for $340."},)
TEXTS = ["It was Noah, for $340.", "It was Noah, for $430.", "It was sold."]


@pytest.fixture
def asked() -> RolloutGroup:
    """A post without facts or references, and an honest, a wrong and a silent summary."""
    rollouts = tuple(Rollout((1, 2), (-0.5, -0.5), "stop", 0, "here", 0, text) for text in TEXTS)
    return RolloutGroup(Prompt("post", POST, (1,), (), {}), rollouts)


@pytest.fixture
def rows(asked: RolloutGroup) -> list[dict[str, Any]]:
    one = EVALUATION.measurer([], CONFIG)
    return [one(asked.prompt, rollout) for rollout in asked.rollouts]


def test_every_summary_is_measured(rows: list[dict[str, Any]]) -> None:
    """Data without references and facts too; silence has no value, and is in no mean and no share of errors."""
    assert [row["supported"] for row in rows] == [1, 0.5, None]
    assert EVALUATION.summarise(rows)["supported"] == 0.75
    assert EVALUATION.summarise(rows[2:])["supported"] is None
    assert error_shares(EVALUATION.errors, rows)["errors/unsupported"] == 0.5


def test_the_table_without_a_judge_has_it() -> None:
    (table,) = (table for table in EVALUATION.tables if table.title == "without a judge")
    assert "supported" in [metric.name for metric in table.metrics]


def test_constraints_bound_it(asked: RolloutGroup) -> None:
    """By the evaluation's column silence takes no part; by the signal it counts a half."""
    constraints = parse_constraints("supported >= 0.9; grounded >= 0.9")
    scores = {"grounded": TASKS["tldr"].rewards.signals["grounded"]([asked], CONFIG)}  # type: ignore[operator]
    measure_one = EVALUATION.measurer([], CONFIG)
    rows = [[measure_one(asked.prompt, rollout) for rollout in asked.rollouts]]
    found = measure(constraints, [asked], scores, rows, CONFIG)
    assert found[1].values.tolist() == [[1, 0.5, 0.5]]
    np.testing.assert_array_equal(found[0].values, [[1, 0.5, np.nan]])
