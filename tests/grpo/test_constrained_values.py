"""What constraints bound of a step's rollouts, and which of them are refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.models import group
from support.refusals import refuses

from smolsum.config.constraints import parse_constraints
from smolsum.config.resolve import resolve
from smolsum.config.sections import Config
from smolsum.grpo.constrained_values import check_constraints, measure
from smolsum.rewards import REWARDS
from smolsum.tasks import TASKS
from smolsum.tasks.data import Example, Split
from smolsum.tasks.tldr import task as tldr
from smolsum.types import Prompt, Rollout

POST = "Tom owes me $30."
PROMPT = Prompt("a", ({"role": "user", "content": POST},), (1,), ("Tom owes $30.",), {})
FACT = {"kind": "amount", "value": "$30", "forms": ["$30"], "who": []}


def settings(constraint: str, *sets: str) -> Config:
    return resolve(TASKS, strategy="included", sets=[f"grpo.constraints={constraint}", *sets]).config


def columns(prompt: Prompt, rollout: Rollout) -> dict[str, Any]:
    return {"facts_wrong": None, "supported": 1.0}


def test_a_tolerance_of_nothing_is_the_target_itself() -> None:
    """Only a length that is met is within, and one that is nearer is better."""
    config = settings("length within tolerance: 0.9", "task.tolerance_tokens=0")
    (bound,) = parse_constraints(config.grpo.constraints)
    prompt = replace(PROMPT, metadata={})
    one = replace(group([5], [[7] * 65, [7] * 64, [7] * 41]), prompt=prompt)
    (found,) = measure([bound], [one], {}, [], config)
    assert found.is_met.tolist() == [[1.0, 0.0, 0.0]]
    first, near, far = found.progress[0]
    assert first == 1.0
    assert 0.5 > near > far > 0.0
    assert np.isfinite(found.unit).all()


@pytest.mark.parametrize("constraint", ["facts_wrong <= 1: 0.95", "facts_wrong <= 0.1", "supported >= 0.9"])
def test_a_number_of_a_completion_is_no_share(constraint: str) -> None:
    """`facts_wrong` is one, though a split has a share of wrong facts."""
    check_constraints(settings(constraint), REWARDS, PROMPT, columns)


def test_a_post_without_facts_has_their_columns() -> None:
    """So that a constraint on them can be checked, whichever post comes first."""
    posts = (Example("a", POST, ("x",), {}), Example("b", POST, ("x",), {"facts": [FACT]}))
    config = settings("facts_wrong <= 0.1")
    row = tldr.measurer([Split("train", posts, "")], config)(PROMPT, Rollout((), (), "stop", 0, "", 0, ""))
    assert row["facts_wrong"] is None


@pytest.mark.parametrize("method", ["sum", "gdpo"])
def test_a_mean_with_two_bounds_needs_weights_that_move(method: str) -> None:
    """Equal weights of rising and falling cancel out."""
    config = settings("length in 59..69", f"grpo.constraint_method={method}")
    with refuses("length >= 59", "length <= 69", "length in 59..69: 0.95", "lagrange"):
        check_constraints(config, REWARDS, PROMPT, columns)
    check_constraints(settings("length in 59..69"), REWARDS, PROMPT, columns)
    check_constraints(settings("length >= 59", f"grpo.constraint_method={method}"), REWARDS, PROMPT, columns)


def test_a_gate_cannot_have_what_is_negative() -> None:
    """A product with it would turn the reward around."""
    with refuses("overlong >= -0.2", "below 0", '"overlong in -0.2..0: 0.95"'):
        check_constraints(settings("overlong >= -0.2", "grpo.constraint_method=gate"), REWARDS, PROMPT, columns)
    check_constraints(settings("meteor >= 0.2", "grpo.constraint_method=gate"), REWARDS, PROMPT, columns)


def test_a_check_reads_no_text() -> None:
    """A reader of documents would have to be asked about it, and paid."""
    seen = []

    def asking(prompt: Prompt, rollout: Rollout) -> dict[str, Any]:
        seen.append(prompt.source + rollout.text)
        return {"supported": None}

    check_constraints(settings("supported >= 0.9"), REWARDS, PROMPT, asking)
    assert seen == [""]
