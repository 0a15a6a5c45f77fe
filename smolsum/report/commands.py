"""The commands that fill what no run fills: with the settings of the runs that are there, so that the results belong
together."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from smolsum.config.presets import preset_names, read_preset
from smolsum.config.sections import TaskConfig
from smolsum.config.study import FINETUNED, LENGTH_ONLY, REWARDS, STAGES
from smolsum.report.study import Evaluation, Study

KEPT = ("--task", "--preset", "--config", "--set", "--seed", "--runs-dir")
"""flags of `smolsum train` that a run like it has too"""
EVALUATED = ("data", "task", "sampling", "rewards", "model")
"""sections that an evaluation reads"""


def train_command(study: Study, model: str, strategy: str = FINETUNED, reward: str = "meteor") -> str:
    """The command that trains a configuration of the study, of a model by its name; of another task, as it is trained
    unless told otherwise."""
    named = ["--model", _argument(study, model)] if model in study.trainable else []
    if not study.repeats:
        task = [] if study.trained else _task(study)
        return shlex.join(["smolsum", "train", *task, *named, *_flags(study, model, lambda section, name: True)])
    stages = STAGES[strategy]
    if strategy == LENGTH_ONLY:
        strategy, reward = FINETUNED, "length"  # the fine-tuned runs begin with it
    signals = "-".join(REWARDS.get(reward, (reward,)))
    fits = _flags(study, model, lambda section, name: section != "stages" or name in stages)
    return shlex.join(["smolsum", "train", *named, "--strategy", strategy, "--reward", signals, *fits])


def judge_command(study: Study, evaluation: Evaluation) -> str:
    """The command that has an evaluation judged, as the others are."""
    if not study.criteria:
        return evaluation.again
    if (
        evaluation.step is None
        and not evaluation.behind
        and evaluation in study.baselines
        and (told := evaluation.prompt)
    ):
        return baseline_command(study, evaluation.model, told)
    return f"{evaluation.again} {_asking(study)}"


def judge_all_command(study: Study, model: str, strategy: str) -> str:
    """The command that has all runs of a model and a strategy (or `all`) judged."""
    command = shlex.join(["smolsum", "eval", "--model", _argument(study, model), "--strategy", strategy])
    return f"{command} {_asking(study)}"


def baseline_command(study: Study, model: str, variant: str = "") -> str:
    """The command that measures a model untrained, told the length in its prompt; every variant, if none is named."""
    prompt = ["--prompt", variant] if variant else []
    fits = _flags(study, model, lambda section, _: section in EVALUATED)
    fits = [flag for flag in fits if not flag.startswith("--seed")]
    task = [] if study.trained else _task(study)
    named = ["--model", _argument(study, model)] if model in study.trainable else ["--api", study.path_of(model)]
    command = shlex.join(["smolsum", "baseline", *task, *named, *prompt, *fits])
    return f"{command} {_asking(study)}"


def _task(study: Study) -> list[str]:
    """The task of a report, as a flag."""
    name = str((study.evaluations[0].summary.get("task") or {}).get("name", TaskConfig.name))
    return [] if name == TaskConfig.name else ["--task", name]


def _asking(study: Study) -> str:
    """The flags that ask the judge of this report; MODEL where there is none yet."""
    none: dict[str, Any] = {}
    judged = next((e.summary["judging"] for e in study.evaluations if e.judge), none)
    asked = judged.get("rounds", 5)
    return f"--judge {shlex.quote(str(judged.get('model', 'MODEL')))}" + ("" if asked == 5 else f" --rounds {asked}")


def _argument(study: Study, model: str) -> str:
    """What `--model` takes for a model by its name: a preset, if one has its path."""
    path = study.path_of(model)
    for name in preset_names("models"):
        if any(entry.key == "model.path" and entry.value == path for entry in read_preset("models", name)):
            return name
    return path


def _flags(study: Study, model: str, fits: Callable[[str, str], bool]) -> list[str]:
    """What was typed for a run of the model, or else of another, of the flags in `KEPT`; of each `--set` those whose
    section and name fit."""
    runs = [run for run in study.trained if run.model == model] or list(study.trained)
    typed = [str(word) for word in runs[0].info.get("argv", ())[1:]] if runs else []
    found = []
    for flag, value in _pairs(typed):
        if flag == "--set":
            section, _, name = value.partition("=")[0].strip().partition(".")
            if not fits(section, name.partition(".")[0]):
                continue
        found += [flag, value]
    return found


def _pairs(typed: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Flag and value, however they were written."""
    for place, word in enumerate(typed):
        flag, equals, value = word.partition("=")
        if flag in KEPT:
            following = typed[place + 1] if place + 1 < len(typed) else ""
            yield flag, value if equals else following
