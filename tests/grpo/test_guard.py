"""The guard: what it watches, when it speaks, and what it does in whole runs."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from support.calls import Call, done
from support.training import arguments, assert_goes_on, events, learned, trained, weights

from smolsum.cli.main import main
from smolsum.config.resolve import resolve
from smolsum.errors import SmolsumError
from smolsum.files import read_jsonl
from smolsum.grpo import guard as module
from smolsum.grpo import resume
from smolsum.grpo.guard import Guard, open_guard
from smolsum.tasks import TASKS
from smolsum.tasks.base import Metric

BAD = Metric("bad", "bad things", better="lower")
ALARM = """
from smolsum.grpo import guard, resume
guard._History.rise = property(lambda self: 9.0 * (len(self.first) == 4))
guard.FIRST, guard.PULL, resume.LAST = 100, -99.0, 2
"""
"""code after which the guard speaks in the fourth step of a stage, whatever it sees"""


def watched(task: str, *sets: str, stage: str) -> set[str]:
    """The columns that the guard watches in a stage of a run with these settings, of the default strategy or of that
    with two stages."""
    strategy = "finetuned" if stage in ("length", "quality") else None
    config = resolve(TASKS, flags={"task.name": task}, strategy=strategy, sets=sets).config
    return {one.column or one.name for one in open_guard(config, config.stages[stage], TASKS[task].evaluation).watched}


def test_it_watches_what_is_neither_rewarded_nor_bounded() -> None:
    """Of all that the task measures and knows the better direction of."""
    quality = watched("tldr", stage="quality")
    assert {"within_tol", "rouge", "bleu", "facts_wrong", "supported", "repeated_trigrams"} <= quality
    assert "meteor" not in quality
    assert "within_tol" not in watched("tldr", stage="length")
    bounded = watched("tldr", "grpo.constraints=repeated_trigrams <= 0.01; length within 1: 0.9", stage="quality")
    assert quality - bounded == {"within_tol", "repeated_trigrams"}
    by_default = watched("tldr", stage="constrained")
    assert quality - by_default == {"within_tol", "facts_wrong", "repeated_trigrams"}
    assert not watched("tldr", "train.guard=off", stage="quality")
    assert not watched("tldr", "stages.quality.learn=references", stage="quality")


def seen(steps: int, *, drift: float, pull: float, seed: int = 0) -> tuple[Guard, list[Mapping[str, float]]]:
    """A guard, and its metrics of steps of four groups of eight rollouts: the measure is noise that rises by `drift` in
    a step, and correlates with the advantage as `pull` says (from -1 to 1)."""
    draws, guard, found = np.random.default_rng(seed), Guard([BAD]), []
    for step in range(steps):
        noise, own = draws.normal(size=(2, 4, 8))
        advantages = pull * noise + (1 - abs(pull)) * own
        rows = [[{"bad": float(drift * step + value)} for value in group] for group in noise]
        found.append(guard.look(rows, [dict(enumerate(group.tolist())) for group in advantages]))
    return guard, found


def alarms(found: list[Mapping[str, float]]) -> list[int]:
    """The steps, from 1, in which the guard finds something wrong."""
    return [n for n, row in enumerate(found, start=1) if row["guard/bad/alarm"]]


def test_an_alarm_needs_both() -> None:
    """A measure that got worse, and a reward that pulls it that way."""
    assert alarms(seen(80, drift=0.05, pull=0.8)[1])
    for n in range(5):
        assert not alarms(seen(80, drift=0.05, pull=0.0, seed=n)[1]), "nothing pulls it"
        assert not alarms(seen(80, drift=0.0, pull=0.8, seed=n)[1]), "it does not move"
        assert not alarms(seen(80, drift=-0.05, pull=0.8, seed=n)[1]), "it gets better"
        assert not alarms(seen(80, drift=0.05, pull=-0.8, seed=n)[1]), "the reward pulls it back"


def test_metrics_are_the_mean_and_standard_errors() -> None:
    """The pull is the covariance of advantage and measure within groups, where higher is worse."""
    guard, found = seen(60, drift=0.0, pull=1.0)
    assert found[-1]["guard/bad/pull"] > 20
    assert abs(found[-1]["guard/bad/mean"]) < 1
    better = Guard([Metric("bad", "good things", better="higher")])
    rows, advantages = [[{"bad": 0.0}, {"bad": 1.0}, {"bad": None}]], [{0: -1.0, 1: 1.0, 2: 0.5}]
    for _ in range(module.FIRST):
        metrics = better.look(rows, advantages)
    assert metrics["guard/bad/mean"] == 0.5
    assert better.state()["seen"]["bad"][0] == [-0.5] * module.FIRST, "a higher value is the better one here"
    assert better.look([[{}, {}]], [{0: 1.0, 1: -1.0}]) == {}, "nothing was measured"
    assert guard.alarms == []


def test_it_goes_on_from_its_state() -> None:
    """As JSON keeps it, to the last bit."""
    whole, rows = seen(50, drift=0.05, pull=0.8)
    half, _ = seen(30, drift=0.05, pull=0.8)
    again = Guard([BAD])
    again.load(json.loads(json.dumps(half.state())))
    draws = np.random.default_rng(0)
    for step in range(50):
        noise, own = draws.normal(size=(2, 4, 8))
        if step >= 30:
            measured = [[{"bad": float(0.05 * step + value)} for value in group] for group in noise]
            advantages = 0.8 * noise + (1 - abs(0.8)) * own
            last = again.look(measured, [dict(enumerate(group.tolist())) for group in advantages])
    assert last == rows[-1]
    assert again.state()["seen"].keys() == whole.state()["seen"].keys()


@pytest.fixture
def speaking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard speaks in the fourth step of a stage."""
    rise = property(lambda self: 9.0 * (len(self.first) == 4))
    for where, name, value in (
        (module._History, "rise", rise), (module, "FIRST", 100), (module, "PULL", -99.0), (resume, "LAST", 2),
    ):  # fmt: skip
        monkeypatch.setattr(where, name, value)


def command(data: Path, runs: Path, name: str, how: str) -> list[str]:
    return [*arguments(data, runs, name), f"--guard={how}"]


def messages(run: Path) -> list[str]:
    return [row["message"] for row in read_jsonl(run / "events.jsonl") if row["kind"] == "guard"]


def test_it_warns_once_and_changes_nothing(speaking: None, data: Path, tmp_path: Path) -> None:
    """Each measure is named once in a stage; weights are those of a run without a guard."""
    run = trained(data, tmp_path / "a", "warned")
    assert [one.count("wrong facts (") for one in messages(run)] == [1]
    without = trained(data, tmp_path / "b", "without", "--guard=off")
    assert weights(run, 8) == weights(without, 8)
    assert not any(key.startswith("guard/") for row in learned(without) for key in row)
    assert all("guard/facts_wrong/pull" in row for row in learned(run))


def test_it_stops_and_can_be_overruled(speaking: None, data: Path, tmp_path: Path, call: Call) -> None:
    """The step is saved; resumed, the run continues and does not stop for these measures again."""
    code, out, err = call(*command(data, tmp_path, "stopped", "stop"))
    assert code == SmolsumError.exit_code
    assert out.split() == [str(tmp_path / "stopped")]
    assert all(part in err for part in ("stopped by the guard after step 4", "wrong facts", "--resume"))
    assert main(["train", "--resume", "stopped", "--runs-dir", str(tmp_path)]) == 0
    whole = trained(data, tmp_path / "other", "whole")
    assert weights(tmp_path / "stopped", 8) == weights(whole, 8)
    shutil.rmtree(tmp_path / "stopped" / "checkpoints" / "step-000004", ignore_errors=True)
    assert "8 of 8 derived" in done(call("verify", tmp_path / "stopped", "--steps=8"))[0]


def test_it_goes_back(speaking: None, data: Path, tmp_path: Path, call: Call) -> None:
    """To the weights of the last checkpoint before the newest steps, which is kept; the rate is half from then on."""
    run = trained(data, tmp_path / "a", "back", "--guard=rollback", train__keep_checkpoints=9)
    plain = trained(data, tmp_path / "b", "plain", train__keep_checkpoints=9)
    assert events(run).count("rolled_back") == 1
    assert weights(run, 4) == weights(plain, 2) != weights(plain, 4)
    rates = [[row["learning_rate"] for row in learned(one)] for one in (run, plain)]
    assert rates[0][:4] == rates[1][:4]
    assert rates[0][4] == rates[1][4] / 2
    assert rates[0][5:] == rates[1][5:], "the next stage begins with the whole rate"
    assert weights(run, 5) != weights(plain, 5)
    assert "8 of 8 derived" in done(call("verify", run, "--steps=8"))[0]
    for step in (2, 4):
        shutil.rmtree(run / "checkpoints" / f"step-{step:06d}")
    out, err = done(call("verify", run, "--steps=8"))
    assert "6 of 8 derived" in out
    assert "steps 4 to 5: the checkpoint of step 2, to which the guard went back, is not left" in err


def test_it_goes_back_to_no_weights_that_were_undone(
    speaking: None, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second alarm, of steps that a checkpoint between the first one and its goal precedes, has that same goal."""
    rise = property(lambda self: 9.0 * (len(self.first) in (3, 4)))
    monkeypatch.setattr(module._History, "rise", rise)
    every = {"train__checkpoint_every": 1, "train__keep_checkpoints": 1}
    run = trained(data, tmp_path / "a", "back", "--guard=rollback", **every)
    said = [row["message"] for row in read_jsonl(run / "events.jsonl") if row["kind"] == "rolled_back"]
    assert [message.partition(",")[0] for message in said[:2]] == ["back to the weights of step 1"] * 2


@pytest.mark.slow
def test_killed_after_going_back_it_ends_as_it_would(speaking: None, data: Path, tmp_path: Path) -> None:
    assert main(command(data, tmp_path / "whole", "whole", "rollback")) == 0
    assert_goes_on(command(data, tmp_path, "killed", "rollback"), 5, tmp_path / "whole" / "whole", first=ALARM)
