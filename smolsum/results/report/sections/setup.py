"""What was done, and what a report rests on: data, judged metrics, signals and settings of the runs (Tables 1-3, 7, 9
and S8), provenance (S3), what was left out (S2), and the limits of what it shows."""

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from smolsum.config.differences import differing
from smolsum.config.presets import leaves
from smolsum.errors import SmolsumError
from smolsum.results.report.collect import LeftOut, ReportInputs, TrainedRun
from smolsum.results.report.document import DASH, Cell, CellSource, Table, empty, number, plain, shortened, table
from smolsum.results.report.results import ConfigurationResult
from smolsum.results.report.shell_commands import judge_command, train_command
from smolsum.rewards import FACTS
from smolsum.runs.evaluation_records import SUMMARY, Judging
from smolsum.runs.records import SampledRollout
from smolsum.runs.typed_json import read_lines

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


def data_tables(
    inputs: ReportInputs, *, prompts: str = "Prompt", references: bool = False, texts: bool = True
) -> list[Table]:
    """Return Tables 1, 1b, 1c and 2: the splits, the lengths of prompts and references, and the first prompts.

    `prompts` is what the report calls a prompt; `references` says that every prompt of the task has one. Without
    `texts` nothing has a text of the data: Table 2 is left out.
    """
    first = inputs.evaluations[0]
    corpora = {run.model: run for run in inputs.trained if run.info.corpus is not None}
    splits = ("train", "validation", "test")
    if some := next(iter(corpora.values()), None):
        sizes = [_corpus_cell(some, split, "examples") for split in splits]
    else:
        lack = empty(train_command(inputs, inputs.models[0]))
        sizes = [lack, lack, number(first.summary.n, plain(0), CellSource(first.folder / SUMMARY, "n"))]
    path = inputs.trained[0].config["data"]["path"] if inputs.trained else "the baselines' data"
    tables = [
        table("1", f"Split sizes of {path}", ("Split", "Examples"), zip(map(str.title, splits), sizes, strict=True))
    ]
    for label, of, split, title in (
        ("1b", "references", "test", "Reference tokens, test split"),
        ("1c", "posts", "train", f"{prompts} tokens without system prompt, train split"),
    ):
        lengths = []
        for model in inputs.trainable:
            if (of_model := corpora.get(model)) is None:
                if of != "references" or references:
                    lengths.append([model, *[empty(train_command(inputs, model))] * len(_SIZES)])
            elif _corpus(of_model, split, of) is not None:
                lengths.append([model, *(_corpus_cell(of_model, split, of, size) for size in _SIZES)])
        if lengths:
            tables.append(table(label, title, ("Tokenizer", *map(str.title, _SIZES)), lengths))
    return [*tables, _first_prompts(inputs, prompts)] if texts else tables


def _corpus(run: TrainedRun, *keys: str) -> Any:
    return reduce(getattr, keys, run.info.corpus)


def _corpus_cell(run: TrainedRun, *keys: str) -> Cell:
    """A number of the corpus in run.json, by its keys."""
    value = _corpus(run, *keys)
    digits = 1 if keys[-1] in ("mean", "std") else 0
    return number(value, plain(digits), CellSource(run.paths.info, f"corpus.{'.'.join(keys)}"))


def _first_prompts(inputs: ReportInputs, called: str) -> Table:
    columns, title = ("Example", f"{called} (truncated)", "Reference"), f"The first {called.lower()}s"
    for run in inputs.trained:
        path = run.paths.completions(1)
        try:
            asked = [row for row in read_lines(path, SampledRollout) if row.messages][:_MAX_PROMPTS]
        except SmolsumError:
            continue
        if not asked:
            continue
        rows = [
            [
                row.prompt_id,
                Cell(_excerpt(row.messages[-1].content), source=CellSource(path, "messages")),
                _excerpt(" / ".join(row.references)),
            ]
            for row in asked
        ]
        if any(row.references for row in asked):
            return table("2", f"{title} with their references", columns, rows)
        return table("2", title, columns[:2], (row[:2] for row in rows))
    unknown = Cell("not known: no run has the completions of its first step whole")
    lack = unknown if inputs.trained else empty(train_command(inputs, inputs.models[0]))
    return table("2", f"{title} with their references", columns, [[lack] * 3])


def _excerpt(text: str) -> str:
    return shortened(" ".join(text.split()), _MAX_LETTERS)


def judged_metrics_table(inputs: ReportInputs) -> Table:
    """Return Table 3: what is judged, the score that passes, and the fingerprint of each prompt; no row for a
    task without a judge."""
    judged = next((e for e in inputs.evaluations if e.judge), None)
    rows = []
    for name in inputs.criteria:
        cells = [empty(judge_command(inputs, inputs.evaluations[0]))] * 2
        if judged is not None:
            judging, path = judged.summary.judging or Judging(), judged.folder / SUMMARY
            threshold = number(judging.thresholds.get(name), plain(2), CellSource(path, f"judging.thresholds.{name}"))
            prompt = judging.prompts.get(name, DASH.text)[:8]
            cells = [threshold, Cell(prompt, source=CellSource(path, f"judging.prompts.{name}"))]
        rows.append([name.title(), MEASURES.get(name, DASH.text), *cells])
    if n := len(inputs.criteria):
        rows.append(["Composite", f"Sum of all {n}, at most {n}.0", DASH, DASH])
    note = f"Judge: {inputs.judge}." if inputs.judge else "No evaluation here has been judged."
    return table("3", "Judged metrics", ("Metric", "What it measures", "Passes from", "Prompt"), rows, note)


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
    rows = (
        [*known.get(name, (name, DASH.text, DASH.text)), "yes" if name in used else "no"]
        for name in dict.fromkeys((*always, *used))
    )
    return table("7", "Reward signals", ("Signal", "Range", "What it measures", "Used here"), rows)


def settings_table(inputs: ReportInputs) -> Table:
    """Return Table 9: the settings, each with all its values in these runs."""
    cells: dict[str, Cell] = {}
    for title, key in HYPERPARAMETERS:
        found: dict[str, CellSource] = {}
        for run in inputs.trained:
            if value := _value(run.config, key):
                found.setdefault(value, _source(run, key))
        if found:
            cells[title] = Cell(" | ".join(found), source=next(iter(found.values())))
        elif not inputs.trained:
            cells[title] = empty(train_command(inputs, inputs.models[0]))
        if key == BEFORE_EPOCHS and (epochs := _epochs_cell(inputs.trained)) is not None:
            cells[EPOCHS] = epochs
    several = "Several values: not all runs share it; the table of differences says which run has which."
    return table(
        "9",
        "GRPO hyperparameters",
        ("Hyperparameter", "Value"),
        cells.items(),
        several if len(inputs.trained) > 1 else "",
        "Then: from stage to stage." if any(", then " in cell.text for cell in cells.values()) else "",
        EPOCHS_NOTE if EPOCHS in cells else "",
    )


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


def stage_settings_table(inputs: ReportInputs, *, signals: bool = True, every: bool = False) -> Table:
    """Return Table 9b: the stages of every run that has several, or of `every` run. Without `signals`, only of runs
    whose stages differ in more than their signals."""
    staged = [run for run in inputs.trained if every or _differ(run.config, signals=signals)]
    mixed = any(stage.get("mix") for run in staged for stage in run.config["stages"].values())
    rows = [_stage(run, name, mixed=mixed) for run in staged for name in run.config["stages"]]
    settings = ("Temperature", "Learning rate", "KL beta (β)", *["Mix of prompts"] * mixed, "Signals and weights")
    columns = ("Run", "Stage", "Steps", "Epochs", *settings)
    note = EPOCHS_NOTE if any(row[columns.index("Epochs")] is not DASH for row in rows) else ""
    return table("9b", "Stages", columns, rows, note, folded=len(rows) > MAX_UNFOLDED)


def _differ(config: Mapping[str, Any], *, signals: bool) -> bool:
    """Whether a table of stages says more than the table of settings."""
    if signals and len(config["stages"]) > 1:
        return True
    return any(
        stage.get("mix") or stage.get("rewards_end") or _of_stage(config, stage, key) != _of_stage(config, {}, key)
        for stage in config["stages"].values()
        for key in OF_STAGES
    )


def _stage(run: TrainedRun, name: str, *, mixed: bool) -> list[object]:
    stage, path = run.config["stages"][name], run.paths.config

    def cell(text: str, field: str) -> Cell:
        return Cell(text, source=CellSource(path, f"stages.{name}.{field}"))

    own = [(_of_stage(run.config, stage, key), field) for key, field in OF_STAGES.items()]
    epochs = _epochs(run, name)
    return [
        run.name,
        name,
        number(run.info.steps[name], plain(0), CellSource(run.paths.info, f"steps.{name}")),
        number(epochs, _epochs_text),
        *(cell(DASH.text if value is None else str(value), field) for value, field in own),
        *([cell(_shares(stage.get("mix") or {}, stage.get("mix_end")), "mix")] if mixed else []),
        cell(_shares(stage["rewards"], stage.get("rewards_end")), "rewards"),
    ]


def _shares(table: Mapping[str, float], end: Mapping[str, float] | None = None) -> str:
    """Shares or weights, from those of the first step to those of the last where these differ."""
    own = ", ".join(f"{name} {share:g}" for name, share in table.items()) or DASH.text
    return f"{own} to {_shares(end)}" if end else own


def differences_table(inputs: ReportInputs) -> Table:
    """Return Table S8: every setting that not all runs share; those of a stage, between the runs that have it."""
    rows = []
    for key, texts in differing([leaves(run.config) for run in inputs.trained]).items():
        place = key if "." in key else "stages"  # what stages are rewarded for stands with them
        sources = [CellSource(run.paths.config, place) for run in inputs.trained]
        rows.append([key, *(Cell(text, source=source) for text, source in zip(texts, sources, strict=True))])
    columns = ("Setting", *(run.name for run in inputs.trained))
    return table("S8", "Settings that differ", columns, rows, folded=True)


def provenance_table(inputs: ReportInputs) -> Table:
    """Return Table S3: runs, test split, judge, versions and machines."""
    first = inputs.evaluations[0]
    path = first.folder / SUMMARY
    judge = Cell(inputs.judge) if inputs.judge else empty(judge_command(inputs, first))
    matchers = sorted({e.summary.meteor for e in inputs.evaluations if e.summary.meteor})
    versions = sorted({str(run.info.versions.get("smolsum")) for run in inputs.trained})
    machines = sorted({str(run.info.machine.get("system")) for run in inputs.trained})
    rows = [
        ("Runs", len(inputs.trained)),
        ("Baselines", len(inputs.baselines)),
        ("Models", ", ".join(inputs.models)),
        ("Test split fingerprint", Cell(str(first.scores.origin.get("data")), source=CellSource(path, "data"))),
        ("Examples", number(first.summary.n, plain(0), CellSource(path, "n"))),
        ("Judge", judge if inputs.criteria else "the task has no judge"),
        *([("METEOR", ", ".join(matchers))] if matchers else []),
        ("smolsum", ", ".join(versions) or DASH),
        ("Trained on", ", ".join(machines) or DASH),
    ]
    return table("S3", "Provenance", ("What", "Value"), rows)


def left_out_table(left_out: Sequence[LeftOut]) -> Table:
    """Return Table S2: what was given and is not in the report, with the reason."""
    rows = [(one.name, one.reason, one.command or DASH) for one in left_out]
    return table("S2", "Left out of this report", ("Run", "Why", "Command that helps"), rows)


def limits(inputs: ReportInputs, results: Sequence[ConfigurationResult]) -> list[str]:
    """Return what readers should keep in mind about these runs."""
    found = list(inputs.notices)
    if any(not one.seeds for one in results):
        found.append(
            "A configuration with one seed cannot show how much training varies; its p value is about examples."
        )
    if not inputs.criteria:
        found.append("Training and evaluation measure the same: a reward that can be satisfied by a trick rises too.")
    elif inputs.judge is None:
        found.append("No judge has scored these runs: lengths and overlap say little about quality.")
    else:
        found.append(f"Quality is the opinion of one judge ({inputs.judge}); no human has scored these summaries.")
    if any("exact+stem" in (e.summary.meteor or "") for e in inputs.evaluations):
        found.append("METEOR matched words and stems without WordNet's synonyms.")
    data = {run.config["data"]["path"] for run in inputs.trained}
    found.append(f"One data set ({', '.join(sorted(data)) or 'that of the baselines'}), one split, greedy decoding.")
    return found
