"""Many runs as one command: the plan, what is done and shared, what is left after a failure, Ctrl-C and kill -9."""

from __future__ import annotations

import json
import platform
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.calls import Call, done
from support.refusals import assert_refused
from support.training import PATIENCE_S, arguments, events, learned, make_data, weights

from smolsum.cli import main
from smolsum.cli.grid_train import LOCK
from smolsum.config.sections import Config
from smolsum.files import locked, read_jsonl
from smolsum.runs.control import make_request
from smolsum.runs.grid_record import GRID, GridWriter
from smolsum.runs.paths import RunPaths, acquire
from smolsum.runs.record_io import read
from smolsum.runs.records import GridRecord
from smolsum.tasks import TASKS
from smolsum.tasks.data import Split

RUNS = ("tiny-length", "tiny-finetuned-rouge", "tiny-finetuned-bleu", "tiny-included-rouge", "tiny-included-bleu")


SMALL = {"stages__length__steps": 2, "stages__quality__steps": 2, "train__validate_every": 0}


SIGNALLED = """
import os, sys
from smolsum.cli.main import main
from smolsum.runs.run_writer import RunWriter
write = RunWriter.metrics
def written(writer, row):
    write(writer, row)
    if row["stage"] == "quality":
        {}
RunWriter.metrics = written
sys.exit(main(sys.argv[1:]))
"""


def grid(data: Path, runs: Path, *more: str) -> list[str]:
    """The arguments of a grid of five runs of a few steps."""
    single = arguments(data, runs, "", stages__included__steps=2, **SMALL)
    place = single.index("--name")
    several = ["--strategy=all", "--reward=rouge", "--reward=bleu"]
    return [*single[:place], *single[place + 2 :], *several, "--quiet", *more]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set."""
    return make_data(tmp_path_factory.mktemp("data") / "posts", test=2)


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a grid that nothing interrupted."""
    runs = tmp_path_factory.mktemp("grid")
    assert main.main(grid(data, runs)) == 0
    return runs


def test_all_of_all_plans_the_study(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of all: 24 configurations and two parents, each before those that begin with it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    sets = [f"--set=stages.{name}.steps=10" for name in ("length", "quality", "included")]
    code, out, _ = call("train", "--model=all", "--strategy=all", "--reward=all", "--dry-run", *sets)
    rows = [re.split("  +", line) for line in out.splitlines()[1:]]
    assert code == 0
    assert len(rows) == len({row[0] for row in rows}) == 26
    assert [row[0] for row in rows[::13]] == ["Qwen2.5-0.5B-Instruct-length", "LFM2.5-350M-length"]
    assert sum(row[3] == "finetuned" and "(shared)" in row[2] for row in rows) == 12
    assert [row[4] for row in rows[1:7]] == ["rouge", "meteor", "bleu", "meteor-bleu", "meteor-rouge", "bleu-rouge"]
    assert {row[5] for row in rows} == {"Qwen/Qwen2.5-0.5B-Instruct", "LiquidAI/LFM2.5-350M"}
    assert not Path("runs").exists()


def test_all_models_of_the_judge(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The four sizes that kalomaze compares, as one command."""
    monkeypatch.delenv("COLUMNS", raising=False)
    out, _ = done(call("train", "--task=ab-judge", "--model=all", "--dry-run", f"--runs-dir={tmp_path / 'runs'}"))
    models = [line.split()[-1] for line in out.splitlines()[1:]]
    assert models == [f"Qwen/Qwen2.5-{size}-Instruct" for size in ("1.5B", "3B", "7B", "14B")]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--name", "mine"], "--name is for one run"),
        (["--watch"], "--watch needs a terminal that can be redrawn"),
        (["--set=stages.polish.steps=3"], "no run here has a stage 'polish'"),
        (["--reward=roug"], "unknown signal 'roug'"),
        (["--model=tny"], "unknown model 'tny'"),
    ],
)
def test_impossible_plans_are_usage_errors(flags: list[str], says: str, call: Call, tmp_path: Path) -> None:
    """One error before anything is made."""
    assert_refused(call("train", "--strategy=all", "--reward=rouge", f"--runs-dir={tmp_path / 'runs'}", *flags), says)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("rewards", [["--reward=length", "--reward=rouge"], ["--reward=rouge", "--reward=length"]])
def test_length_alone_is_planned_once(rewards: list[str], call: Call, data: Path, tmp_path: Path) -> None:
    """With every strategy length alone is one run, not another one of the joint strategy."""
    place = [f"--set=data.path={data}", f"--runs-dir={tmp_path / 'runs'}"]
    out, _ = done(call("train", "--strategy=all", *rewards, "--dry-run", *place))
    assert [line.split()[0] for line in out.splitlines()[1:]] == [
        "tiny-length",
        "tiny-finetuned-rouge",
        "tiny-included-rouge",
    ]


@pytest.fixture(scope="module")
def posts(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same data without references."""
    posts = tmp_path_factory.mktemp("posts")
    for file in data.iterdir():
        pl.read_parquet(file).select("prompt").write_parquet(posts / file.name)
    return posts


def test_a_plan_is_checked_as_its_runs_are(call: Call, data: Path, posts: Path, tmp_path: Path) -> None:
    """A line for each distinct problem, with the runs that have it, and the exit code of a single run; a run without
    the problem is not named."""
    place = ["--dry-run", f"--runs-dir={tmp_path / 'runs'}", f"--set=data.path={posts}"]
    assert_refused(
        call("train", "--reward=length", "--reward=rouge", "--reward=bleu-rouge", *place),
        "2 of 3 runs to train cannot be trained",
    )
    lines = err.splitlines()[1:3]
    assert ["tiny-finetuned-rouge: stage quality uses rouge," in lines[0], "bleu" in lines[1]] == [True, True]
    assert "or --reward length, which needs none" in err

    place[-1:] = [f"--set=data.path={data}", "--set=engine.memory_budget_gb=0.01"]
    single = call("train", "--reward=rouge", *place)
    code, out, err = call("train", "--reward=rouge", "--reward=bleu", *place)
    assert (single[0], code, out, err.count("cannot be trained"), err.count("tiny-")) == (4, 4, "", 1, 3)
    assert err.splitlines()[0].endswith("3 of 3 runs to train cannot be trained")
    assert "without --dry-run" not in err


def test_data_are_loaded_once_for_a_plan(
    call: Call, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the number of runs: the checks of references and of memory, and the steps, share the splits."""
    prompts, loaded = TASKS["tldr"].prompts, list[str]()

    def load(config: Config, split: str) -> Split:
        loaded.append(split)
        return prompts.load(config, split)

    counted = {"tldr": replace(TASKS["tldr"], prompts=replace(prompts, preview=load))}
    monkeypatch.setattr("smolsum.cli.grid.TASKS", counted)
    monkeypatch.setattr("smolsum.training.setup.TASKS", counted)
    place = [f"--set=data.path={data}", f"--runs-dir={tmp_path / 'runs'}", "--set=stages.quality.epochs=2"]
    code, out, _ = call("train", "--strategy=all", "--reward=rouge", "--reward=bleu", "--dry-run", *place)
    assert (code, len(out.splitlines()), sorted(loaded)) == (0, 1 + 5, ["test", "train", "validation"])


def test_runs_without_a_problem_are_trained(call: Call, posts: Path, tmp_path: Path) -> None:
    """The hint of a plan with problems is true: each line has its remedy, and the command trains the others."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")
    sets = ["stages.length.steps=1", "train.prompts_per_step=1", "train.validate_every=0", "task.target_tokens=7"]
    sets.append("sampling.max_new_tokens=8")
    command = ["--model=tiny", f"--model={tmp_path / 'broken'}", "--reward=length", "--reward=rouge", "--plain"]
    command += [f"--set={one}" for one in (*sets, f"data.path={posts}")] + [f"--runs-dir={tmp_path / 'runs'}"]
    code, _, err = call("train", *command, "--dry-run")
    lines = list(filter(None, err.splitlines()))
    assert (code, len(lines)) == (2, 4), err
    assert lines[0] == "error: 3 of 4 runs to train cannot be trained"
    assert "tiny-finetuned-rouge, broken-finetuned-rouge: stage quality uses rouge" in lines[1]
    assert lines[1].endswith("or --reward length, which needs none)")
    assert "broken-length: " in lines[2]
    assert lines[3] == "hint: each line ends with its remedy; without --dry-run the other runs are trained"
    code, out, err = call("train", *command, "--quiet")
    assert (code, out.splitlines()) == (1, [str(tmp_path / "runs" / "tiny-length")])
    assert "error: 3 of 4 runs failed: " in err


def test_a_run_without_settings_is_not_resumed(call: Call, tmp_path: Path) -> None:
    """The remedy is about the run, not about --config, which was not given."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "run.lock").touch()
    assert_refused(call("train", f"--resume={tmp_path / 'mine'}", "--quiet"))
    assert "has no config.toml, so its settings are not known" in err
    assert "--config" not in err


def test_all_needs_a_list(call: Call, tmp_path: Path) -> None:
    """A task that names no rewards for `all` says so."""
    assert_refused(
        call("train", "--task=doc-qa", "--reward=all", "--dry-run", f"--runs-dir={tmp_path / 'runs'}"),
        "the task doc-qa has no list that 'all' stands for",
    )


def test_each_parent_is_trained_once(whole: Path, data: Path, tmp_path: Path) -> None:
    """The fine-tuned runs take the length stage, and all runs the first completions, from those before; they learn what
    a run alone learns."""
    assert [(whole / name).is_dir() for name in RUNS] == [True] * 5
    for name in RUNS[1:3]:
        assert "stage_reused" in events(whole / name)
        assert [row["stage"] for row in learned(whole / name)] == ["quality"] * 2
    starts = [read_jsonl(whole / name / "eval" / "start-test" / "generations.jsonl") for name in RUNS]
    assert all(rows == starts[0] for rows in starts)
    assert main.main([*arguments(data, tmp_path, "alone", **SMALL), "--reward=bleu", "--quiet"]) == 0
    assert weights(tmp_path / "alone", 4) == weights(whole / "tiny-finetuned-bleu", 4)
    for label in ("start", "length", "quality"):
        shown = [
            json.loads((root / "eval" / f"{label}-test" / "summary.json").read_text())["metrics"]
            for root in (tmp_path / "alone", whole / "tiny-finetuned-bleu")
        ]
        assert shown[0] == shown[1]


def test_what_is_done_is_not_trained_again(whole: Path, data: Path, call: Call) -> None:
    """The same command prints the same directories; a run is known by its settings, other ones get a name of their
    own."""
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file() and path.name != LOCK}
    code, out, _ = call(*grid(data, whole))
    assert (code, out.splitlines()) == (0, [str(whole / name) for name in RUNS])
    assert before == {path: path.stat().st_mtime_ns for path in before}
    code, out, _ = call(*grid(data, whole, "--watch"))  # there is nothing to watch
    assert (code, out.splitlines()) == (0, [str(whole / name) for name in RUNS])
    _, out, err = call(*grid(data, whole, "--seed=7", "--dry-run"))
    assert [line.split()[0] for line in out.splitlines()[1:]] == [f"{name}-2" for name in RUNS]
    assert "5 to train" in err
    _, out, err = call(*grid(data, whole, "--set=engine.memory_budget_gb=4", "--dry-run"))
    assert "5 done" in err


def test_one_failure_does_not_stop_the_others(whole: Path, data: Path, tmp_path: Path, call: Call) -> None:
    """A run that cannot be trained is named in the end, with exit code 1; all others are there."""
    command, names = [text for text in grid(data, tmp_path) if text != "--reward=bleu"], (RUNS[0], "held", RUNS[3])
    for run, name in zip(RUNS[:2], names[:2], strict=True):  # the third is trained after the one that fails
        shutil.copytree(whole / run, tmp_path / name, symlinks=True)
    held = RunPaths(tmp_path / "held")
    held.status.write_text('{"state": "interrupted", "step": 1}')
    with acquire(held):
        code, out, err = call(*command)
    assert code == 1
    assert out.splitlines() == [str(tmp_path / name) for name in (names[0], names[2])]
    assert "warning: held failed: run 'held' is being trained by process" in err
    assert "error: 1 of 3 runs failed: held" in err
    code, out, _ = call(*command)
    assert (code, out.splitlines()) == (0, [str(tmp_path / name) for name in names])


def test_views_learn_how_far_a_grid_is(whole: Path) -> None:
    """The record beside the runs names them in order, with the steps that were trained for each, and is over."""
    record = read(whole / GRID, GridRecord)
    assert (record.state, record.host) == ("ended", platform.node())
    assert [(run.name, run.state, run.steps) for run in record.runs] == [(name, "done", 2) for name in RUNS]
    assert all(run.began < run.ended for run in record.runs)
    assert record.command.startswith("smolsum train --model=tiny")


@pytest.mark.parametrize(
    ("when", "asked", "states"),
    [
        ((0, "done"), 0, ["done", "to train", "to train"]),
        ((1, "loading"), 0, ["done", "training", "to train"]),
        ((1, "training"), 1, ["done", "training", "to train"]),
    ],
)
def test_a_stopped_grid_goes_on(
    when: tuple[int, str], asked: int, states: list[str], whole: Path, data: Path, tmp_path: Path, call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Asked of the run under way, or of the one before while the next is loaded: no run after it is trained, and the
    record says so. The same command ends as if nothing had been."""
    command, names = [text for text in grid(data, tmp_path) if text != "--reward=bleu"], (RUNS[0], RUNS[1], RUNS[3])
    mark = GridWriter.mark

    def marked(record: GridWriter, number: int, state: Any, **more: str) -> None:
        mark(record, number, state, **more)
        if (number, state) == when:
            make_request(RunPaths(tmp_path / names[asked]), "stop")

    with monkeypatch.context() as patched:
        patched.setattr(GridWriter, "mark", marked)
        code, out, err = call(*command)
    assert (code, out.splitlines()) == (130, [str(tmp_path / names[0])]), err
    assert "hint: smolsum train --model=tiny" in err
    record = read(tmp_path / GRID, GridRecord)
    assert (record.state, [run.state for run in record.runs]) == ("ended", states)
    assert (tmp_path / names[1]).exists() is (states[1] != "to train")
    assert not (tmp_path / names[2]).exists()
    code, out, err = call(*command)
    assert (code, out.splitlines()) == (0, [str(tmp_path / name) for name in names]), err
    _same(tmp_path, whole)


def test_a_second_grid_in_a_directory_is_refused(data: Path, tmp_path: Path, call: Call) -> None:
    """The second is refused in one line; the first has the directory to itself."""
    with locked(tmp_path / LOCK, "", ""):
        code, out, err = call(*grid(data, tmp_path))
    assert (code, out, err.count("error:")) == (2, "", 1)
    assert f"error: a grid is being trained in {tmp_path} by process" in err
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def _same(runs: Path, whole: Path) -> None:
    """Asserts that the runs of a grid without bleu learned what those of the whole one learned."""
    for name, step in ((RUNS[0], 2), (RUNS[1], 4), (RUNS[3], 2)):
        assert learned(runs / name) == learned(whole / name)
        assert weights(runs / name, step) == weights(whole / name, step)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_same_command_goes_on_after_a_stop(
    number: signal.Signals, whole: Path, data: Path, tmp_path: Path, call: Call
) -> None:
    """Stopped in its second run, by Ctrl-C or kill -9, the grid ends as if nothing had been."""
    command = [text for text in grid(data, tmp_path) if text != "--reward=bleu"]
    names = [name for name in RUNS if not name.endswith("bleu")]
    line = f"os.kill(os.getpid(), {number.value})"
    stopped = subprocess.run(
        [sys.executable, "-c", SIGNALLED.format(line), *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert stopped.returncode == (130 if number == signal.SIGINT else -9), stopped.stderr
    assert stopped.stdout.splitlines() == [str(tmp_path / names[0])]
    if number == signal.SIGINT:
        assert "hint: smolsum train --model=tiny" in stopped.stderr
    code, out, err = call(*command)
    assert (code, out.splitlines()) == (0, [str(tmp_path / name) for name in names]), err
    _same(tmp_path, whole)


def test_a_run_killed_as_it_was_made_is_taken_over(data: Path, whole: Path, call: Call) -> None:
    """A directory without settings is taken over, one of another kind is not."""
    (whole / "tiny-finetuned-meteor").mkdir()
    (whole / "tiny-finetuned-meteor" / "run.lock").touch()
    (whole / "tiny-included-meteor").mkdir()
    _, out, _ = call(*grid(data, whole, "--reward=meteor", "--dry-run"))
    states = {line.split()[0]: re.split("  +", line)[1] for line in out.splitlines()[1:]}
    assert states["tiny-finetuned-meteor"] == "goes on"
    assert states["tiny-included-meteor-2"] == "to train"
    (whole / "tiny-finetuned-meteor" / "run.lock").unlink()
    for name in ("tiny-finetuned-meteor", "tiny-included-meteor"):
        (whole / name).rmdir()


def test_eval_selects_runs_by_the_flags_of_train(whole: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """`eval` takes the grid's runs by the same flags, and says what is not there."""
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    select = ["--model=tiny", "--strategy=all", "--reward=bleu", "--reward=meteor", "--reward=rouge"]
    code, out, err = call("eval", *select, f"--runs-dir={whole}", "--quiet")
    folders = ["length", "quality", "quality", "included", "included"]
    expected = {str(whole / name / "eval" / f"{folder}-test") for name, folder in zip(RUNS, folders, strict=True)}
    assert (code, set(out.splitlines())) == (0, expected)
    assert "not trained yet: builtin:tiny finetuned meteor, builtin:tiny included meteor" in err
    code, out, err = call("eval", "--strategy=finetuned", f"--runs-dir={whole}", "--quiet")
    assert (code, len(out.splitlines())) == (0, 2)
    for flags, says in (
        (["--model=tiny-lfm", "--strategy=all"], "no finished run"),
        ([], "give either a run"),
        (["tiny", "--model=tiny"], "give either a run"),
        (["--model=tiny", "--name=mine"], "--name and --config are for one evaluation"),
    ):
        assert_refused(call("eval", *flags, f"--runs-dir={whole}", "--quiet"), says)


def test_dry_run_shows_the_step_of_a_stopped_run(data: Path, whole: Path, call: Call) -> None:
    """A run that was interrupted goes on at its step."""
    status = whole / "tiny-included-bleu" / "status.json"
    kept = status.read_text()
    status.write_text('{"state": "interrupted", "step": 1}')
    _, out, err = call(*grid(data, whole, "--dry-run"))
    status.write_text(kept)
    assert "  goes on at step 1  " in out.splitlines()[-1]
    assert "5 runs: 4 done, 1 to go on with" in err


def test_a_plan_does_not_load_mlx(data: Path, whole: Path) -> None:
    """A plan loads nothing that computes."""
    line = f"main({grid(data, whole, '--dry-run')!r})"
    code = f"import sys\nfrom smolsum.cli.main import main\n{line}\nsys.exit('mlx.core' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=PATIENCE_S).returncode == 0
