"""What was done, in the study's Tables 1-9: data, metrics, baselines and their tests, signals, settings.

The settings of runs: those that hold for all of one, and those that its stages have of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smolsum.config.study import REWARDS, SIGNALS, STRATEGIES
from smolsum.errors import SmolsumError
from smolsum.evaluate.tables import PASS_RATE
from smolsum.files import read_jsonl
from smolsum.report.commands import baseline_command, judge_command, train_command
from smolsum.report.document import (
    Cell,
    CellSource,
    Table,
    empty,
    letter,
    mark_best,
    number,
    p_value,
    percent,
    plain,
    signed,
    words,
)
from smolsum.report.records import asked as is_asked
from smolsum.report.sections.results import JUDGED, NOT_DONE, not_here
from smolsum.report.study import CRITERIA, Evaluation, Study, Trained
from smolsum.runs.records import SUMMARY
from smolsum.stats.loading import Arm
from smolsum.stats.paired import ALPHA
from smolsum.stats.seeds import compare_runs
from smolsum.types import COMPOSITE

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
        found: dict[str, CellSource] = {}
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


def _source(run: Trained, key: str) -> CellSource:
    stage = next(iter(run.config["stages"]))
    own = OF_STAGES.get(key)
    return CellSource(run.paths.config, f"stages.{stage}.{own}" if own in run.config["stages"][stage] else key)


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
        Cell(NOT_DONE if value is None else str(value), source=CellSource(config, f"stages.{name}.{OF_STAGES[key]}"))
        for key in OF_STAGES
        for value in [_of_stage(run.config, stage, key)]
    ]
    mix = Cell(_shares(stage.get("mix") or {}), source=CellSource(config, f"stages.{name}.mix"))
    return (
        words(run.paths.name),
        words(name),
        number(run.info["steps"][name], plain(0), CellSource(run.paths.info, f"steps.{name}")),
        *own,
        *([mix] if mixed else []),
        Cell(_shares(stage["rewards"]), source=CellSource(config, f"stages.{name}.rewards")),
    )


def _shares(table: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:g}" for name, share in table.items()) or NOT_DONE


MEASURES = {
    "faithfulness": "Does the summary say only what the post says?",
    "coverage": "Does it convey the key points of the post?",
    "conciseness": "Is it free of repetition and filler?",
    "clarity": "Is it well formed and easy to read?",
}
VARIANTS = ("50-words", "64-tokens")
"""the prompts of the study's baselines (Table 4)"""
_SIZES = ("mean", "std", "min", "p50", "p90", "p95", "p99", "max")
_SHOWN_POSTS, _EXCERPT = 2, 320


def data_tables(study: Study) -> list[Table]:
    """Returns Tables 1, 1b, 1c and 2: the splits, how long posts and references are, and the first posts."""
    sizes: list[tuple[Cell, ...]] = []
    first = study.evaluations[0]
    corpora = {run.model: run for run in study.trained if "corpus" in run.info}
    some = next(iter(corpora.values()), None)
    again = train_command(study, study.models[0])
    for split in ("train", "validation", "test"):
        if some is not None:
            source = CellSource(some.paths.info, f"corpus.{split}.examples")
            cell = number(some.info["corpus"][split]["examples"], plain(0), source)
        elif split == "test":
            cell = number(first.summary["n"], plain(0), CellSource(first.folder / SUMMARY, "n"))
        else:
            cell = empty(again)
        sizes.append((words(split.title()), cell))
    path = study.trained[0].config["data"]["path"] if study.trained else "the baselines' data"
    tables = [Table("1", f"Split sizes of {path}", ("Split", "Examples"), tuple(sizes))]
    asked = "Post" if study.repeats else "Prompt"
    for label, of, split, title in (
        ("1b", "references", "test", "Reference tokens, test split"),
        ("1c", "posts", "train", f"{asked} tokens without system prompt, train split"),
    ):
        rows: list[tuple[Cell, ...]] = []
        for model in study.trainable:
            run = corpora.get(model)
            if run is None and of == "references" and not study.repeats:  # other tasks may have none
                continue
            if run is None:
                rows.append((words(model), *[empty(train_command(study, model))] * len(_SIZES)))
                continue
            table = run.info["corpus"][split].get(of)
            if table is None:  # a task without references
                continue
            cells = [
                number(
                    table[key],
                    plain(1 if key in ("mean", "std") else 0),
                    CellSource(run.paths.info, f"corpus.{split}.{of}.{key}"),
                )
                for key in _SIZES
            ]
            rows.append((words(model), *cells))
        if rows:
            tables.append(Table(label, title, ("Tokenizer", *(key.title() for key in _SIZES)), tuple(rows)))
    return [*tables, _samples(study, asked)]


def _samples(study: Study, called: str) -> Table:
    columns: tuple[str, ...] = ("Example", f"{called} (truncated)", "Reference")
    title = f"The first {called.lower()}s with their references"
    for run in study.trained:
        path = run.paths.completions(1)
        try:
            asked = [row for row in read_jsonl(path) if is_asked(row)][:_SHOWN_POSTS]
        except SmolsumError:
            continue
        if not asked:
            continue
        if not any(row["references"] for row in asked):  # a task without references
            columns, title = columns[:2], f"The first {called.lower()}s"
        rows = tuple(
            (
                words(row["prompt_id"]),
                Cell(_excerpt(row["messages"][-1]["content"]), source=CellSource(path, "messages")),
                words(_excerpt(" / ".join(row["references"]))),
            )[: len(columns)]
            for row in asked
        )
        return Table("2", title, columns, rows)
    lack = empty(train_command(study, study.models[0]))
    if study.trained:
        lack = words("not known: no run has the completions of its first step whole")
    return Table("2", title, columns, ((lack,) * 3,))


def _excerpt(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= _EXCERPT else one_line[: _EXCERPT - 1] + "…"


def metrics_tables(study: Study) -> list[Table]:
    """Returns Table 3: what is judged, from which score it passes, and the fingerprint of each question; nothing where
    the task has no judge."""
    if not study.criteria:
        return []
    judged = next((e for e in study.evaluations if e.judge), None)
    rows: list[tuple[Cell, ...]] = []
    for name in study.criteria:
        if judged is None:
            blank = empty(judge_command(study, study.evaluations[0]))
            rows.append((words(name.title()), words(MEASURES.get(name, NOT_DONE)), blank, blank))
            continue
        facts, path = judged.summary["judging"], judged.folder / SUMMARY
        rows.append(
            (
                words(name.title()),
                words(MEASURES.get(name, NOT_DONE)),
                number(facts["thresholds"].get(name), plain(2), CellSource(path, f"judging.thresholds.{name}")),
                Cell(str(facts["prompts"].get(name, NOT_DONE))[:8], source=CellSource(path, f"judging.prompts.{name}")),
            )
        )
    n = len(study.criteria)
    rows.append((words("Composite"), words(f"Sum of all {n}, at most {n}.0"), words(NOT_DONE), words(NOT_DONE)))
    note = f"Judge: {study.judge}." if study.judge else "No evaluation here has been judged."
    return [Table("3", "Judged metrics", ("Metric", "What it measures", "Passes from", "Prompt"), tuple(rows), (note,))]


def baseline_tables(study: Study) -> list[Table]:
    """Returns Table 4, the untrained models told a length in the prompt, and a test of the two prompts (5, 6); nothing
    where the task is another one, whose baselines are among the headline metrics."""
    if not study.repeats:
        return []
    rows: list[tuple[Cell, ...]] = []
    tests = []
    for place, model in enumerate(study.models):
        mine = {e.variant: e for e in study.baselines if e.model == model}
        for variant in dict.fromkeys((*VARIANTS, *sorted(mine))):
            told = f"baseline-{variant}" if variant in VARIANTS else variant
            if (found := mine.get(variant)) is None:
                blank = empty(baseline_command(study, model, variant))
                rows.append((words(model), words(told), *[blank] * len(JUDGED)))
                continue
            ask = judge_command(study, found)
            cells = [number(found.metric(k), plain(3), found.source(k), command=ask) for k in (COMPOSITE, *CRITERIA)]
            passes = number(found.metric(PASS_RATE), percent, found.source(PASS_RATE), command=ask)
            rows.append((words(model), words(told), *cells, passes))
        # the study tests Qwen first
        label = str(6 - place if len(study.models) > 1 else 5) if place < 2 else f"6{letter(place - 2)}"
        tests.append(_prompts_table(label, model, study, [mine.get(variant) for variant in VARIANTS]))
    columns = ("Model", "Prompt", "Composite", *map(str.title, CRITERIA), "Pass Rate")
    table = Table("4", "Untrained models, told the length in the prompt", columns, mark_best(rows, range(2, 8)))
    return [table, *sorted(tests, key=lambda one: one.number)]


def _prompts_table(label: str, model: str, study: Study, pair: Sequence[Evaluation | None]) -> Table:
    one, two = pair
    rows: list[tuple[Cell, ...]] = []
    for key in (*CRITERIA, COMPOSITE):
        if one is None or two is None or not all(key in e.scores.metrics for e in (one, two)):
            rows.append((words(key.title()), *[empty(baseline_command(study, model))] * 6))
            continue
        sides = [Arm(e.folder.name, (e.scores,)) for e in (one, two)]
        values = [side.values(key, sides[0].ids) for side in sides]
        result = compare_runs(values[0], values[1], alternative="two-sided").result
        rows.append(
            (
                words(key.title()),
                number(result.mean_a, plain(4), one.source(key)),
                number(result.mean_b, plain(4), two.source(key)),
                number(result.delta, signed(4)),
                words(NOT_DONE) if result.note else number(result.t, plain(4)),
                words(NOT_DONE) if result.note == "constant" else number(result.p, p_value),
                words("✓" if result.p < ALPHA else "✗"),
            )
        )
    title = f"{model} - paired t-test, {VARIANTS[1]} minus {VARIANTS[0]}"
    return Table(label, title, ("Metric", *VARIANTS, "Δ", "t", "p", "Sig"), tuple(rows))


def method_tables(study: Study) -> list[Table]:
    """Returns Tables 7-9: signals, the study's configurations with the runs that have them, settings, stages (9b)."""
    used = dict.fromkeys(
        name for run in study.trained for stage in run.config["stages"].values() for name in stage["rewards"]
    )
    shown = dict.fromkeys((*SIGNALS, *used)) if study.repeats else used
    own = {name: one for e in study.evaluations for name, one in e.summary.get("signals", {}).items()}
    told = {name: (name, one["range"], one["meaning"]) for name, one in own.items()} | SIGNALS
    signals = tuple(
        tuple(words(text) for text in (*told.get(name, (name, *[NOT_DONE] * 2)), "yes" if name in used else "no"))
        for name in shown
    )
    tables = [Table("7", "Reward signals", ("Signal", "Range", "What it measures", "Used here"), signals)]
    configurations = [_configurations(study)] if study.repeats else []
    return [*tables, *configurations, settings_table(study), *stages_tables(study)]


def _configurations(study: Study) -> Table:
    rows = []
    for reward, names in REWARDS.items():
        cells = [words(reward), words(" + ".join(SIGNALS[name][0] for name in names))]
        for strategy in STRATEGIES:
            runs = [run for run in study.trained if (run.strategy, run.reward) == (strategy, reward)]
            source = CellSource(runs[0].paths.config, "stages") if runs else None
            filled = Cell(", ".join(run.paths.name for run in runs), source=source)
            cells.append(filled if runs else not_here(study, study.models, strategy, reward))
        rows.append(tuple(cells))
    columns = ("Configuration", "Signals", *(s.capitalize() for s in STRATEGIES.values()))
    return Table("8", "Reward configurations", columns, tuple(rows))
