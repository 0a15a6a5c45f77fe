"""The commands that would fill empty cells, with the settings of the runs in the report, so that the results can be
compared."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from smolsum.config.presets import preset_names, read_preset
from smolsum.config.resolve import resolve
from smolsum.config.run_labels import FINETUNED, LENGTH_ONLY, REWARD_SETS, STAGES
from smolsum.config.sections import RunConfig, TaskConfig
from smolsum.config.stages import planned_steps
from smolsum.results.evaluate.tables import with_judge
from smolsum.results.report.collect import EvaluationResult, ReportInputs, TrainedRun
from smolsum.runs.evaluation_records import Judging
from smolsum.tasks import TASKS

KEPT = ("--task", "--plugin", "--preset", "--config", "--set", "--seed", "--runs-dir")
"""flags of `smolsum train` that a similar run keeps"""
SHARED = tuple(flag for flag in KEPT if flag != "--seed")
"""those that `smolsum baseline` has too; its --seed is that of sampling"""
EVALUATED = ("data", "task", "sampling", "rewards", "model")
"""sections that an evaluation reads"""
RUNS_DIR = RunConfig.dir
"""the folder of runs where nothing names one"""
Keep: TypeAlias = Callable[[str, str], bool]
"""whether a command has a setting of a run, by its section and the first name in it"""


def train_command(inputs: ReportInputs, model: str, strategy: str = FINETUNED, reward: str = "meteor") -> str:
    """Return the command that trains a configuration of the study; for another task, the one that trains its
    default."""
    named = ["--model", _model_argument(inputs, model)] if model in inputs.trainable else []
    if not inputs.follows_study:
        kept = _kept_flags(_runs_of(inputs, model), lambda section, name: True)
        return shlex.join(["smolsum", "train", *_task_flag(inputs), *named, *kept])
    stages = STAGES[strategy]
    similar = _similar_run(inputs, model, strategy)
    if strategy == LENGTH_ONLY:
        strategy, reward = FINETUNED, "length"  # the fine-tuned runs begin with it
    signals = "-".join(REWARD_SETS.get(reward, (reward,)))

    def keep(section: str, name: str) -> bool:
        return section != "stages" or name in stages

    runs = [similar] if similar else _runs_of(inputs, model)
    kept = _kept_flags(runs, keep)
    if runs and not similar:
        kept += _share_of_steps(runs[0], _model_argument(inputs, model), strategy)
    return shlex.join(["smolsum", "train", *named, "--strategy", strategy, "--reward", signals, *kept])


def judge_command(inputs: ReportInputs, evaluation: EvaluationResult) -> str:
    """Return the command that judges an evaluation as the others are judged."""
    if not inputs.criteria:
        return evaluation.command
    outside = evaluation.step is None and not evaluation.remote and evaluation in inputs.baselines
    if outside and (prompt := evaluation.prompt):
        return baseline_command(inputs, evaluation.model, prompt)
    return _judged(inputs, evaluation.command)


def judge_all_command(inputs: ReportInputs, model: str, strategy: str) -> str:
    """Return the command that judges all runs of a model and a strategy."""
    run = _similar_run(inputs, model, strategy)
    kept = _kept_flags([run] if run else [], lambda section, name: False, only=("--runs-dir",))
    runs = [one for one in _runs_of(inputs, model) if one.strategy == strategy]
    for text in dict.fromkeys(text for one in runs for text in one.paths.named_plugins):
        kept += ["--plugin", text]
    command = shlex.join(["smolsum", "eval", "--model", _model_argument(inputs, model), "--strategy", strategy, *kept])
    return _judged(inputs, command)


def baseline_command(inputs: ReportInputs, model: str, variant: str = "") -> str:
    """Return the command that evaluates an untrained model with a length in its prompt; all variants if none is
    named."""
    prompt = ["--prompt", variant] if variant else []
    kept = _kept_flags(_runs_of(inputs, model)[:1], lambda section, _: section in EVALUATED, only=SHARED)
    local = model in inputs.trainable
    named = ["--model", _model_argument(inputs, model)] if local else ["--api", inputs.path_of(model)]
    command = shlex.join(["smolsum", "baseline", *_task_flag(inputs), *named, *prompt, *kept])
    return _judged(inputs, command)


def untrained_command(inputs: ReportInputs, model: str) -> str:
    """Return the command that evaluates the untrained model as its runs are evaluated."""
    run = inputs.runs_of(model)[0]
    kept = _kept_flags([run], lambda section, name: False, only=("--runs-dir",))
    command = shlex.join([*shlex.split(run.start_command), *kept])
    return _judged(inputs, command) if inputs.judge else command


def _task_flag(inputs: ReportInputs) -> list[str]:
    """The flag for the task of a report; empty if it is the default, or if there are runs, whose flags are kept."""
    name = str((inputs.evaluations[0].task or {}).get("name", TaskConfig.name))
    return [] if inputs.trained or name == TaskConfig.name else ["--task", name]


def _judged(inputs: ReportInputs, command: str) -> str:
    """The command with the judge of this report; with MODEL if it has none yet."""
    judging = next((e.summary.judging for e in inputs.evaluations if e.judge and e.summary.judging), Judging())
    return with_judge(command, judging.model or "MODEL", judging.rounds)


def _model_argument(inputs: ReportInputs, model: str) -> str:
    """The value of `--model` for a model's name: a preset if one has its path."""
    path = inputs.path_of(model)
    for name in preset_names("models"):
        if any(entry.key == "model.path" and entry.value == path for entry in read_preset("models", name)):
            return name
    # evidence has the last part of a path only, which without the dot would be the name of a preset
    return path if "/" in path or ":" in path else f"./{path}"


def _share_of_steps(run: TrainedRun, model: str, strategy: str) -> list[str]:
    """The flags that give another strategy the same share of its usual steps as `run` had, so that a short
    study is short throughout; none for a run of the usual steps."""
    if run.strategy not in STAGES:
        return []
    presets = [value for flag, value in _typed_for(run) if flag == "--preset"]
    train = [f"train.{name}={run.config['train'][name]}" for name in ("prompts_per_step", "accumulation_steps")]
    size = round(run.info.corpus.train.examples) if run.info.corpus else 0

    def usual(named: str) -> dict[str, int]:
        found = resolve(TASKS, model=model, strategy=named, presets=presets, sets=train)
        return planned_steps(found.config, [""] * size)

    own = usual(FINETUNED if run.strategy == LENGTH_ONLY else run.strategy)
    done, whole = sum(run.info.steps.values()), sum(own.get(name, 0) for name in run.info.steps)
    if not done or not whole or done == whole:
        return []
    steps = {name: max(1, round(count * done / whole)) for name, count in usual(strategy).items()}
    return [word for name, count in steps.items() for word in ("--set", f"stages.{name}.steps={count}")]


def _runs_of(inputs: ReportInputs, model: str) -> list[TrainedRun]:
    """The runs of a model; all if it has none."""
    return inputs.runs_of(model) or list(inputs.trained)


def _similar_run(inputs: ReportInputs, model: str, strategy: str) -> TrainedRun | None:
    """The first run of a strategy among those of a model; for length alone also a fine-tuned one, which begins with
    it. None without one."""
    wanted = (LENGTH_ONLY, FINETUNED) if strategy == LENGTH_ONLY else (strategy,)
    runs = _runs_of(inputs, model)
    return next((run for one in wanted for run in runs if run.strategy == one), None)


def _kept_flags(runs: Sequence[TrainedRun], keep: Keep, *, only: Sequence[str] = KEPT) -> list[str]:
    """The flags among `only` that were typed for all runs, and those of data and task for the first: a report has only
    runs that agree in these, however they were typed. Of `--set` those whose section and name are to be kept."""
    each = [dict.fromkeys(pair for pair in _typed_for(run) if pair[0] in only) for run in runs]
    found = list[str]()
    for flag, value in each[0] if each else ():
        section, name = _setting_of(flag, value)
        agreed = flag == "--task" or section in ("data", "task")
        if (flag != "--set" or keep(section, name)) and (agreed or all((flag, value) in one for one in each)):
            found += [flag, value]
    return found


def _setting_of(flag: str, value: str) -> tuple[str, str]:
    """The section and the first name in it that a `--set` sets; empty for another flag."""
    if flag != "--set":
        return "", ""
    section, _, name = value.partition("=")[0].strip().partition(".")
    return section, name.partition(".")[0]


def _typed_for(run: TrainedRun) -> list[tuple[str, str]]:
    """The flags that were typed for a run, and its folder of runs where an environment variable or a file named it."""
    found = list(_pairs(run.info.argv[1:]))
    folder = str(run.config.get("run", {}).get("dir", RUNS_DIR))
    named = any(flag == "--runs-dir" or _setting_of(flag, value) == ("run", "dir") for flag, value in found)
    return found if named or folder == RUNS_DIR else [*found, ("--runs-dir", folder)]


def _pairs(typed: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Flags with their values, written with a space or with `=`."""
    for place, word in enumerate(typed):
        flag, equals, value = word.partition("=")
        if flag in KEPT:
            following = typed[place + 1] if place + 1 < len(typed) else ""
            yield flag, value if equals else following
