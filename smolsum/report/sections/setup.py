"""What was done: data, judged metrics, signals and settings of the runs (Tables 1-3, 7, 9 and S8)."""

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from smolsum.config.presets import leaves
from smolsum.errors import SmolsumError
from smolsum.report.collect import ReportInputs, TrainedRun
from smolsum.report.document import DASH, Cell, CellSource, Table, empty, number, plain, shortened, words
from smolsum.report.shell_commands import judge_command, train_command
from smolsum.rewards import FACTS
from smolsum.runs.evaluation_records import SUMMARY, Judging
from smolsum.runs.record_io import read_lines
from smolsum.runs.records import SampledRollout

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
    ("Targets", "task.targets"),
    ("Held-out targets", "task.held_out_targets"),
    ("Targets count", "task.unit"),
    ("Dtype", "model.dtype"),
    ("Adapter", "model.adapter"),
    ("Seed", "train.seed"),
)
BEFORE_EPOCHS = "train.accumulation_steps"
"""the setting that the row of the epochs follows"""
EPOCHS = "Training epochs, each stage"
EPOCHS_NOTE = "Epochs: steps times the prompts of a step, divided by the prompts of the training split."
OF_STAGES = {"sampling.temperature": "temperature", "optimizer.learning_rate": "learning_rate", "grpo.beta": "beta"}
"""settings that a stage may override, with their names there"""
MAX_UNFOLDED = 12
"""rows of the table of stages that a report shows unfolded"""
MEASURES = {
    "faithfulness": "Does the summary say only what the post says?",
    "coverage": "Does it convey the key points of the post?",
    "conciseness": "Is it free of repetition and filler?",
    "clarity": "Is it well formed and easy to read?",
}
_SIZES = ("mean", "std", "min", "p50", "p90", "p95", "p99", "max")
_MAX_PROMPTS, _MAX_LETTERS = 2, 320


def data_tables(inputs: ReportInputs, *, prompts: str = "Prompt", references: bool = False) -> list[Table]:
    """Return Tables 1, 1b, 1c and 2: the splits, the lengths of prompts and references, and the first prompts.

    `prompts` is what the report calls a prompt; `references` says that every prompt of the task has one.
    """
    first = inputs.evaluations[0]
    corpora = {run.model: run for run in inputs.trained if run.info.corpus is not None}
    some = next(iter(corpora.values()), None)
    sizes: list[tuple[Cell, ...]] = []
    for split in ("train", "validation", "test"):
        if some is not None:
            cell = _corpus_cell(some, split, "examples")
        elif split == "test":
            cell = number(first.summary.n, plain(0), CellSource(first.folder / SUMMARY, "n"))
        else:
            cell = empty(train_command(inputs, inputs.models[0]))
        sizes.append((words(split.title()), cell))
    path = inputs.trained[0].config["data"]["path"] if inputs.trained else "the baselines' data"
    tables = [Table("1", f"Split sizes of {path}", ("Split", "Examples"), tuple(sizes))]
    for label, of, split, title in (
        ("1b", "references", "test", "Reference tokens, test split"),
        ("1c", "posts", "train", f"{prompts} tokens without system prompt, train split"),
    ):
        rows: list[tuple[Cell, ...]] = []
        for model in inputs.trainable:
            run = corpora.get(model)
            if run is not None and _corpus(run, split, of) is not None:
                rows.append((words(model), *(_corpus_cell(run, split, of, size) for size in _SIZES)))
            elif run is None and (of != "references" or references):
                rows.append((words(model), *[empty(train_command(inputs, model))] * len(_SIZES)))
        if rows:
            tables.append(Table(label, title, ("Tokenizer", *map(str.title, _SIZES)), tuple(rows)))
    return [*tables, _first_prompts(inputs, prompts)]


def _corpus(run: TrainedRun, *keys: str) -> Any:
    return reduce(getattr, keys, run.info.corpus)


def _corpus_cell(run: TrainedRun, *keys: str) -> Cell:
    """A number of the corpus in run.json, by its keys."""
    value = _corpus(run, *keys)
    digits = 1 if keys[-1] in ("mean", "std") else 0
    return number(value, plain(digits), CellSource(run.paths.info, f"corpus.{'.'.join(keys)}"))


def _first_prompts(inputs: ReportInputs, called: str) -> Table:
    columns: tuple[str, ...] = ("Example", f"{called} (truncated)", "Reference")
    title = f"The first {called.lower()}s with their references"
    for run in inputs.trained:
        path = run.paths.completions(1)
        try:
            asked = [row for row in read_lines(path, SampledRollout) if row.messages][:_MAX_PROMPTS]
        except SmolsumError:
            continue
        if not asked:
            continue
        if not any(row.references for row in asked):
            columns, title = columns[:2], f"The first {called.lower()}s"
        rows = tuple(
            (
                words(row.prompt_id),
                Cell(_excerpt(row.messages[-1].content), source=CellSource(path, "messages")),
                words(_excerpt(" / ".join(row.references))),
            )[: len(columns)]
            for row in asked
        )
        return Table("2", title, columns, rows)
    lack = empty(train_command(inputs, inputs.models[0]))
    if inputs.trained:
        lack = words("not known: no run has the completions of its first step whole")
    return Table("2", title, columns, ((lack,) * 3,))


def _excerpt(text: str) -> str:
    return shortened(" ".join(text.split()), _MAX_LETTERS)


def judged_metrics_tables(inputs: ReportInputs) -> list[Table]:
    """Return Table 3: what is judged, the score that passes, and the fingerprint of each prompt; nothing for a task
    without a judge."""
    if not inputs.criteria:
        return []
    judged = next((e for e in inputs.evaluations if e.judge), None)
    rows: list[tuple[Cell, ...]] = []
    for name in inputs.criteria:
        head = (words(name.title()), words(MEASURES.get(name, DASH.text)))
        if judged is None:
            rows.append((*head, *[empty(judge_command(inputs, inputs.evaluations[0]))] * 2))
            continue
        judging, path = judged.summary.judging or Judging(), judged.folder / SUMMARY
        threshold = number(judging.thresholds.get(name), plain(2), CellSource(path, f"judging.thresholds.{name}"))
        prompt = judging.prompts.get(name, DASH.text)[:8]
        rows.append((*head, threshold, Cell(prompt, source=CellSource(path, f"judging.prompts.{name}"))))
    n = len(inputs.criteria)
    rows.append((words("Composite"), words(f"Sum of all {n}, at most {n}.0"), DASH, DASH))
    note = f"Judge: {inputs.judge}." if inputs.judge else "No evaluation here has been judged."
    return [Table("3", "Judged metrics", ("Metric", "What it measures", "Passes from", "Prompt"), tuple(rows), (note,))]


def signals_table(inputs: ReportInputs, always: Sequence[str] = ()) -> Table:
    """Return Table 7: the signals that the runs use, and those of `always`."""
    used = dict.fromkeys(
        name
        for run in inputs.trained
        for stage in run.config["stages"].values()
        for name in (*stage["rewards"], *stage.get("rewards_end", ()))
    )
    own = {name: one for e in inputs.evaluations for name, one in e.summary.signals.items()}
    known = {name: (facts.title or name, facts.range, facts.meaning) for name, facts in FACTS.items()}
    known |= {name: (name, one.get("range", ""), one.get("meaning", "")) for name, one in own.items()}
    rows = []
    for name in dict.fromkeys((*always, *used)):
        described = known.get(name, (name, DASH.text, DASH.text))
        rows.append(tuple(map(words, (*described, "yes" if name in used else "no"))))
    return Table("7", "Reward signals", ("Signal", "Range", "What it measures", "Used here"), tuple(rows))


def settings_table(inputs: ReportInputs) -> Table:
    """Return Table 9: the settings, each with all its values in these runs."""
    rows = []
    for title, key in HYPERPARAMETERS:
        found: dict[str, CellSource] = {}
        for run in inputs.trained:
            if value := _value(run.config, key):
                found.setdefault(value, _source(run, key))
        if found:
            rows.append((words(title), Cell(" | ".join(found), source=next(iter(found.values())))))
        elif not inputs.trained:
            rows.append((words(title), empty(train_command(inputs, inputs.models[0]))))
        if key == BEFORE_EPOCHS and (epochs := _epochs_cell(inputs.trained)) is not None:
            rows.append((words(EPOCHS), epochs))
    several = "Several values: not all runs share it; the table of differences says which run has which."
    notes = [several] if len(inputs.trained) > 1 else []
    if any(", then " in row[1].text for row in rows):
        notes.append("Then: from stage to stage.")
    if any(row[0].text == EPOCHS for row in rows):
        notes.append(EPOCHS_NOTE)
    return Table("9", "GRPO hyperparameters", ("Hyperparameter", "Value"), tuple(rows), tuple(notes))


def _epochs(run: TrainedRun, stage: str) -> float | None:
    """The epochs of a stage over the training split, also where it takes some kinds of prompts more often than others;
    None if the size of the split or of a step is not known."""
    train, corpus = run.config.get("train", {}), run.info.corpus
    sizes = [train.get("prompts_per_step"), train.get("accumulation_steps", 1)]
    if corpus is None or not corpus.train.examples or not all(isinstance(size, int) for size in sizes):
        return None
    return float(run.info.steps[stage] * math.prod(sizes) / corpus.train.examples)


def _epochs_text(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _epochs_cell(runs: Sequence[TrainedRun]) -> Cell | None:
    """The epochs of the runs, each with all its stages; None if they are not known of any."""
    found = list[str]()
    for run in runs:
        known = [value for stage in run.info.steps if (value := _epochs(run, stage)) is not None]
        if len(known) == len(run.info.steps):
            texts = list(map(_epochs_text, known))
            found.append(", then ".join(texts) if len(set(texts)) > 1 else texts[0])
    return Cell(" | ".join(dict.fromkeys(found))) if found else None


def _value(config: Mapping[str, Any], key: str) -> str:
    """A setting by its dotted key, stage by stage if stages differ; empty if it is not set."""
    values = [str(_of_stage(config, stage, key)) for stage in config["stages"].values()]
    return ", then ".join(values) if len(set(values)) > 1 else "" if values[0] == "None" else values[0]


def _of_stage(config: Mapping[str, Any], stage: Mapping[str, Any], key: str) -> Any:
    """A setting as a stage has it: its own, or that of the whole run; None if neither has it."""
    section, _, name = key.partition(".")
    general = config.get(section, {}).get(name)
    if key not in OF_STAGES:
        return general
    value, end = stage.get(OF_STAGES[key], general), stage.get(f"{OF_STAGES[key]}_end")
    return f"{value} to {end} ({stage.get(f'{OF_STAGES[key]}_schedule')})" if end else value


def _source(run: TrainedRun, key: str) -> CellSource:
    stage = next(iter(run.config["stages"]))
    own = OF_STAGES.get(key)
    return CellSource(run.paths.config, f"stages.{stage}.{own}" if own in run.config["stages"][stage] else key)


def stage_settings_tables(inputs: ReportInputs, *, signals: bool = True, every: bool = False) -> list[Table]:
    """Return Table 9b: the stages of every run that has several, or of `every` run. Without `signals`, only of runs
    whose stages differ in more than their signals."""
    staged = [run for run in inputs.trained if every or _differ(run.config, signals=signals)]
    if not staged:
        return []
    mixed = any(stage.get("mix") for run in staged for stage in run.config["stages"].values())
    rows = [_stage(run, name, mixed=mixed) for run in staged for name in run.config["stages"]]
    mix = ("Mix of prompts",) if mixed else ()
    settings = ("Temperature", "Learning rate", "KL beta (β)", *mix, "Signals and weights")
    columns = ("Run", "Stage", "Steps", "Epochs", *settings)
    notes = (EPOCHS_NOTE,) if any(row[columns.index("Epochs")] is not DASH for row in rows) else ()
    return [Table("9b", "Stages", columns, tuple(rows), notes, folded=len(rows) > MAX_UNFOLDED)]


def _differ(config: Mapping[str, Any], *, signals: bool) -> bool:
    """Whether a table of stages says more than the table of settings."""
    if signals and len(config["stages"]) > 1:
        return True
    return any(
        stage.get("mix") or stage.get("rewards_end") or _of_stage(config, stage, key) != _of_stage(config, {}, key)
        for stage in config["stages"].values()
        for key in OF_STAGES
    )


def _stage(run: TrainedRun, name: str, *, mixed: bool) -> tuple[Cell, ...]:
    stage, path = run.config["stages"][name], run.paths.config

    def cell(text: str, field: str) -> Cell:
        return Cell(text, source=CellSource(path, f"stages.{name}.{field}"))

    own = [(_of_stage(run.config, stage, key), field) for key, field in OF_STAGES.items()]
    epochs = _epochs(run, name)
    return (
        words(run.name),
        words(name),
        number(run.info.steps[name], plain(0), CellSource(run.paths.info, f"steps.{name}")),
        DASH if epochs is None else number(epochs, _epochs_text),
        *(cell(DASH.text if value is None else str(value), field) for value, field in own),
        *([cell(_shares(stage.get("mix") or {}, stage.get("mix_end")), "mix")] if mixed else []),
        cell(_shares(stage["rewards"], stage.get("rewards_end")), "rewards"),
    )


def _shares(table: Mapping[str, float], end: Mapping[str, float] | None = None) -> str:
    """Shares or weights, from those of the first step to those of the last where these differ."""
    own = ", ".join(f"{name} {share:g}" for name, share in table.items()) or DASH.text
    return f"{own} to {_shares(end)}" if end else own


def differences_tables(inputs: ReportInputs) -> list[Table]:
    """Return Table S8: every setting that not all runs share."""
    flat = [leaves(run.config) for run in inputs.trained]
    rows = []
    for key in dict.fromkeys(key for settings in flat for key in settings if not key.startswith("run.")):
        if len({str(settings.get(key)) for settings in flat}) > 1:
            values = zip(inputs.trained, flat, strict=True)
            cells = (Cell(str(s.get(key, DASH.text)), source=CellSource(run.paths.config, key)) for run, s in values)
            rows.append((words(key), *cells))
    columns = ("Setting", *(run.name for run in inputs.trained))
    return [Table("S8", "Settings that differ", columns, tuple(rows), folded=True)] if rows else []
