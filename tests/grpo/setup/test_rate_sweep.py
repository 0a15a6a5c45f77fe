"""The learning rate: what the sweep of `--find-lr` recommends and leaves behind, and one that is left to the model."""

import json
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
import tomli
from mlx.utils import tree_flatten
from support.calls import Call, done
from support.refusals import assert_refused, refuses
from support.training import arguments, learned

from smolsum.cli import find_rate
from smolsum.cli.main import main
from smolsum.config.resolve import resolve
from smolsum.config.sections import Config
from smolsum.errors import SmolsumError
from smolsum.files import read_jsonl
from smolsum.grpo import keeper
from smolsum.grpo.setup import rate_sweep
from smolsum.grpo.setup.prepare import Setup
from smolsum.grpo.setup.rate_sweep import Sweep, Trial, TrialKeeper, default_rates
from smolsum.runs import standstill
from smolsum.tasks import TASKS


def trial(rate: float, reward: float | None, greedy: float | None = None, **changes: Any) -> Trial:
    found = {"reward_std": 0.2, "tokens": 20.0, "repeated": 0.0, "kl": 0.1, "skipped": 0} | changes
    return Trial(rate, reward, greedy={} if greedy is None else {"reward": greedy}, **found)


@pytest.mark.parametrize(
    ("trials", "rate"),
    [
        # a larger rate that gains hardly more is not worth what it changes
        ([trial(1e-4, 0.1, 0.1), trial(1e-3, 0.28, 0.28), trial(1e-2, 0.3, 0.3)], 1e-3),
        ([trial(1e-4, 0.1, 0.1), trial(1e-3, 0.2, 0.2), trial(1e-2, 0.3, 0.3)], 1e-2),
        # samples and greedy completions must both gain; with a gradient that is not finite there is no gain
        ([trial(1e-4, 0.5, -0.1), trial(1e-3, 0.1, 0.1), trial(1e-2, -0.1, 0.5)], 1e-3),
        ([trial(1e-4, 0.1, 0.1), trial(1e-3, 0.5, 0.5, skipped=1)], 1e-4),
        ([trial(1e-4, None, 0.5), trial(1e-3, 0.5)], None),
        # what is far from the start, or repeats itself, may have the right length and says nothing
        ([trial(3e-4, 0.2, 0.2), trial(3e-3, 0.4, 0.4, kl=8.4)], 3e-4),
        ([trial(3e-4, 0.2, 0.2), trial(3e-3, 0.4, 0.4, repeated=0.9)], 3e-4),
        ([trial(3e-3, 0.4, 0.4, kl=8.4)], None),
        # two standard errors of the sampled reward are the least gain
        ([trial(1e-4, 0.015, 0.1), trial(1e-3, -0.2, -0.2)], None),
        ([], None),
    ],
)
def test_the_smallest_of_the_best_rates_is_recommended(trials: list[Trial], rate: float | None) -> None:
    """Rewards of 0 at the start, and means over 400 samples: a gain is above chance from 0.02 on."""
    found = Sweep("length", 40, 400, trial(0.0, 0.0, 0.0), trials).recommended()
    assert (found and found.rate) == rate
    assert default_rates(4e-4) == (4e-5, 1e-4, 4e-4, 1e-3, 4e-3)  # those around the run's, with one digit each


def sweep(data: Path, runs: Path, *more: str) -> list[str]:
    """The arguments of a sweep of two steps a rate, in samples that tell nothing."""
    run = [flag for flag in arguments(data, runs, "none") if flag not in ("--name", "none")]
    return [*run, "--find-lr", "--trial-steps=2", *more]


def swept(call: Call, data: Path, runs: Path, *more: str) -> dict[str, Any]:
    """The record that a sweep prints, which is also what it leaves."""
    code, out, _ = call(*sweep(data, runs, "--json", *more))
    assert code in (0, 1)
    record = json.loads(out)
    (left,) = runs.iterdir()
    assert json.loads(left.read_text()) == record
    assert code == (record["recommended"] is None)
    return dict(record)


def outcome(trial: dict[str, Any]) -> Any:
    """What a rate that is large enough changes."""
    return trial["reward"], trial["tokens"], trial["greedy"]


@pytest.mark.slow
def test_trials_do_not_touch_each_other(
    data: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate gives the same numbers alone and after others, whose weights are put back; with adapters too. Workers of
    the environment are not asked. A record is all that is left, and a rate of almost 0 changes nothing."""
    monkeypatch.setenv("SMOLSUM_WORKERS", "http://127.0.0.1:9")
    several = swept(call, data, tmp_path / "several", "--rates=1e-12,1e-2,3e-3")
    alone = swept(call, data, tmp_path / "alone", "--rates=1e-2")
    assert [found["rate"] for found in several["trials"]] == [1e-12, 3e-3, 1e-2]
    assert several["trials"][2] == alone["trials"][0]
    assert several["start"] == alone["start"]
    still, start = several["trials"][0], several["start"]
    assert outcome(still) == outcome(start)
    assert abs(still["kl"]) < 1e-6
    assert outcome(several["trials"][2]) != outcome(start)
    lora = ["--set=lora.rank=4", "--set=stages.length.beta=0"]
    adapted = swept(call, data, tmp_path / "lora", "--rates=1e-12,3e-2", *lora)
    assert adapted["start"] == start
    assert outcome(adapted["trials"][1]) != outcome(start)
    assert adapted["trials"][1]["kl"] is not None


def test_the_screen_shows_table_chart_and_what_to_do(
    data: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """stdout has the rate alone, and the command on the screen is one that `train` takes."""
    monkeypatch.setattr(Sweep, "noise", -1.0)
    asked = sweep(data, tmp_path, "--rates=1e-12,1e-3")
    monkeypatch.setenv("SMOLSUM_WORKERS", "http://127.0.0.1:9")
    out, err = done(call(*asked), "workers", "greedy tokens", "\nrate=1e-12 step=2/4 reward=", "reward after the trial")
    assert (rate := out.strip()) in ("1e-12", "0.001")
    assert "stage=" not in err
    (command,) = [line.removeprefix("use it: ") for line in err.splitlines() if line.startswith("use it: ")]
    words = shlex.split(command)
    assert words[-2:] == ["--set", f"optimizer.learning_rate={rate}"]
    assert not any(word.startswith(("--find-lr", "--rates", "--trial-steps")) for word in words)
    done(call(*words[1:], "--dry-run", "--quiet"))


@pytest.mark.parametrize("given", ["stages.length.learning_rate=3e-5", "stages.length={learning_rate=3e-5}"])
def test_the_command_applies_the_rate_to_a_stage_with_its_own(
    data: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """A stage's rate that is given as a flag goes before that of the run."""
    monkeypatch.setattr(Sweep, "noise", -1.0)
    found = swept(call, data, tmp_path, "--rates=1e-12", f"--set={given}")
    words = shlex.split(found["command"])
    shown, _ = done(call(*words[1:], "--dry-run", "--quiet"))
    assert tomli.loads(shown)["stages"]["length"]["learning_rate"] == 1e-12


def test_ctrl_c_ends_a_sweep_after_the_step_and_keeps_what_it_measured(
    data: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real signal within a step of the second rate: a sweep saves no weights and promises none, and says what it
    shows."""
    log = TrialKeeper.log

    def interrupted(keeper: TrialKeeper, *args: Any) -> None:
        steps.append(keeper.label)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        log(keeper, *args)

    steps: list[str] = []
    monkeypatch.setattr(TrialKeeper, "log", interrupted)
    code, _, err = call(*sweep(data, tmp_path, "--rates=1e-4,1e-3,1e-2"))
    assert code == 130
    assert "finishing the step, then showing the rates tried so far" in err
    assert "saving" not in err
    assert "sweep stopped after 1 of 3 rates" in err
    (left,) = tmp_path.iterdir()
    assert [found["rate"] for found in json.loads(left.read_text())["trials"]] == [1e-4]


def test_the_memory_of_a_sweep_has_room_for_its_start(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep keeps the weights at the start, to go back to them and to measure the KL divergence, also where the run
    would keep none."""
    prepare, planned = rate_sweep.prepare, list[Setup]()

    def prepared(config: Config) -> Setup:
        planned.append(prepare(config))
        raise SmolsumError("that is enough", hint=None)

    monkeypatch.setattr(rate_sweep, "prepare", prepared)
    assert main(sweep(data, tmp_path, "--rates=1e-4", "--set=grpo.beta=0")) == 1
    (setup,) = planned
    size = sum(p.nbytes for _, p in tree_flatten(setup.policy.model.parameters()))
    assert setup.memory.parts["reference"] == size


def test_a_record_that_cannot_be_written_costs_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sweep is shown first, then the error names the folder."""
    (tmp_path / "file").touch()
    settings = resolve(TASKS, model="tiny", strategy="finetuned", flags={"run.dir": str(tmp_path / "file" / "runs")})
    found = Sweep("length", 40, 400, trial(0.0, 0.0, 0.0), [trial(1e-3, 0.2, 0.2)])
    with refuses(tmp_path / "file", "--runs-dir", error=SmolsumError):
        find_rate._report(found, settings, ["train", "--find-lr"], quiet=False, as_json=False)
    shown = capsys.readouterr()
    assert shown.out.strip() == "0.001"
    assert "recommended: 0.001" in shown.err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--find-lr", "--name=x"], ["--find-lr", "--name"]),
        (["--find-lr", "--dry-run"], ["--find-lr", "--dry-run"]),
        (["--find-lr", "--resume=x"], ["--find-lr", "--resume"]),
        (["--rates=1e-4"], ["without --find-lr", "--rates"]),
        (["--find-lr", "--rates=1e-4,fast"], ["--rates 1e-4,fast"]),
        (["--find-lr", "--rates=0"], ["--rates 0", "above 0"]),
        (["--find-lr", "--model=tiny", "--model=qwen"], ["--find-lr", "one run"]),
    ],
)
def test_flags_that_mean_nothing_together(flags: list[str], named: list[str], call: Call) -> None:
    """Each is refused before anything is loaded."""
    assert_refused(call("train", *flags), *named)


def test_the_chosen_rate_is_shown_trained_with_and_kept(data: Path, tmp_path: Path, call: Call) -> None:
    """The dry run gives the number and its reason, the run's config.toml the number, and the run resumes with it. A
    model with a preset gets no advice, nor does a small model that has the small settings already."""
    for flags in (["--model=tiny"], ["--model=builtin:tiny", "--preset=small"]):
        code, _, err = call("train", *flags, "--dry-run", f"--set=data.path={data}")
        assert (code, "--preset small" in err) == (0, False)
    made = arguments(data, tmp_path, "own", **STEPS)
    own = ["--model=builtin:tiny" if flag == "--model=tiny" else flag for flag in made]
    code, out, err = call(*own, "--dry-run")
    assert code == 0
    assert re.search(r"learning_rate = 0\.0003 +# chosen for 985 k parameters", out)
    assert "--preset small" in err
    assert call(*own, "--dry-run", "--quiet") == (0, out, "")
    assert call(*own, "--quiet")[0] == 0
    config = tomli.loads((tmp_path / "own" / "config.toml").read_text())
    assert [config["optimizer"]["learning_rate"], config["stages"]["quality"]["learning_rate"]] == [3e-4, 3e-4]
    assert [row["learning_rate"] for row in learned(tmp_path / "own")] == [3e-4] * 3
    assert call("train", "--resume", str(tmp_path / "own"), "--quiet")[0] == 0


def test_a_run_that_stands_still_says_so_once(
    data: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the screen and among the events, with the remedy."""
    for module in (standstill, keeper):
        monkeypatch.setattr(module, "STEPS", 6)
    settings = {"optimizer__learning_rate": 1e-12, "stages__length__steps": 18, "stages__quality__steps": 1}
    code, _, err = call(*arguments(data, tmp_path, "still", **STEPS | settings), "--quiet")
    assert (code, err.count("the policy stands still: in 12 steps")) == (0, 1)
    found = [row for row in read_jsonl(tmp_path / "still" / "events.jsonl") if row["kind"] == "stands_still"]
    assert [row["step"] for row in found] == [12]
    assert "--find-lr" in found[0]["hint"]


STEPS = {"stages__length__steps": 2, "stages__quality__steps": 1, "train__validate_every": 0}
