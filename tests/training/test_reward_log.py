"""What TRL's `log_extra`, `log_metric` and `trainer_state` do in a run, for rewards that name them."""

from pathlib import Path

from support.training import arguments, make_data

from smolsum.cli.main import main
from smolsum.files import read_jsonl
from smolsum.runs.completion_groups import read_groups
from smolsum.runs.paths import RunPaths

PLUGIN = """
def early(completions, trainer_state, log_extra, log_metric):
    words = [len(text.split()) for text in completions]
    log_extra("words", words)
    log_metric("words/longest", max(words))
    log_metric("reward", 1000.0)
    return [trainer_state.global_step / trainer_state.max_steps] * len(words)
"""


def test_a_run_keeps_what_a_reward_logs(tmp_path: Path) -> None:
    """Columns stand beside the completions, refilled ones too, and numbers in the metrics, without replacing ours. The
    state counts the updates done, over the stages; validations score as at the end."""
    (tmp_path / "rewards.py").write_text(PLUGIN)
    steps = {"stages__length__steps": 2, "stages__quality__steps": 2, "train__refill_rounds": 1}
    plain = arguments(make_data(tmp_path / "data"), tmp_path, "mine", **steps)
    assert main([*plain, "--plugin", str(tmp_path / "rewards.py:early"), "--reward", "early"]) == 0
    run = RunPaths(tmp_path / "mine")
    rows = read_jsonl(run.metrics)
    assert [row.get("rewards/early/mean") for row in rows[2:]] == [0.5, 0.75]
    assert rows[-1]["validation/reward"] == 1.0
    for row in rows[2:]:
        assert row["reward"] < 1000
        samples = [one for group in read_groups(run, row["step"]) for one in group.samples]
        assert len(samples) > 8
        assert [one.extra["words"] for one in samples] == [len(one.text.split()) for one in samples]
        assert row["words/longest"] > 0
