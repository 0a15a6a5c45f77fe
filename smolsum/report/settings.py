"""The settings of runs: those that hold for all of one, and those that its stages have of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smolsum.report.commands import train_command
from smolsum.report.page import Cell, Source, Table, empty, number, plain, words
from smolsum.report.study import Study, Trained
from smolsum.report.tables_results import NOT_DONE

HYPERPARAMETERS = (
    ("Learning rate", "optimizer.learning_rate"),
    ("Optimizer", "optimizer.name"),
    ("Optimizer precision", "optimizer.precision"),
    ("Batch size (prompts a step)", "train.prompts_per_step"),
    ("Gradient accumulation steps", "train.accumulation_steps"),
    ("Max grad norm", "optimizer.max_grad_norm"),
    ("Clip ratio (ε), low", "grpo.eps_low"),
    ("Clip ratio (ε), high", "grpo.eps_high"),
    ("KL beta (β)", "grpo.beta"),
    ("Loss", "grpo.loss"),
    ("Rollouts per prompt", "sampling.rollouts"),
    ("Temperature", "sampling.temperature"),
    ("Max input tokens", "data.max_input_tokens"),
    ("Max output tokens", "sampling.max_new_tokens"),
    ("Target tokens", "task.target_tokens"),
    ("Dtype", "model.dtype"),
    ("Adapter", "model.adapter"),
    ("Seed", "train.seed"),
)
OF_STAGES = {
    "sampling.temperature": "temperature",
    "optimizer.learning_rate": "learning_rate",
    "grpo.beta": "beta",
}
"""settings that each stage has its own value of, and their names there"""
SHOWN = 12
"""stages that a report shows unfolded"""


def settings_table(study: Study) -> Table:
    """Returns Table 9: the settings, each with the values that it has in these runs."""
    rows = []
    for title, key in HYPERPARAMETERS:
        found: dict[str, Source] = {}
        for run in study.trained:
            if value := _value(run.config, key):
                found.setdefault(value, _source(run, key))
        if found:
            rows.append((words(title), Cell(" | ".join(found), source=next(iter(found.values())))))
        elif not study.trained:
            rows.append((words(title), empty(train_command(study, study.models[0]))))
    notes = ["Several values: not all runs share it; the table of differences says which run has which."]
    if any(", then " in row[1].text for row in rows):
        notes.append("Then: from stage to stage.")
    return Table("9", "GRPO hyperparameters", ("Hyperparameter", "Value"), tuple(rows), tuple(notes))


def _value(config: Mapping[str, Any], key: str) -> str:
    """A value of config.toml by its dotted key, of its stages where they differ from one another; empty where it has
    none."""
    values = [str(_of_stage(config, stage, key)) for stage in config["stages"].values()]
    return ", then ".join(values) if len(set(values)) > 1 else "" if values[0] == "None" else values[0]


def _of_stage(config: Mapping[str, Any], stage: Mapping[str, Any], key: str) -> Any:
    """A setting as a stage has it: its own, or that of the whole run; None where there is none."""
    section, _, name = key.partition(".")
    general = config.get(section, {}).get(name)
    return stage.get(OF_STAGES[key], general) if key in OF_STAGES else general


def _source(run: Trained, key: str) -> Source:
    stage = next(iter(run.config["stages"]))
    own = OF_STAGES.get(key)
    return Source(run.paths.config, f"stages.{stage}.{own}" if own in run.config["stages"][stage] else key)


def stages_tables(study: Study) -> list[Table]:
    """Returns Table 9b, the stages of every run with what is their own; nothing where no run has several (the study's
    are those of Table 8, and shown where they differ in more than their signals)."""
    staged = [run for run in study.trained if _differ(run.config, signals=not study.repeats)]
    if not staged:
        return []
    mixed = any(stage.get("mix") for run in staged for stage in run.config["stages"].values())
    rows = [_stage(run, name, mixed=mixed) for run in staged for name in run.config["stages"]]
    mix = ("Mix of prompts",) if mixed else ()
    columns = ("Run", "Stage", "Steps", "Temperature", "Learning rate", "KL beta (β)", *mix, "Signals and weights")
    return [Table("9b", "Stages", columns, tuple(rows), folded=len(rows) > SHOWN)]


def _differ(config: Mapping[str, Any], *, signals: bool) -> bool:
    """Whether a table of stages tells more than the settings do."""
    if signals and len(config["stages"]) > 1:
        return True
    return any(
        stage.get("mix") or _of_stage(config, stage, key) != _of_stage(config, {}, key)
        for stage in config["stages"].values()
        for key in OF_STAGES
    )


def _stage(run: Trained, name: str, *, mixed: bool) -> tuple[Cell, ...]:
    stage, config = run.config["stages"][name], run.paths.config
    own = [
        Cell(NOT_DONE if value is None else str(value), source=Source(config, f"stages.{name}.{OF_STAGES[key]}"))
        for key in OF_STAGES
        for value in [_of_stage(run.config, stage, key)]
    ]
    mix = Cell(_shares(stage.get("mix") or {}), source=Source(config, f"stages.{name}.mix"))
    return (
        words(run.paths.name),
        words(name),
        number(run.info["steps"][name], plain(0), Source(run.paths.info, f"steps.{name}")),
        *own,
        *([mix] if mixed else []),
        Cell(_shares(stage["rewards"]), source=Source(config, f"stages.{name}.rewards")),
    )


def _shares(table: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:g}" for name, share in table.items()) or NOT_DONE
