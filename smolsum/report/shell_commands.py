"""The commands that would fill empty cells, with the settings of the runs in the report, so that the results can be
compared."""

import shlex
from collections.abc import Callable, Iterator, Sequence

from smolsum.config.presets import preset_names, read_preset
from smolsum.config.run_labels import FINETUNED, LENGTH_ONLY, REWARD_SETS, STAGES
from smolsum.config.sections import TaskConfig
from smolsum.report.collect import EvaluationResult, ReportInputs
from smolsum.runs.records import Judging

KEPT = ("--task", "--preset", "--config", "--set", "--seed", "--runs-dir")
"""flags of `smolsum train` that a similar run keeps"""
SHARED = tuple(flag for flag in KEPT if flag != "--seed")
"""those that `smolsum baseline` has too; its --seed is that of sampling"""
EVALUATED = ("data", "task", "sampling", "rewards", "model")
"""sections that an evaluation reads"""


def train_command(inputs: ReportInputs, model: str, strategy: str = FINETUNED, reward: str = "meteor") -> str:
    """Return the command that trains a configuration of the study; for another task, the one that trains its
    default."""
    named = ["--model", _model_argument(inputs, model)] if model in inputs.trainable else []
    if not inputs.follows_study:
        kept = _kept_flags(inputs, model, lambda section, name: True)
        return shlex.join(["smolsum", "train", *_task_flag(inputs), *named, *kept])
    stages = STAGES[strategy]
    if strategy == LENGTH_ONLY:
        strategy, reward = FINETUNED, "length"  # the fine-tuned runs begin with it
    signals = "-".join(REWARD_SETS.get(reward, (reward,)))
    kept = _kept_flags(inputs, model, lambda section, name: section != "stages" or name in stages)
    return shlex.join(["smolsum", "train", *named, "--strategy", strategy, "--reward", signals, *kept])


def judge_command(inputs: ReportInputs, evaluation: EvaluationResult) -> str:
    """Return the command that judges an evaluation as the others are judged."""
    if not inputs.criteria:
        return evaluation.command
    outside = evaluation.step is None and not evaluation.remote and evaluation in inputs.baselines
    if outside and (prompt := evaluation.prompt):
        return baseline_command(inputs, evaluation.model, prompt)
    return f"{evaluation.command} {_judge_flags(inputs)}"


def judge_all_command(inputs: ReportInputs, model: str, strategy: str) -> str:
    """Return the command that judges all runs of a model and a strategy."""
    kept = _kept_flags(inputs, model, lambda section, name: False, only=("--runs-dir",))
    command = shlex.join(["smolsum", "eval", "--model", _model_argument(inputs, model), "--strategy", strategy, *kept])
    return f"{command} {_judge_flags(inputs)}"


def baseline_command(inputs: ReportInputs, model: str, variant: str = "") -> str:
    """Return the command that evaluates an untrained model with a length in its prompt; all variants if none is
    named."""
    prompt = ["--prompt", variant] if variant else []
    kept = _kept_flags(inputs, model, lambda section, _: section in EVALUATED, only=SHARED)
    local = model in inputs.trainable
    named = ["--model", _model_argument(inputs, model)] if local else ["--api", inputs.path_of(model)]
    command = shlex.join(["smolsum", "baseline", *_task_flag(inputs), *named, *prompt, *kept])
    return f"{command} {_judge_flags(inputs)}"


def _task_flag(inputs: ReportInputs) -> list[str]:
    """The flag for the task of a report; empty if it is the default, or if there are runs, whose flags are kept."""
    name = str((inputs.evaluations[0].summary.task or {}).get("name", TaskConfig.name))
    return [] if inputs.trained or name == TaskConfig.name else ["--task", name]


def _judge_flags(inputs: ReportInputs) -> str:
    """The flags for the judge of this report; MODEL if it has none yet."""
    judging = next((e.summary.judging for e in inputs.evaluations if e.judge and e.summary.judging), Judging())
    rounds = "" if judging.rounds in (0, 5) else f" --rounds {judging.rounds}"
    return f"--judge {shlex.quote(judging.model or 'MODEL')}{rounds}"


def _model_argument(inputs: ReportInputs, model: str) -> str:
    """The value of `--model` for a model's name: a preset if one has its path."""
    path = inputs.path_of(model)
    for name in preset_names("models"):
        if any(entry.key == "model.path" and entry.value == path for entry in read_preset("models", name)):
            return name
    return path


def _kept_flags(
    inputs: ReportInputs, model: str, keep: Callable[[str, str], bool], *, only: Sequence[str] = KEPT
) -> list[str]:
    """The flags among `only` that were typed for a run of the model, or else for the first run; of `--set` only those
    whose section and name are to be kept."""
    runs = [run for run in inputs.trained if run.model == model] or list(inputs.trained)
    typed = runs[0].info.argv[1:] if runs else []
    found = []
    for flag, value in _pairs(typed):
        if flag not in only:
            continue
        if flag == "--set":
            section, _, name = value.partition("=")[0].strip().partition(".")
            if not keep(section, name.partition(".")[0]):
                continue
        found += [flag, value]
    return found


def _pairs(typed: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Flags with their values, written with a space or with `=`."""
    for place, word in enumerate(typed):
        flag, equals, value = word.partition("=")
        if flag in KEPT:
            following = typed[place + 1] if place + 1 < len(typed) else ""
            yield flag, value if equals else following
