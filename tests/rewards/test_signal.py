"""What a reward may log beside its values, in TRL's words, and what a run keeps of it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.refusals import refuses
from support.training import trained

from smolsum.config.sections import Config
from smolsum.errors import PluginError
from smolsum.files import read_jsonl
from smolsum.rewards.combine import score_all, score_and_combine
from smolsum.rewards.custom import make_reward
from smolsum.rewards.signal import RewardLog, TrainerState
from smolsum.runs.paths import RunPaths
from smolsum.runs.samples import read_groups
from smolsum.types import RolloutGroup

PLUGIN = """
def early(completions, trainer_state, log_extra, log_metric):
    words = [len(text.split()) for text in completions]
    log_extra("words", words)
    log_metric("words/longest", max(words))
    log_metric("reward", 1000.0)
    return [trainer_state.global_step / trainer_state.max_steps] * len(words)
"""


def test_a_run_keeps_what_a_reward_logs(data: Path, tmp_path: Path) -> None:
    """Columns stand beside the completions, refilled ones too, and numbers in the metrics, without replacing ours. The
    state counts the updates done, over the stages; validations score as at the end."""
    (tmp_path / "rewards.py").write_text(PLUGIN)
    steps = {"stages__length__steps": 2, "stages__quality__steps": 2, "train__refill_rounds": 1}
    own = ["--plugin", str(tmp_path / "rewards.py:early"), "--reward", "early"]
    run = RunPaths(trained(data, tmp_path, "mine", *own, **steps))
    rows = read_jsonl(run.metrics)
    assert [row.get("rewards/early/mean") for row in rows[2:]] == [0.5, 0.75]
    assert rows[-1]["validation/reward"] == 1.0
    for row in rows[2:]:
        assert row["reward"] < 1000
        samples = [one for group in read_groups(run, row["step"]) for one in group.samples]
        assert len(samples) > 8
        assert [one.extra["words"] for one in samples] == [len(one.text.split()) for one in samples]
        assert row["words/longest"] > 0


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
    "log", [lambda extra, metric: extra("short", [1]), lambda extra, metric: metric("endless", float("inf"))]
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
