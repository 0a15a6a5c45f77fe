"""Every command that a report prints is accepted by the program, whatever flags its runs were started with."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from support.reports import commands as printed
from support.reports import edit, report_of
from support.studies import evaluation, judged, run

from smolsum.cli.main import app
from smolsum.cli.options import _refuse_repeated
from smolsum.results.evaluate.tables import with_judge
from smolsum.results.report.collect import gather

KNOWN = typer.main.get_command(app).commands  # type: ignore[attr-defined]
ROWS = judged({name: [0.5, 0.6, 0.9] for name in ("composite", "coverage")}, ["a", "b", "c"])
QUALITY = {"length": ["length"], "quality": ["meteor"]}
LFM = "LiquidAI/LFM2.5-350M"
MODEL = {"path": LFM, "dtype": "bfloat16", "weights": "w1"}
BOTH = {"composite": 0.7, "coverage": 0.7}
VALUES = {"--set": "data.path=posts", "--seed": "7", "--preset": "study", "--runs-dir": "elsewhere/runs"}


def typed(*, joined: bool) -> list[str]:
    """A command line with every flag of `smolsum train`, its value behind a space or a `=`."""
    words = ["smolsum", "train"]
    for flag in KNOWN["train"].params:
        name, value = flag.opts[0], VALUES.get(flag.opts[0], "3")
        words += [name] if flag.is_flag else [f"{name}={value}"] if joined else [name, value]
    return words


def commands(runs: Path) -> set[str]:
    return printed(report_of(*sorted(runs.iterdir())))


@pytest.fixture(params=[False, True], ids=["space", "equals"])
def found(tmp_path: Path, request: pytest.FixtureRequest) -> set[str]:
    for name, stages in (("one", QUALITY), ("two", {"included": ["length"]})):
        run(tmp_path / "runs", name, LFM, stages, ROWS, BOTH)
        edit(tmp_path / "runs" / name / "run.json", argv=typed(joined=request.param))
    return commands(tmp_path / "runs")


def test_every_command_parses_and_keeps_what_was_typed_and_applies(found: set[str]) -> None:
    """All look for the runs where they are; the seed of training is not that of sampling."""
    assert {shlex.split(one)[1] for one in found} == {"train", "baseline", "eval"}
    for command in found:
        check(command)
        assert "--runs-dir elsewhere/runs" in command or re.search(r"eval \S*/runs/\w+", command)
        assert ("--preset study" in command) == (" eval " not in command)
        assert ("--seed 7" in command) == (" train " in command)


def check(command: str) -> None:
    """The program takes the command, and each flag of one value once."""
    program, name, *rest = shlex.split(command)
    assert program == "smolsum"
    try:
        with KNOWN[name].make_context(name, rest) as context:
            _refuse_repeated(context, rest)
    except typer.TyperException as error:
        pytest.fail(f"{command}: {error.format_message()}")


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("", ""),
        ("--judge none", ""),
        ("--judge=other --rounds 3", "--rounds 3"),
        ("--name 'my model' --judge other", "--name 'my model'"),
    ],
)
def test_an_evaluation_is_judged_by_its_own_command(typed: str, kept: str, tmp_path: Path) -> None:
    """Whatever judge the command had, it has the report's in its place; without one in the report its rounds stay."""
    metrics, command = {"tokens": 60.0}, f"smolsum eval lfm {typed}".strip()
    rows = [{**row, "judge": None} for row in judged({"tokens": [60.0]}, ["a"])]
    evaluation(tmp_path / "runs" / "alone", rows, metrics, model=MODEL, command=command, judge=None, judging=None)
    (one,) = {found for found in commands(tmp_path / "runs") if found.startswith("smolsum eval")}
    check(one)
    assert one == " ".join(["smolsum eval lfm", *filter(None, [kept]), "--judge MODEL"])


def test_the_rounds_of_a_judge_replace_those_of_a_command() -> None:
    """As its scores were made; the usual number needs no flag."""
    command = "smolsum eval lfm --judge none --rounds=3 --yes"
    assert with_judge(command, "judge a", 2) == "smolsum eval lfm --yes --judge 'judge a' --rounds 2"
    assert with_judge(command, "a", 5) == "smolsum eval lfm --yes --judge a"


def test_a_damaged_command_leaves_its_evaluation_out(tmp_path: Path) -> None:
    for name, command in (("good", "smolsum eval lfm"), ("bad", "smolsum eval 'lfm")):
        evaluation(tmp_path / name, judged({"tokens": [60.0]}, ["a"]), {"tokens": 60.0}, model=MODEL, command=command)
    found = gather([str(tmp_path / name) for name in ("good", "bad")], tmp_path)
    assert [one.folder.name for one in found.baselines] == ["good"]
    (left_out,) = found.left_out
    assert "bad/summary.json" in left_out.reason
    assert "command" in left_out.reason


def test_paths_are_quoted(tmp_path: Path) -> None:
    """A command with a blank in the path of its run is one that a shell takes."""
    root = run(tmp_path / "my runs", "my run", LFM, QUALITY, ROWS, {"tokens": 60.0})
    found = commands(root.parent)
    assert any(str(root) in shlex.split(one) for one in found)
    for command in found:
        check(command)


def train_commands(runs: Path) -> list[str]:
    return sorted(one for one in commands(runs) if one.startswith("smolsum train"))


def set_up(runs: Path, name: str, signals: dict[str, list[str]], *flags: str, folder: str = "runs") -> None:
    """A run that these flags started, in the folder that an environment variable named."""
    root = run(runs, name, LFM, signals, ROWS, BOTH)
    edit(root / "run.json", argv=["smolsum", "train", *flags])
    config = root / "config.toml"
    config.write_text(config.read_text().replace('dir = "runs"', f'dir = "{folder}"'))


def test_commands_have_the_flags_of_their_strategy(tmp_path: Path) -> None:
    """The fine-tuned rows repeat the fine-tuned run, though the run of the other strategy is first."""
    set_up(tmp_path, "a", {"included": ["length", "rouge"]}, "--seed", "3", "--set", "lora.rank=4")
    set_up(tmp_path, "b", QUALITY, "--seed", "7", "--set", "stages.quality.steps=8")
    found = train_commands(tmp_path)
    for command in found:
        tuned = "--strategy finetuned" in command
        assert ("--seed 7" in command) == tuned
        assert ("--set lora.rank=4" in command) == ("--seed 3" in command) == (not tuned)
    assert len({" ".join(shlex.split(one)[4:6]) for one in found}) == 2


def test_a_strategy_without_a_run_has_what_all_runs_share(tmp_path: Path) -> None:
    """Runs that agree in their data may have typed it in their settings or in a file."""
    set_up(tmp_path, "a", QUALITY, "--seed", "7", "--set", "train.lr=1", "--set", "data.path=posts")
    set_up(tmp_path, "b", QUALITY, "--seed", "3", "--set=train.lr=1", "--config", "my.toml")
    joint = [one for one in train_commands(tmp_path) if "--strategy included" in one]
    assert joint
    for command in joint:
        assert " --set train.lr=1 --set data.path=posts" in command


def test_commands_look_for_runs_where_the_environment_put_them(tmp_path: Path) -> None:
    set_up(tmp_path, "a", QUALITY, folder="else where")
    set_up(tmp_path, "b", {"included": ["length", "rouge"]}, "--runs-dir", "else where", folder="else where")
    found = commands(tmp_path)
    assert {shlex.split(one)[1] for one in found} >= {"train", "baseline"}
    for command in found:
        names_a_run = shlex.split(command)[2].startswith(str(tmp_path))
        assert command.count("--runs-dir 'else where'") == (not names_a_run)


def test_commands_name_the_plugins_of_their_runs(tmp_path: Path) -> None:
    """Each command for such a run, or for its model as the run asks it, is refused without them."""
    rows = [{**row, "judge": None} for row in ROWS]
    for name in ("one", "two"):
        root = run(tmp_path, name, LFM, QUALITY, rows, {"coverage": 0.7})
        (root / "plugins").mkdir()
        config = root / "config.toml"
        config.write_text(config.read_text().replace('dir = "runs"', 'dir = "runs"\nplugins = "my brevity.py"'))
        edit(root / "run.json", argv=["smolsum", "train", "--plugin", "my brevity.py"])
    found = commands(tmp_path)
    assert {shlex.split(one)[1] for one in found} >= {"train", "eval"}
    assert any(shlex.split(one)[2].startswith("--") for one in found if one.startswith("smolsum eval"))
    for command in found:
        check(command)
        assert command.count("--plugin 'my brevity.py'") == 1


def test_a_short_study_is_completed_by_short_runs(tmp_path: Path) -> None:
    """Whoever halves the steps of a strategy gets half of the usual steps in the commands for the others."""
    for name, steps in (("usual", 110), ("half", 55)):
        run(tmp_path / name, "a", "builtin:tiny", QUALITY, ROWS, {"composite": 0.7}, steps=steps)
    whole, half = (
        {shlex.join(shlex.split(one)[4:]) for one in train_commands(tmp_path / name) if "--strategy included" in one}
        for name in ("usual", "half")
    )
    assert whole
    assert not whole & half
    assert {one.removesuffix(" --set stages.included.steps=75") for one in half} == whole
