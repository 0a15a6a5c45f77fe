"""What the command line takes, prints and returns; the training itself is a stand-in here."""

import os
import signal
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import tomli
from support.calls import Call, done
from support.data_files import lines
from support.processes import python
from support.refusals import assert_refused
from support.training import make_data

from smolsum import console, errors
from smolsum.config.presets import preset_names
from smolsum.config.resolve import to_toml
from smolsum.config.sections import Config
from smolsum.grpo.progress import Progress
from smolsum.rewards import REWARDS
from smolsum.runs.paths import create_run
from smolsum.tasks import DEFAULT_TASK, TASKS

HUB_BARS = ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS")


class Trainer:
    """Stands in for `smolsum.grpo.loop`: keeps what it was asked, then does what the test wants."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.action: Callable[[], object] = lambda: None

    def train(self, config: Config, *, resume: str | None, progress: Progress, started: Callable[[Path], None]) -> None:
        self.calls.append({"config": config, "resume": resume})
        progress.note("training")
        self.action()
        started(Path("runs/one"))


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """A training that is over at once."""
    stand_in = Trainer()
    module = types.ModuleType("smolsum.grpo.loop")
    monkeypatch.setattr(module, "train", stand_in.train, raising=False)
    monkeypatch.setitem(sys.modules, "smolsum.grpo.loop", module)
    return stand_in


def test_run_directory_is_all_of_stdout(trainer: Trainer, call: Call) -> None:
    """A finished training leaves its directory on stdout, alone, and what was said on stderr; a quiet one says nothing
    where nothing is wrong."""
    assert call("train") == (0, "runs/one\n", "starting\ntraining\n")
    assert trainer.calls[0]["resume"] is None
    assert call("train", "-q") == (0, "runs/one\n", "")
    assert call("train", "--quiet", "--dry-run")[::2] == (0, "")


def test_options_reach_the_configuration(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    (tmp_path / "own.toml").write_text("[train]\nprompts_per_step = 3\n")
    options = (
        "--model lfm --strategy included --reward meteor-rouge --preset study --config own.toml "
        "--set grpo.beta=0.1 --set stages.included.steps=7 --name first --runs-dir elsewhere --seed 0"
    )
    done(call("train", *options.split()))
    config = trainer.calls[0]["config"]
    assert config.model.path == "LiquidAI/LFM2.5-350M"
    assert config.stages["included"].rewards == {"length": 1.0, "meteor": 1.0, "rouge": 1.0}
    assert (config.stages["included"].steps, config.train.prompts_per_step, config.train.seed) == (7, 3, 0)
    assert (config.grpo.loss, config.grpo.beta) == ("study", 0.1)
    assert (config.run.name, config.run.dir) == ("first", "elsewhere")
    monkeypatch.setenv("SMOLSUM_RUNS_DIR", "from-environment")
    done(call("train"))
    assert trainer.calls[1]["config"].run.dir == "from-environment"


@pytest.fixture
def stopped(trainer: Trainer, call: Call) -> Config:
    """The settings of a run called `first` in `elsewhere`, far from all defaults, that waits there."""
    options = "--model lfm --strategy included --set grpo.beta=0.5 --set stages.included.epochs=2 --seed 9"
    done(call("train", *options.split()))
    config: Config = trainer.calls.pop()["config"]
    create_run(Path("elsewhere"), "first").config.write_text(to_toml(config))
    return config


@pytest.mark.parametrize(
    "line", ["first --runs-dir elsewhere", "latest --runs-dir elsewhere", "elsewhere/first", "elsewhere/latest"]
)
def test_resume_takes_the_run_as_it_was(line: str, trainer: Trainer, stopped: Config, call: Call) -> None:
    """A run found by name, by directory or as the latest goes on where it is, with its own settings."""
    done(call("train", "--resume", *line.split()))
    as_it_was = replace(stopped, run=replace(stopped.run, dir="elsewhere"))
    assert trainer.calls == [{"config": as_it_was, "resume": line.split()[0]}]


@pytest.mark.parametrize(("strategy", "stages"), [("finetuned", ["length", "quality"]), ("included", ["included"])])
def test_a_run_of_another_default_keeps_its_strategy(
    strategy: str, stages: list[str], trainer: Trainer, call: Call
) -> None:
    """Whether it is resumed or repeated: its config.toml has its stages, with those of a run from before the default
    changed among them."""
    done(call("train", f"--strategy={strategy}"))
    config: Config = trainer.calls.pop()["config"]
    file = create_run(Path("runs"), "old").config
    file.write_text(to_toml(config))
    done(call("train", "--resume=old"))
    done(call("train", f"--config={file}", "--set=train.seed=7"))
    assert [list(one["config"].stages) for one in trainer.calls] == [stages, stages]
    assert trainer.calls[0]["config"].stages == trainer.calls[1]["config"].stages == config.stages
    out, err = done(call("train", f"--config={file}", "--dry-run"))
    assert list(tomli.loads(out)["stages"]) == stages
    assert "strategy " not in err


def test_resume_looks_where_runs_are_kept(stopped: Config, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    monkeypatch.setenv("SMOLSUM_RUNS_DIR", "elsewhere")
    done(call("train", "--resume", "first"))
    assert_refused(call("train", "--resume", "frist"), "'frist'", "elsewhere", "did you mean first?")


@pytest.mark.parametrize(
    "options",
    [
        *("--model tiny", "--strategy included", "--reward bleu", "--preset study", "--config own.toml"),
        *("--set grpo.beta=0", "--name second", "--seed 0", "--dry-run"),
    ],
)
def test_resume_changes_nothing(options: str, trainer: Trainer, call: Call) -> None:
    """Whatever would make a resumed run another run is refused, with the reason."""
    refused = call("train", "--resume", "my run", *options.split())
    assert_refused(refused, options.split()[0], "hint: smolsum train --resume 'my run'")
    assert trainer.calls == []


def test_dry_run_prints_what_would_run(trainer: Trainer, call: Call) -> None:
    """A dry run prints a configuration that repeats it, the source of its values, the steps, and the memory."""
    settings = ("stages.length.steps=120", "stages.quality.steps=30", f"data.path={make_data(Path('posts'))}")
    options = ["--model", "tiny", "--strategy", "finetuned", *(f"--set={setting}" for setting in settings)]
    out, err = done(call("train", *options, "--dry-run"))
    assert trainer.calls == []
    assert "# --set" in next(line for line in out.splitlines() if line.startswith("steps = 30"))
    said, *rest = err.splitlines()
    assert said == "strategy finetuned: flag --strategy"
    lines = [line.split() for line in rest]
    assert lines[:4] == [["stage", "steps"], ["length", "120"], ["quality", "30"], ["memory", "GB"]]
    end = next(n for n, words in enumerate(lines) if words[0] == "peak")
    parts, (_, peak), (*words, without), (*limit, size), (first, *_) = lines[4:end], *lines[end : end + 4]
    assert (words, limit[0], first) == (["peak", "without", "chunks"], "limit:", "memory:")
    assert 0 < float(peak) == pytest.approx(sum(float(size) for _, size in parts), abs=0.05)
    assert float(peak) == float(without) <= float(size)
    Path("again.toml").write_text(out)
    assert tomli.loads(out)["model"]["path"] == "builtin:tiny"
    done(call("train", *options))
    done(call("train", "--config", "again.toml"))
    assert trainer.calls[0] == trainer.calls[1]


def test_a_checkpoint_comes_without_the_preset_of_its_model(trainer: Trainer, call: Call) -> None:
    """Also where the run of the checkpoint began from a checkpoint."""
    for run, model in (("first", "builtin:tiny"), ("second", "first/checkpoints/step-000003")):
        (Path(run) / "checkpoints" / "step-000003").mkdir(parents=True)
        (Path(run) / "config.toml").write_text(f'[model]\npath = "{model}"\n')
    for run in ("first", "second"):
        checkpoint = f"./{run}/checkpoints/step-000003"
        _, err = done(call("train", "--model", checkpoint))
        assert f"{checkpoint} comes without the settings of preset tiny: --preset tiny takes" in " ".join(err.split())
        assert trainer.calls[-1]["config"].grpo.beta == 1e-4
        assert "comes without" not in done(call("train", "--model", checkpoint, "--preset", "tiny"))[1]
        assert trainer.calls[-1]["config"].grpo.beta == 0.08
        assert trainer.calls[-1]["config"].model.path == checkpoint
    assert "comes without" not in done(call("train", "--model", "tiny"))[1]
    (Path("first") / "config.toml").write_text('[model]\npath = "second/checkpoints/step-000003"\n')  # was replaced
    assert "comes without" not in done(call("train", "--model", "second/checkpoints/step-000003"))[1]


def test_stages_of_a_file_that_a_flag_replaces_are_named(trainer: Trainer, call: Call) -> None:
    Path("own.toml").write_text("[grpo]\nbeta = 0.5\n\n[stages.included]\nsteps = 7\nrewards = {length = 1}\n")
    Path("bare.toml").write_text("[grpo]\nbeta = 0.5\n")
    for flag in ("--strategy=included", "--reward=rouge"):
        name = flag.split("=")[0]
        _, err = done(call("train", "--config=own.toml", flag))
        assert f"warning: {name} replaces the stages of own.toml (included): leave out {name}" in " ".join(err.split())
        assert "replaces" not in done(call("train", "--config=bare.toml", flag))[1]
    assert "replaces" not in done(call("train", "--config=own.toml"))[1]
    steps = [one["config"].stages["included"].steps for one in trainer.calls if "included" in one["config"].stages]
    assert steps[-1] == 7
    assert steps[0] != 7


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        # settings that do not go together
        ("--task=ab-judge --set=grpo.advantage_scale=batch", ["warning: task.accuracy_power = 4", "= batch"]),
        # the memory of a model that is not here is not known yet, and nothing is downloaded
        ("--model a/not-here --set data.path=builtin:tldr-mini", ["memory: known once a/not-here is on this machine"]),
        # nine prompts twice, four a step, the last step filled up
        ("--set data.path=data --set stages.constrained.epochs=2", ["\nconstrained  5 (epochs = 2)\n"]),
        # the strategy where none is named, and why
        ("--set data.path=data --reward=rouge", ["strategy constrained: the default of task tldr", "finetuned"]),
        ("--set data.path=data --reward=length", ["strategy finetuned: --reward length leaves constrained,"]),
    ],
)
def test_dry_run_says_what_to_expect(flags: str, named: list[str], call: Call) -> None:
    for split in ("train", "validation", "test"):
        lines(Path(f"data/{split}.jsonl"), [{"prompt": f"post {i}", "completion": f"sum {i}"} for i in range(9)])
    done(call("train", "--dry-run", *flags.split()), *named)
    assert done(call("train", "--task=ab-judge", "--dry-run", "--quiet"))[1] == ""


def test_dry_run_without_a_network() -> None:
    """The settings of a model and of data on the hub can be read before they are there, as those of a grid can."""
    asked = python("-m", "smolsum", "train", "--model=lfm", "--dry-run", HF_ENDPOINT="http://127.0.0.1:9")
    out, _ = done(asked, "'mlabonne/smoltldr'", "--set data.path=DIR")
    assert tomli.loads(out)["data"]["path"] == "mlabonne/smoltldr"


def test_dry_run_refuses_a_budget_that_is_too_small(call: Call) -> None:
    """One error, with the budget that would do: it is accepted, and the memory listed with and without chunks."""
    command = ["train", "--dry-run", f"--set=data.path={make_data(Path('posts'))}"]
    refused = call(*command, "--set", "engine.memory_budget_gb=0.001")
    assert_refused(refused, "engine.memory_budget_gb=", error=errors.MachineError)
    remedy = refused[2].split("hint: ")[1].split(";")[0].split()
    done(call(*command, *remedy), "peak without chunks", "limit: engine.memory_budget_gb", "memory: ")


def raises(failure: BaseException) -> Callable[[], object]:
    """What a training does that fails so."""

    def fail() -> None:
        raise failure

    return fail


WRONG = "error: it went wrong\n\nhint: restore it\n"
FORESEEN = {
    errors.SmolsumError: 1, errors.UsageError: 2, errors.UnreachableError: 3, errors.MachineError: 4,
    errors.InterruptedRun: 130,
}  # fmt: skip


@pytest.mark.parametrize(
    ("failure", "code", "said"),
    [
        *((error("it went wrong", hint="restore it"), code, WRONG) for error, code in FORESEEN.items()),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (ValueError("bad shape"), 1, "error: unexpected ValueError: bad shape\n\n"
         "hint: smolsum train --set 'task.system_prompt=be brief' --debug\n"),
    ],
    ids=repr,
)  # fmt: skip
def test_exit_codes(failure: BaseException, code: int, said: str, trainer: Trainer, call: Call) -> None:
    """Each kind of failure has its exit code, and is one line and a hint; for one that nobody foresaw it is the command
    that shows more."""
    trainer.action = raises(failure)
    expected = (code, "", f"starting\ntraining\n{said}")
    assert call("train", "--set", "task.system_prompt=be brief") == expected


@pytest.mark.parametrize("failure", [ValueError("bad shape"), errors.SmolsumError("bad shape")])
def test_debug_shows_the_traceback(failure: Exception, trainer: Trainer, call: Call) -> None:
    """With --debug the place of any failure is shown, above the error."""
    trainer.action = raises(failure)
    code, _, err = call("train", "--debug")
    assert (code, err.splitlines()[-1][:7]) == (1, "error: ")
    assert "Traceback (most recent call last)" in err
    assert ", in fail\n" in err


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("trian", "'trian'. Did you mean 'train', 'track'?\n\nhint: smolsum --help"),
        ("train --modle tiny", "--model, --name)\n\nhint: smolsum train --help"),
        ("report a --format=pdf", "'--format': 'pdf' is not one of 'html'"),
        ("train --seed one", "'--seed'"),
        ("train --model", "'--model' requires an argument"),
        ("train tiny", "got unexpected extra argument"),
        ("train --model tinny", "flag --model: unknown model 'tinny'\n\nhint: did you mean tiny?"),
        ("train --set grpo.betta=1", "--set: unknown key 'grpo.betta'"),
        ("train --config no.toml", "no.toml"),
        ("train --seed 1 --seed=2", "--seed takes one value"),
        ("train --resume=", "--resume is empty\n\nhint: smolsum runs"),
        ("train --worker=", "--worker is empty\n\nhint: --worker http://HOST:PORT"),
        ("train --worker http://a:1 --worker http://a:1/", "hint: --worker http://HOST:PORT"),
        ("train --seed -1", "train.seed"),
    ],
)
def test_bad_command_lines(line: str, named: str, trainer: Trainer, call: Call) -> None:
    """A command line that cannot be meant exits with 2, says what is wrong and what to do."""
    refused = call(*line.split())
    assert_refused(refused, named)
    assert refused[2].startswith("error: ")
    assert trainer.calls == []


@pytest.mark.parametrize("line", ["--help", "-h", "train --help", "train -h", "stats --help"])
def test_help_goes_to_stdout(line: str, call: Call) -> None:
    """Help that was asked for is a result, fits 80 columns and explains the exit codes."""
    code, out, err = call(*line.split())
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert all(f"\n    {code} " in out for code in (0, 1, 2, 3, 4, 130))


def test_no_command_prints_help(call: Call) -> None:
    code, out, err = call()
    assert (code, out) == (2, "")
    assert err.startswith("Usage: smolsum [OPTIONS] COMMAND")


def test_help_names_what_is_shipped(call: Call) -> None:
    """Help names every model, strategy and signal, and the defaults that are really taken."""
    text = " ".join(call("train", "--help")[1].split())
    model, rest = text.split("--strategy STRATEGY")
    strategy, rest = rest.split("--reward SIGNALS")
    reward, rest = rest.split("--preset NAME")
    preset, _ = rest.split("--config FILE")
    assert all(name in model for name in preset_names("models"))
    assert all(f"{name}:" in strategy for name in preset_names("strategies"))
    assert all(name in reward for name in REWARDS)
    assert all(name in preset for name in preset_names("profiles") if name != "default")
    taken = TASKS[DEFAULT_TASK].presets
    for flag, default in ((model, taken.model), (strategy, taken.strategy), (reward, taken.reward)):
        assert f"[default: the task's, {default}]" in flag


def test_version(call: Call) -> None:
    assert call("--version") == (0, f"smolsum {version('smolsum')}\n", "")


def test_bars_of_the_hub_need_a_terminal(trainer: Trainer, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    """Other libraries' bars stay out of log files, and of plain and quiet commands, unless the user asked for them."""
    monkeypatch.setattr(console, "live", lambda: True)
    done(call("train"))
    assert not any(name in os.environ for name in HUB_BARS)
    done(call("train", "--quiet"))
    assert [os.environ[name] for name in HUB_BARS] == ["1", "1"]
    monkeypatch.setattr(console, "live", lambda: False)
    monkeypatch.setenv(HUB_BARS[0], "0")
    monkeypatch.delenv(HUB_BARS[1])
    done(call("train"))
    assert [os.environ[name] for name in HUB_BARS] == ["0", "1"]


def test_plain_is_passed_on(trainer: Trainer, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    seen: list[bool] = []
    trainer.action = lambda: seen.append(console.live())
    done(call("train", "--plain", "--quiet"))
    assert seen == [False]


def test_module_runs_like_the_command() -> None:
    assert_refused(python("-m", "smolsum", "trian"), "error: no such command 'trian'")


EARLY = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "smolsum.cli.train":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
signal.signal(signal.SIGINT, signal.{handler})
from smolsum.__main__ import start
sys.argv = ["smolsum", "--version"]
sys.exit(start())
"""


@pytest.mark.parametrize(("handler", "code"), [("default_int_handler", -signal.SIGINT), ("SIG_IGN", 0)])
def test_ctrl_c_during_the_imports(handler: str, code: int) -> None:
    """The process ends by the signal, without a word; a job that a shell started in the background ignores it."""
    assert python("-c", EARLY.format(handler=handler))[::2] == (code, "")
