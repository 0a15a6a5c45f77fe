"""Many runs as one command: the plan, sweeps, what is done and shared, and what a failure, Ctrl-C or kill -9 leaves."""

import json
import os
import platform
import re
import shutil
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.calls import Call, done
from support.processes import python
from support.refusals import assert_refused
from support.training import after_step, arguments, events, learned, weights

from smolsum.cli import main
from smolsum.config.resolve import resolve, to_toml
from smolsum.config.sections import Config
from smolsum.errors import MachineError
from smolsum.files import locked, read_jsonl
from smolsum.grpo.grid import Selection, choose
from smolsum.grpo.grid_train import LOCK, GridWriter
from smolsum.runs.control import make_request
from smolsum.runs.paths import RunPaths, acquire, create_run
from smolsum.runs.records import GRID, GridRecord
from smolsum.runs.typed_json import read
from smolsum.tasks import TASKS
from smolsum.tasks.data import Split

SIZES = {"test": 2}
RUNS = ("tiny-length", "tiny-finetuned-rouge", "tiny-finetuned-bleu", "tiny-included-rouge", "tiny-included-bleu")
FEW = (RUNS[0], RUNS[1], RUNS[3])
"""those without bleu"""
SMALL = {"stages__length__steps": 2, "stages__quality__steps": 2, "train__validate_every": 0}
SIGNALLED = """
import os, sys
from smolsum.cli.main import main
from smolsum.runs.writer import RunWriter
write = RunWriter.metrics
def written(writer, row):
    write(writer, row)
    if row["stage"] == "quality":
        {}
RunWriter.metrics = written
sys.exit(main(sys.argv[1:]))
"""


def unnamed(data: Path, runs: Path, **changes: Any) -> list[str]:
    """The arguments of small runs that the command names itself."""
    single = arguments(data, runs, "", **(SMALL | changes))
    place = single.index("--name")
    return [*single[:place], *single[place + 2 :], "--quiet"]


def grid(data: Path, runs: Path, *more: str, rewards: tuple[str, ...] = ("rouge", "bleu")) -> list[str]:
    """The arguments of a grid of five runs of a few steps."""
    several = ["--strategy=all", *(f"--reward={name}" for name in rewards)]
    return [*unnamed(data, runs, stages__included__steps=2), *several, *more]


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a grid that nothing interrupted."""
    runs = tmp_path_factory.mktemp("grid")
    assert main.main(grid(data, runs)) == 0
    return runs


def planned(out: str) -> list[str]:
    return [line.split()[0] for line in out.splitlines()[1:]]


def test_all_of_all_plans_the_study(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of all: 24 configurations and two parents, each before those that begin with it."""
    monkeypatch.setenv("COLUMNS", "200")
    sets = [f"--set=stages.{name}.steps=10" for name in ("length", "quality", "included")]
    out, _ = done(call("train", "--model=all", "--strategy=all", "--reward=all", "--dry-run", *sets))
    rows = [re.split("  +", line) for line in out.splitlines()[1:]]
    assert len(rows) == len({row[0] for row in rows}) == 26
    assert [row[0] for row in rows[::13]] == ["Qwen2.5-0.5B-Instruct-length", "LFM2.5-350M-length"]
    assert sum(row[3] == "finetuned" and "(shared)" in row[2] for row in rows) == 12
    assert [row[4] for row in rows[1:7]] == ["rouge", "meteor", "bleu", "meteor-bleu", "meteor-rouge", "bleu-rouge"]
    assert {row[5] for row in rows} == {"Qwen/Qwen2.5-0.5B-Instruct", "LiquidAI/LFM2.5-350M"}
    # the four sizes that kalomaze compares
    monkeypatch.delenv("COLUMNS")
    out, _ = done(call("train", "--task=ab-judge", "--model=all", "--dry-run"))
    models = [line.split()[-1] for line in out.splitlines()[1:]]
    assert models == [f"Qwen/Qwen2.5-{size}-Instruct" for size in ("1.5B", "3B", "7B", "14B")]
    assert not Path("runs").exists()


ALL, SEEDS = "--strategy=all --reward=rouge ", "--seeds=2 "


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (f"{ALL}--name mine", "--name"),
        (f"{ALL}--watch", "--watch"),
        (f"{ALL}--set=stages.polish.steps=3", "'polish'"),
        (f"{SEEDS}--set=stages.quality.steps=3", "--strategy finetuned has that stage"),
        (f"{ALL}--reward=roug", "'roug'"),
        (f"{ALL}--model=tny", "'tny'"),
        (f"{ALL}--task=doc-qa --reward=all", "the task doc-qa has no list that 'all' stands for"),
        ("--set=grpo.beta=0.1,,0.2", "--set grpo.beta=0.1,,0.2 has an empty value"),
        ("--set=grpo.beta=0.1,0.1", "--set grpo.beta=0.1,0.1 has a value twice"),
        ("--set=grpo.beta=0.1,x", "grpo.beta must be a number"),
        ("--set=grpo.bet=0.1,0.2", "'grpo.bet'"),
        ("--set=grpo.beta=0.1,0.2 --set=grpo.beta=0.3", "grpo.beta has several values"),
        ("--set=stages.polish.steps=1,2", "'polish'"),
        (f"{SEEDS}--set=train.seed=1", "--seeds and --set train.seed"),
        ("--seeds=0", "'--seeds'"),
        (f"{SEEDS}--name=mine", "--name"),
        (f"{SEEDS}--find-lr", "--find-lr"),
    ],
)
def test_impossible_plans_are_usage_errors(flags: str, named: str, call: Call) -> None:
    refused = call("train", *flags.split())
    assert_refused(refused, named)
    assert refused[2].count("error:") == 1
    assert not Path("runs").exists()


@pytest.mark.slow
def test_seeds_are_crossed_with_settings(call: Call) -> None:
    """Seeds go on from the run's own; names say what differs; the first stage is shared where nothing in it differs."""
    crossed = call("train", "--strategy=finetuned", "--seeds=2", "--set=stages.quality.steps=10,20", "--dry-run")
    out, _ = done(crossed, "4 runs: 4 to train; 380 steps at most")  # 2 x 160 + 2 x 10 + 2 x 20
    assert planned(out) == [f"tiny-finetuned-meteor-steps{steps}-seed{seed}" for steps in (10, 20) for seed in (42, 43)]
    assert ["(shared)" in line for line in out.splitlines()[1:]] == [False, False, True, True]
    several = ["--seeds=2", "--seed=7", "--reward=meteor", "--reward=rouge", "--dry-run", "-q"]
    for strategy, runs in ((["--strategy=finetuned"], 3), ([], 2)):  # the default begins with no length stage
        out, _ = done(call("train", *several, *strategy))
        assert [name.rpartition("-")[2] for name in planned(out)] == ["seed7"] * runs + ["seed8"] * runs


def test_words_and_numbers_are_lists_and_texts_are_not(call: Call) -> None:
    """A comma in a text, such as a prompt or a path, belongs to it."""
    text = ["--set=task.system_prompt=Short, please.", "--dry-run", "-q"]
    out, _ = done(call("train", "--set=grpo.loss=grpo,dapo", *text))
    assert planned(out) == ["tiny-constrained-meteor-loss-grpo", "tiny-constrained-meteor-loss-dapo"]
    assert 'system_prompt = "Short, please."' in done(call("train", *text))[0]


@pytest.mark.parametrize("rewards", [["--reward=length", "--reward=rouge"], ["--reward=rouge", "--reward=length"]])
def test_length_alone_is_planned_once(rewards: list[str], call: Call, data: Path) -> None:
    """With every strategy length alone is one run, not another one of the joint strategy. Without one it is the first
    stage of the strategy with two, next to runs of the default."""
    out, _ = done(call("train", "--strategy=all", *rewards, "--dry-run", f"--set=data.path={data}"))
    assert planned(out) == ["tiny-length", "tiny-finetuned-rouge", "tiny-included-rouge"]
    out, _ = done(call("train", *rewards, "--dry-run", f"--set=data.path={data}"))
    assert planned(out) == ["tiny-length", "tiny-constrained-rouge"]


def test_a_setting_reaches_the_runs_that_have_a_use_for_it(
    call: Call, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run with constraints and one without, or with a judge and without, are one grid; what no run uses is
    refused."""
    both = ["train", "--strategy=included", "--strategy=constrained", "--dry-run", f"--set=data.path={data}"]
    out, _ = done(call(*both, "--set=grpo.constraint_rate=0.1,0.2"))
    rates = [f"tiny-constrained-meteor-constraint_rate{rate}" for rate in (0.1, 0.2)]
    assert planned(out) == ["tiny-length", "tiny-included-meteor", *rates]
    out, _ = done(call(*both, "--set=stages.included.steps=30,60"))
    assert {"tiny-included-meteor-steps30", "tiny-included-meteor-steps60", "tiny-constrained-meteor"} < {*planned(out)}
    assert_refused(call(*both, "--set=judge.model=rules"), "judge.model", "no stage uses judge")
    judged = [*both, "--reward=meteor", "--reward=judge", "--set=judge.model=rules"]
    monkeypatch.setenv("SMOLSUM_JUDGE_URL", "http://127.0.0.1:9/v1")
    assert len(planned(done(call(*judged))[0])) == 5


@pytest.fixture(scope="module")
def posts(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same data without references."""
    posts = tmp_path_factory.mktemp("posts")
    for file in data.iterdir():
        pl.read_parquet(file).select("prompt").write_parquet(posts / file.name)
    return posts


def test_a_plan_is_checked_as_its_runs_are(call: Call, data: Path, posts: Path) -> None:
    """A line for each distinct problem, with the runs that have it, and the exit code of a single run; a run without
    the problem is not named."""
    rewards = ("--reward=length", "--reward=rouge", "--reward=bleu-rouge")
    refused = call("train", "--strategy=finetuned", *rewards, "--dry-run", f"--set=data.path={posts}")
    assert_refused(refused, "2 of 3 runs to train cannot be trained", "or --reward length")
    lines = refused[2].splitlines()[1:3]
    assert ["tiny-finetuned-rouge: stage quality uses rouge," in lines[0], "bleu" in lines[1]] == [True, True]

    place = ["--dry-run", f"--set=data.path={data}", "--set=engine.memory_budget_gb=0.01"]
    assert_refused(call("train", "--reward=rouge", *place), error=MachineError)
    refused = call("train", "--strategy=finetuned", "--reward=rouge", "--reward=bleu", *place)
    assert_refused(refused, "error: 3 of 3 runs to train cannot be trained\n", error=MachineError)
    counts = [refused[2].count(part) for part in ("cannot be trained", "tiny-", "without --dry-run")]
    assert counts == [1, 3, 0]


def test_data_are_loaded_once_for_a_plan(call: Call, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of runs: the checks of references and of memory, and the steps, share the splits."""
    prompts, loaded = TASKS["tldr"].prompts, list[str]()

    def load(config: Config, split: str) -> Split:
        loaded.append(split)
        return prompts.load(config, split)

    counted = {"tldr": replace(TASKS["tldr"], prompts=replace(prompts, preview=load))}
    monkeypatch.setattr("smolsum.grpo.grid.TASKS", counted)
    monkeypatch.setattr("smolsum.grpo.setup.prepare.TASKS", counted)
    place = [f"--set=data.path={data}", "--set=stages.quality.epochs=2"]
    out, _ = done(call("train", "--strategy=all", "--reward=rouge", "--reward=bleu", "--dry-run", *place))
    assert (len(planned(out)), sorted(loaded)) == (5, ["test", "train", "validation"])


def test_runs_without_a_problem_are_trained(call: Call, posts: Path, tmp_path: Path) -> None:
    """The hint of a plan with problems is true: each line has its remedy, and the command trains the others."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")
    sets = ["stages.length.steps=1", "train.prompts_per_step=1", "train.validate_every=0", "task.target_tokens=7"]
    sets += ["sampling.max_new_tokens=8", f"data.path={posts}"]
    command = ["--model=tiny", f"--model={tmp_path / 'broken'}", "--strategy=finetuned"]
    command += ["--reward=length", "--reward=rouge", "--plain"]
    command += [f"--set={one}" for one in sets]
    refused = call("train", *command, "--dry-run")
    assert_refused(refused, "error: 3 of 4 runs to train cannot be trained\n", "without --dry-run the other runs")
    _, first, second, _ = filter(None, refused[2].splitlines())
    assert "tiny-finetuned-rouge, broken-finetuned-rouge: stage quality uses rouge" in first
    assert first.endswith("or --reward length, which needs none)")
    assert "broken-length: " in second
    code, out, err = call("train", *command, "--quiet")
    assert (code, out) == (1, "runs/tiny-length\n")
    assert "error: 3 of 4 runs failed: " in err


def test_a_run_without_settings_is_not_resumed(call: Call, tmp_path: Path) -> None:
    """The remedy is about the run, not about --config, which was not given."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "run.lock").touch()
    refused = call("train", f"--resume={tmp_path / 'mine'}", "--quiet")
    assert_refused(refused, "config.toml")
    assert "--config" not in refused[2]


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
    for more in ([], ["--watch"]):  # there is nothing to watch
        out, _ = done(call(*grid(data, whole, *more)))
        assert out.splitlines() == [str(whole / name) for name in RUNS]
        assert before == {path: path.stat().st_mtime_ns for path in before}
    out, _ = done(call(*grid(data, whole, "--seed=7", "--dry-run")), "5 to train")
    assert planned(out) == [f"{name}-2" for name in RUNS]
    done(call(*grid(data, whole, "--set=engine.memory_budget_gb=4", "--dry-run")), "5 done")


def test_runs_of_another_strategy_do_not_count(whole: Path, call: Call, data: Path) -> None:
    """Those of the strategy with two stages are done where it is named, and are no runs of the default."""
    command = [one for one in unnamed(data, whole) if not one.startswith(("--strategy", "--set=stages", "--quiet"))]
    command += ["--reward=rouge", "--reward=bleu", "--dry-run"]
    stages = [f"--set=stages.{name}.steps=2" for name in ("length", "quality")]
    out, _ = done(call(*command, "--strategy=finetuned", *stages), "3 runs: 3 done")
    assert planned(out) == list(RUNS[:3])
    out, _ = done(call(*command), "2 runs: 2 to train")
    assert planned(out) == ["tiny-constrained-rouge", "tiny-constrained-bleu"]


def test_one_failure_does_not_stop_the_others(whole: Path, data: Path, tmp_path: Path, call: Call) -> None:
    """A run that cannot be trained is named in the end, with exit code 1; all others are there."""
    command, names = grid(data, tmp_path, rewards=("rouge",)), (RUNS[0], "held", RUNS[3])
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
    assert done(call(*command))[0].splitlines() == [str(tmp_path / name) for name in names]


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
    command, mark = grid(data, tmp_path, rewards=("rouge",)), GridWriter.mark

    def marked(record: GridWriter, number: int, state: Any, **more: str) -> None:
        mark(record, number, state, **more)
        if (number, state) == when:
            make_request(RunPaths(tmp_path / FEW[asked]), "stop")

    with monkeypatch.context() as patched:
        patched.setattr(GridWriter, "mark", marked)
        code, out, err = call(*command)
    assert (code, out.splitlines()) == (130, [str(tmp_path / FEW[0])]), err
    assert "hint: smolsum train --model=tiny" in err
    record = read(tmp_path / GRID, GridRecord)
    assert (record.state, [run.state for run in record.runs]) == ("ended", states)
    assert [(tmp_path / name).exists() for name in FEW[1:]] == [states[1] != "to train", False]
    assert_goes_on(command, call, tmp_path, whole)


def test_a_second_grid_in_a_directory_is_refused(data: Path, tmp_path: Path, call: Call) -> None:
    with locked(tmp_path / LOCK, "", ""):
        assert_refused(call(*grid(data, tmp_path)), f"a grid is being trained in {tmp_path} by process")
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def assert_goes_on(command: list[str], call: Call, runs: Path, whole: Path) -> None:
    """The same command ends with the runs of a grid without bleu, which learned what those of the whole one learned."""
    assert done(call(*command))[0].splitlines() == [str(runs / name) for name in FEW]
    for name, step in zip(FEW, (2, 4, 2), strict=True):
        assert learned(runs / name) == learned(whole / name)
        assert weights(runs / name, step) == weights(whole / name, step)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_same_command_goes_on_after_a_stop(
    number: signal.Signals, whole: Path, data: Path, tmp_path: Path, call: Call
) -> None:
    """Stopped in its second run, by Ctrl-C or kill -9, the grid ends as if nothing had been."""
    command = grid(data, tmp_path, rewards=("rouge",))
    code, out, err = python("-c", SIGNALLED.format(f"os.kill(os.getpid(), {number.value})"), *command)
    assert code == (130 if number == signal.SIGINT else -9), err
    assert out.splitlines() == [str(tmp_path / FEW[0])]
    if number == signal.SIGINT:
        assert "hint: smolsum train --model=tiny" in err
    assert_goes_on(command, call, tmp_path, whole)


def test_a_sweep_is_interrupted_and_goes_on(call: Call, data: Path) -> None:
    """Three seeds and two settings: Ctrl-C in the second run, the same command again, one report of all."""
    steps = {"stages__length__steps": 1, "stages__quality__steps": 1}
    short = unnamed(data, Path("runs"), **steps)
    command = [*short, "--seeds=3", "--set=grpo.beta=0.02,0.05"]
    names = [f"tiny-finetuned-meteor-beta{beta}-seed{seed}" for beta in (0.02, 0.05) for seed in (42, 43, 44)]
    second = Path("runs", names[1], "metrics.jsonl")
    with after_step(lambda _: os.kill(os.getpid(), signal.SIGINT) if second.exists() else None):
        code, out, err = call(*command)
    assert (code, out) == (130, f"runs/{names[0]}\n"), err
    assert "hint: smolsum train" in err
    assert not Path("runs", names[2]).exists()
    assert done(call(*command))[0].splitlines() == [f"runs/{name}" for name in names]
    out, _ = done(call("runs", "--settings", "--runs-dir=runs"))
    assert {line.split()[0] for line in out.splitlines()} >= {"grpo.beta", "train.seed"}
    assert re.search(r"report.*\.html", done(call("report", *names))[0])


def test_evaluations_of_several_seeds(call: Call, data: Path) -> None:
    """Each seed has a folder; greedy completions have no seed."""
    base = ["baseline", f"--set=data.path={data}", "--prompt=50-words", "--seeds=2", "--quiet"]
    out, _ = done(call(*base, "--temperature=0.7"))
    assert [Path(line).name.rpartition("-")[2] for line in out.splitlines()] == ["seed0", "seed1"]
    assert_refused(call(*base), "greedy completions are the same")
    assert_refused(call(*base, "--temperature=1", "--name=x"), "--name")


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


def test_eval_selects_runs_by_the_flags_of_train(whole: Path, call: Call) -> None:
    """`eval` takes the grid's runs by the same flags, and says what is not there."""
    eval_of = partial(call, "eval", f"--runs-dir={whole}", "--quiet")
    select = ["--model=tiny", "--strategy=all", "--reward=bleu", "--reward=meteor", "--reward=rouge"]
    out, _ = done(eval_of(*select), "not trained yet: builtin:tiny finetuned meteor, builtin:tiny included meteor")
    folders = ["length", "quality", "quality", "included", "included"]
    expected = {str(whole / name / "eval" / f"{folder}-test") for name, folder in zip(RUNS, folders, strict=True)}
    assert set(out.splitlines()) == expected
    assert len(done(eval_of("--strategy=finetuned"))[0].splitlines()) == 2
    for flags, named in (
        (["--model=tiny-lfm", "--strategy=all"], "no finished run"),
        ([], "give either a run"),
        (["tiny", "--model=tiny"], "give either a run"),
        (["--model=tiny", "--name=mine"], "--name"),
    ):
        assert_refused(eval_of(*flags), named)


def test_strategies_whose_stages_have_the_same_names_are_told_apart(tmp_path: Path, call: Call) -> None:
    """A plan names each run after its strategy, and each strategy finds its own run."""
    strategies = TASKS["strict-json"].presets.strategies
    plan = ["--task=strict-json", "--strategy=all", f"--runs-dir={tmp_path}", "--dry-run"]
    out, _ = done(call("train", *plan), "4 to train")
    names = [line.split()[0] for line in out.splitlines()[1:]]
    assert [re.sub(r"tiny-json-(.*)-\d-signals", r"\1", name) for name in names] == list(strategies)
    for name, strategy in zip(names, strategies, strict=True):
        config = resolve(TASKS, flags={"task.name": "strict-json"}, strategy=strategy, sets=()).config
        paths = create_run(tmp_path, name)
        paths.config.write_text(to_toml(config))
        paths.status.write_text('{"state": "finished"}')
    for name, strategy in zip(names, strategies, strict=True):
        finished, _, _ = choose(Selection((None,), (strategy,), (None,)), tmp_path)
        assert [run.name for run in finished] == [name]


def test_dry_run_shows_the_step_of_a_stopped_run(data: Path, whole: Path, call: Call) -> None:
    status = whole / "tiny-included-bleu" / "status.json"
    kept = status.read_text()
    status.write_text('{"state": "interrupted", "step": 1}')
    _, out, err = call(*grid(data, whole, "--dry-run"))
    status.write_text(kept)
    assert "  continues at step 1  " in out.splitlines()[-1]
    assert "5 runs: 4 done, 1 to continue" in err


def test_a_plan_does_not_load_mlx(data: Path, whole: Path) -> None:
    planned = f"main({grid(data, whole, '--dry-run')!r})\nsys.exit('mlx.core' in sys.modules)"
    code, _, err = python("-c", f"import sys\nfrom smolsum.cli.main import main\n{planned}")
    assert code == 0, err
