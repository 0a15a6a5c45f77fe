"""What a reward may log beside its values, in TRL's words."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from support.refusals import refuses

from smolsum.config.sections import Config
from smolsum.errors import PluginError
from smolsum.rewards.combine import score_all, score_and_combine
from smolsum.rewards.decorator import make_reward
from smolsum.rewards.reward_log import RewardLog, TrainerState
from smolsum.types import RolloutGroup


def test_columns_and_numbers_are_as_json_has_them(group: Callable[..., RolloutGroup]) -> None:
    """NumPy's numbers become Python's, and what JSON cannot hold its text; numbers of one name are all kept."""

    def noted(completions: Sequence[str], log_extra: Any, log_metric: Any) -> list[float]:
        log_extra("kind", [np.float32(0.5), float("nan"), {"a": 1}, None])
        log_metric("seen", 1)
        log_metric("seen", np.int64(2))
        return [1.0] * len(completions)

    groups, signals = [group(["a", "b"]), group(["c", "d"])], {"noted": make_reward(noted, file=__file__, sha256="")}
    log = RewardLog([2, 2], TrainerState(0, 4))
    score_and_combine(groups, {"noted": 1.0}, Config(), signals, log)
    assert log.columns() == {"kind": [[0.5, "nan"], ["{'a': 1}", None]]}
    assert log.metrics() == {"seen": [1.0, 2.0]}


@pytest.mark.parametrize(
    "log",
    [
        lambda log_extra, log_metric: log_extra("short", [1]),
        lambda log_extra, log_metric: log_metric("endless", float("inf")),
    ],
)
def test_what_cannot_be_kept_is_an_error_of_the_reward(
    log: Callable[..., None], group: Callable[..., RolloutGroup]
) -> None:
    """One value for each completion, and finite numbers."""

    def careless(completions: Sequence[str], log_extra: Any, log_metric: Any) -> list[float]:
        log(log_extra, log_metric)
        return [1.0] * len(completions)

    made = make_reward(careless, file=__file__, sha256="")
    with refuses("careless", error=PluginError):
        score_all([group(["a", "b"])], {"careless": 1.0}, Config(), {"careless": made})
