"""What the command line takes, prints and returns; the training itself is a stand-in here."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import tomli
from support.training import PATIENCE_S, make_data

from smolsum import console, errors
from smolsum.cli import main
from smolsum.config.presets import preset_names
from smolsum.config.sections import Config, to_toml
from smolsum.rewards import REWARDS
from smolsum.runs.paths import create_run
from smolsum.tasks import DEFAULT_TASK, TASKS
from smolsum.training.progress import Progress

HUB_BARS = ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS")


class Trainer:
    """Stands in for `smolsum.training.loop`: keeps what it was asked, then does what the test wants."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.action: Callable[[], None] = lambda: None

    def train(self, config: Config, *, resume: str | None, progress: Progress, begun: Callable[[Path], None]) -> None:
        self.calls.append({"config": config, "resume": resume})
        progress.note("training")
        self.action()
        begun(Path("runs/one"))


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for name in ("SMOLSUM_RUNS_DIR", "FORCE_COLOR", *HUB_BARS):
        # set first, so that what the command itself sets is taken back too
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield
    console.set_plain(False)


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """A training that is over at once."""
    stand_in = Trainer()
    module = types.ModuleType("smolsum.training.loop")
    monkeypatch.setattr(module, "train", stand_in.train, raising=False)
    monkeypatch.setitem(sys.modules, "smolsum.training.loop", module)
    return stand_in


def test_run_directory_is_all_of_stdout(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    """A finished training leaves its directory on stdout, alone, and what was said on stderr."""
    assert main.main(["train"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("runs/one\n", "starting\ntraining\n")
    assert trainer.calls[0]["resume"] is None


def test_options_reach_the_configuration(trainer: Trainer, tmp_path: Path) -> None:
    """Every option arrives where it belongs."""
    own = tmp_path / "own.toml"
    own.write_text("[train]\nprompts_per_step = 3\n")
    options = (
        "--model lfm --strategy included --reward meteor-rouge --preset study --config own.toml "
        "--set grpo.beta=0.1 --set stages.included.steps=7 --name first --runs-dir elsewhere --seed 0"
    )
    assert main.main(["train", *options.split()]) == 0
    config = trainer.calls[0]["config"]
    assert config.model.path == "LiquidAI/LFM2.5-350M"
    assert config.stages["included"].rewards == {"length": 1.0, "meteor": 1.0, "rouge": 1.0}
    assert config.stages["included"].steps == 7
    assert config.grpo.loss == "study"
    assert config.grpo.beta == 0.1
    assert config.train.prompts_per_step == 3
    assert config.train.seed == 0
    assert (config.run.name, config.run.dir) == ("first", "elsewhere")


def test_environment_gives_the_runs_directory(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """SMOLSUM_RUNS_DIR is taken from the environment."""
    monkeypatch.setenv("SMOLSUM_RUNS_DIR", "from-environment")
    assert main.main(["train"]) == 0
    assert trainer.calls[0]["config"].run.dir == "from-environment"


@pytest.fixture
def stopped(trainer: Trainer) -> Config:
    """The settings of a run called `first` in `elsewhere`, far from all defaults, that waits there."""
    options = "--model lfm --strategy included --set grpo.beta=0.5 --set stages.included.epochs=2 --seed 9"
    assert main.main(["train", *options.split()]) == 0
    config: Config = trainer.calls.pop()["config"]
    create_run(Path("elsewhere"), "first").config.write_text(to_toml(config))
    return config


@pytest.mark.parametrize(
    ("run", "more"),
    [
        ("first", ["--runs-dir", "elsewhere"]),
        ("latest", ["--runs-dir", "elsewhere"]),
        ("elsewhere/first", []),
        ("elsewhere/latest", []),
    ],
)
def test_resume_takes_the_run_as_it_was(run: str, more: list[str], trainer: Trainer, stopped: Config) -> None:
    """A run found by name, by directory or as the latest goes on where it is, with its own settings."""
    assert main.main(["train", "--resume", run, *more]) == 0
    as_it_was = replace(stopped, run=replace(stopped.run, dir="elsewhere"))
    assert trainer.calls == [{"config": as_it_was, "resume": run}]


def test_resume_looks_where_runs_are_kept(
    trainer: Trainer, stopped: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name is looked for where the environment has the runs; a missing one is an error with the nearest name."""
    monkeypatch.setenv("SMOLSUM_RUNS_DIR", "elsewhere")
    assert main.main(["train", "--resume", "first"]) == 0
    assert main.main(["train", "--resume", "frist"]) == 2
    err = capsys.readouterr().err
    assert err.endswith("error: no run 'frist' in elsewhere\n\nhint: did you mean first?\n")


@pytest.mark.parametrize(
    "options",
    [
        "--model tiny",
        "--strategy included",
        "--reward bleu",
        "--preset study",
        "--config own.toml",
        "--set grpo.beta=0",
        "--name second",
        "--seed 0",
        "--dry-run",
    ],
)
def test_resume_changes_nothing(options: str, trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever would make a resumed run another run is refused, with the reason."""
    assert main.main(["train", "--resume", "my run", *options.split()]) == 2
    err = capsys.readouterr().err
    assert f"error: --resume goes on with the run's own settings, so it takes no {options.split()[0]}\n" in err
    assert "hint: smolsum train --resume 'my run'" in err
    assert trainer.calls == []


def test_dry_run_prints_what_would_run(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run prints a configuration that repeats it, the source of its values, the steps, and the memory."""
    settings = ("stages.length.steps=120", "stages.quality.steps=30", f"data.path={make_data(Path('posts'))}")
    options = ["--model", "tiny", *(f"--set={setting}" for setting in settings)]
    assert main.main(["train", *options, "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert trainer.calls == []
    assert "# --set" in next(line for line in out.splitlines() if line.startswith("steps = 30"))
    lines = [line.split() for line in err.splitlines()]
    assert lines[:4] == [["stage", "steps"], ["length", "120"], ["quality", "30"], ["memory", "GB"]]
    end = next(n for n, words in enumerate(lines) if words[0] == "peak")
    parts, (_, peak), (*words, without), (*limit, size), (first, *_) = lines[4:end], *lines[end : end + 4]
    assert (words, limit[0], first) == (["peak", "without", "chunks"], "limit:", "memory:")
    assert 0 < float(peak) == pytest.approx(sum(float(size) for _, size in parts), abs=0.05)
    assert float(peak) == float(without) <= float(size)
    Path("again.toml").write_text(out)
    assert tomli.loads(out)["model"]["path"] == "builtin:tiny"
    assert main.main(["train", *options]) == 0
    assert main.main(["train", "--config", "again.toml"]) == 0
    assert trainer.calls[0] == trainer.calls[1]


def test_dry_run_warns(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    """Of settings that do not go together, as the run would."""
    assert main.main(["train", "--task=ab-judge", "--set=grpo.advantage_scale=batch", "--dry-run", "--quiet"]) == 0
    err = capsys.readouterr().err
    assert err.startswith("warning: task.accuracy_power = 4 does next to nothing with grpo.advantage_scale = batch")
    assert main.main(["train", "--task=ab-judge", "--dry-run", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_dry_run_without_a_network() -> None:
    """The settings of a model and of data on the hub can be read before they are there, as those of a grid can."""
    command = [sys.executable, "-m", "smolsum", "train", "--model=lfm", "--dry-run"]
    closed = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(command, capture_output=True, text=True, env=closed)
    assert done.returncode == 0
    assert tomli.loads(done.stdout)["data"]["path"] == "mlabonne/smoltldr"
    assert "known once the data are here: the hub did not answer for data set 'mlabonne/smoltldr'" in done.stderr
    assert "--set data.path=DIR" in done.stderr


def test_dry_run_downloads_nothing(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    """The memory of a model that is not here is not known yet, and the dry run says how it will be."""
    assert main.main(["train", "--dry-run", "--model", "someone/not-here", "--set", "data.path=builtin:tldr-mini"]) == 0
    assert "memory: known once someone/not-here is on this machine" in capsys.readouterr().err


def test_dry_run_refuses_a_budget_that_is_too_small(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    """One error, with the budget that would do: it is accepted, and the memory listed with and without chunks."""
    posts = f"--set=data.path={make_data(Path('posts'))}"
    assert main.main(["train", "--dry-run", posts, "--set", "engine.memory_budget_gb=0.001"]) == 4
    hint = capsys.readouterr().err.split("hint: ")[1].split(";")[0].split()
    assert hint[1].startswith("engine.memory_budget_gb=")
    assert main.main(["train", "--dry-run", posts, *hint]) == 0
    err = capsys.readouterr().err
    assert [name in err for name in ("peak without chunks", "limit: engine.memory_budget_gb", "memory: ")] == [True] * 3


def test_dry_run_counts_epochs(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    """Where epochs decide, the training data are counted."""
    rows = "".join(f'{{"prompt": "post {i}", "completion": "sum {i}"}}\n' for i in range(9))
    Path("data").mkdir()
    for split in ("train", "validation", "test"):
        Path(f"data/{split}.jsonl").write_text(rows)
    sets = ["--set", "data.path=data", "--set", "stages.quality.epochs=2"]
    assert main.main(["train", *sets, "--dry-run"]) == 0
    # nine prompts twice, four a step, the last step filled up
    assert "quality  5 (epochs = 2)" in capsys.readouterr().err.splitlines()


def test_quiet_says_nothing(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    """A quiet command leaves stderr empty where nothing is wrong."""
    assert main.main(["train", "-q"]) == 0
    assert capsys.readouterr() == ("runs/one\n", "")
    assert main.main(["train", "--quiet", "--dry-run"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.SmolsumError, 1),
        (errors.UsageError, 2),
        (errors.UnreachableError, 3),
        (errors.MachineError, 4),
        (errors.InterruptedRun, 130),
    ],
)
def test_exit_codes(
    kind: type[errors.SmolsumError], code: int, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each kind of failure has its exit code, and is one line and a hint."""

    def fail() -> None:
        raise kind("it went wrong", hint="restore it")

    trainer.action = fail
    assert main.main(["train"]) == code
    assert capsys.readouterr() == ("", "starting\ntraining\nerror: it went wrong\n\nhint: restore it\n")


def test_unexpected_failure(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    """An unforeseen failure is one line too, and the hint is the command that shows more."""

    def fail() -> None:
        raise ValueError("bad shape")

    trainer.action = fail
    assert main.main(["train", "--set", "task.system_prompt=be brief"]) == 1
    expected = (
        "starting\ntraining\nerror: unexpected ValueError: bad shape\n\n"
        "hint: smolsum train --set 'task.system_prompt=be brief' --debug\n"
    )
    assert capsys.readouterr() == ("", expected)


@pytest.mark.parametrize("failure", [ValueError("bad shape"), errors.SmolsumError("bad shape")])
def test_debug_shows_the_traceback(failure: Exception, trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    """With --debug the place of any failure is shown, above the error."""

    def fail() -> None:
        raise failure

    trainer.action = fail
    assert main.main(["train", "--debug"]) == 1
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert ", in fail\n" in err
    assert err.splitlines()[-1].startswith("error: ")


def test_interrupt(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C is said in a line and exits with 130."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    trainer.action = interrupt
    assert main.main(["train"]) == 130
    assert capsys.readouterr().err == "starting\ntraining\nerror: interrupted\n"


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("trian", "no such command 'trian'", "smolsum --help"),
        ("train --modle tiny", "no such option: --modle", "smolsum train --help"),
        ("report a --format=pdf", "invalid value for '--format': 'pdf' is not one of 'html'", "smolsum report --help"),
        ("train --seed one", "invalid value for '--seed'", "smolsum train --help"),
        ("train --model", "option '--model' requires an argument", "smolsum train --help"),
        ("train tiny", "got unexpected extra argument", "smolsum train --help"),
        ("train --model tinny", "flag --model: unknown model 'tinny'", "did you mean tiny?"),
        ("train --strategy fine", "flag --strategy: unknown strategy 'fine'", "did you mean finetuned?"),
        ("train --reward meteo", "flag --reward: unknown signal 'meteo'", "did you mean meteor?"),
        ("train --preset studdy", "unknown preset 'studdy'", "did you mean study?"),
        ("train --set grpo.betta=1", "--set: unknown key 'grpo.betta'", "did you mean grpo.beta?"),
        ("train --config no.toml", "cannot read the configuration file no.toml", "check the path"),
        ("train --seed 1 --seed=2", "--seed takes one value, and is given more than once", "give it once"),
        ("train --resume=", "--resume is empty", "smolsum runs"),
        ("train --worker=", "--worker is empty", "--worker http://HOST:PORT"),
        ("train --worker nonsense --dry-run", "URLs of workers, each once, got 'nonsense'", "http://HOST:PORT"),
        ("train --worker http://a:1 --worker http://a:1/", "URLs of workers, each once", "http://HOST:PORT"),
        ("train --seed -1", "train.seed must be between 0 and", "leave train.seed out"),
    ],
)
def test_bad_command_lines(
    line: str, message: str, hint: str, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command line that cannot be meant exits with 2, says what is wrong and what to do."""
    assert main.main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    said, remedy = err.split("\n\nhint: ")
    assert said.startswith("error: ")
    assert message in said
    assert hint in remedy
    assert trainer.calls == []


@pytest.mark.parametrize("line", ["--help", "-h", "train --help", "train -h", "stats --help"])
def test_help_goes_to_stdout(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Help that was asked for is a result, fits 80 columns and explains the exit codes."""
    assert main.main(line.split()) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert max(map(len, out.splitlines())) <= 80
    assert all(f"\n    {code} " in out for code in (0, 1, 2, 3, 4, 130))


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command the help is said on stderr, and nothing was done: 2."""
    assert main.main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Usage: smolsum [OPTIONS] COMMAND")


def test_help_names_what_is_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    """Help names every model, strategy and signal, and the defaults that are really taken."""
    assert main.main(["train", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    model, rest = text.split("--strategy STRATEGY")
    strategy, rest = rest.split("--reward SIGNALS")
    reward, rest = rest.split("--preset NAME")
    preset, _ = rest.split("--config FILE")
    assert all(name in model for name in preset_names("models"))
    assert all(f"{name}:" in strategy for name in preset_names("strategies"))
    assert all(name in reward for name in REWARDS)
    assert all(name in preset for name in preset_names("profiles") if name != "default")
    assert f"[default: the task's, {TASKS[DEFAULT_TASK].presets.model}]" in model
    assert f"[default: the task's, {TASKS[DEFAULT_TASK].presets.strategy}]" in strategy
    assert f"[default: the task's, {TASKS[DEFAULT_TASK].presets.reward}]" in reward


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """The version is that of the installed package."""
    assert main.main(["--version"]) == 0
    assert capsys.readouterr() == (f"smolsum {version('smolsum')}\n", "")


def test_hub_bars_are_off_without_a_terminal(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other libraries' bars stay out of log files, unless the user has asked for them."""
    monkeypatch.setenv(HUB_BARS[0], "0")
    assert main.main(["train"]) == 0
    assert [os.environ[name] for name in HUB_BARS] == ["0", "1"]


def test_hub_bars_stay_on_a_terminal(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal downloads show their bars; a plain or quiet command has none there either."""
    monkeypatch.setattr(console, "live", lambda: True)
    assert main.main(["train"]) == 0
    assert not any(name in os.environ for name in HUB_BARS)
    assert main.main(["train", "--quiet"]) == 0
    assert all(os.environ[name] == "1" for name in HUB_BARS)


def test_plain_is_passed_on(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """--plain holds for everything that the command prints."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    seen: list[bool] = []
    trainer.action = lambda: seen.append(console.live())
    assert main.main(["train", "--plain", "--quiet"]) == 0
    assert seen == [False]


def test_module_runs_like_the_command() -> None:
    """`python -m smolsum` is the command."""
    run = subprocess.run(
        [sys.executable, "-m", "smolsum", "trian"], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("error: no such command 'trian'")
