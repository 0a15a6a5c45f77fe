"""What the study does not have: judge noise, rescued examples, errors, cost, settings that differ, samples, limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from smolsum.report.commands import judge_command
from smolsum.report.document import Cell, CellSource, Table, empty, letter, number, p_value, plain, words
from smolsum.report.results import ConfigurationResult, baseline_of
from smolsum.report.sections.results import NOT_DONE
from smolsum.report.study import LeftOut, Study, Trained
from smolsum.runs.records import SUMMARY
from smolsum.types import COMPOSITE

SAMPLES = 20
_LONGEST = 420


def left_out_table(left_out: Sequence[LeftOut]) -> Table:
    """Returns what was asked for and is not in the report, with why."""
    rows = tuple((words(one.name), words(one.reason), words(one.command or NOT_DONE)) for one in left_out)
    return Table("S2", "Left out of this report", ("Run", "Why", "Command that helps"), rows)


def provenance_table(study: Study) -> Table:
    """Returns what all of the report rests on."""
    first = study.evaluations[0]
    judge = Cell(study.judge) if study.judge else empty(judge_command(study, first))
    if not study.criteria:
        judge = words("the task asks none")
    data = str(first.scores.origin.get("data"))
    rows = [
        (words("Runs"), words(len(study.trained))),
        (words("Baselines"), words(len(study.baselines))),
        (words("Models"), words(", ".join(study.models))),
        (words("Test split fingerprint"), Cell(data, source=CellSource(first.folder / SUMMARY, "data"))),
        (words("Examples"), number(first.summary["n"], plain(0), CellSource(first.folder / SUMMARY, "n"))),
        (words("Judge"), judge),
    ]
    if matchers := sorted({str(e.summary["meteor"]) for e in study.evaluations if e.summary.get("meteor")}):
        rows.append((words("METEOR"), words(", ".join(matchers))))
    versions = sorted({str(run.info.get("versions", {}).get("smolsum")) for run in study.trained})
    machines = sorted({str(run.info.get("machine", {}).get("system")) for run in study.trained})
    rows.append((words("smolsum"), words(", ".join(versions) or NOT_DONE)))
    rows.append((words("Trained on"), words(", ".join(machines) or NOT_DONE)))
    return Table("S3", "Provenance", ("What", "Value"), tuple(rows))


def noise_table(study: Study) -> Table:
    """Returns how far the judge agrees with itself from round to round."""
    rows: list[tuple[Cell, ...]] = []
    for evaluation in study.evaluations:
        name = evaluation.folder.parents[1].name if evaluation.step is not None else evaluation.folder.name
        noise = evaluation.summary.get("judging", {}).get("noise", {})
        path, ask = evaluation.folder / SUMMARY, judge_command(study, evaluation)
        cells = [words(name)]
        for key in (*study.criteria, COMPOSITE):
            found = noise.get(key, {})
            for part in ("round_sd", "icc") if key == COMPOSITE else ("round_sd",):
                source = CellSource(path, f"judging.noise.{key}.{part}")
                value = found.get(part)
                known = value is not None or not evaluation.judge
                cells.append(number(value, plain(3), source, command=ask) if known else words(NOT_DONE))
        missing = evaluation.summary.get("judging", {}).get("missing")
        source = CellSource(path, "judging.missing")
        cells.append(number(None if missing is None else len(missing), plain(0), source, command=ask))
        rows.append(tuple(cells))
    columns = ("Evaluation", *map(str.title, study.criteria), "Composite", "Composite ICC", "Failed judgements")
    note = (
        "Standard deviation of a score between rounds of one example; ICC(1,1): share of variance between examples; "
        "one round has neither."
    )
    return Table("S4", "Judge noise", columns, tuple(rows), (note,))


def flips_table(study: Study, outcomes: Sequence[ConfigurationResult]) -> Table:
    """Returns the examples that training rescued and those that it regressed, against the length-only baseline."""
    rows: list[tuple[Cell, ...]] = []
    for one in outcomes:
        head = (words(one.model), words(one.name))
        baseline = baseline_of(study, one.model)
        if one.flips is None and any(len(o.evaluations) > 1 for o in (one, baseline) if o is not None):
            rows.append((*head, *[words(NOT_DONE)] * 3, words("several seeds")))
            continue
        if one.flips is None:
            rows.append((*head, *[empty(judge_command(study, one.evaluations[0]))] * 4))
            continue
        assert baseline is not None
        ids = baseline.side.ids
        before, after = (side.values("passed", ids)[0] for side in (baseline.side, one.side))
        changed = [
            [str(key) for key, was, now in zip(ids["id"], before, after, strict=True) if now - was == by]
            for by in (1, -1)
        ]
        listed = "; ".join(
            f"{what} {', '.join(names[:3])}{'…' if len(names) > 3 else ''}"
            for what, names in zip(("rescued", "regressed"), changed, strict=True)
            if names
        )
        flips = one.flips
        rows.append(
            (
                *head,
                number(flips.gained, plain(0)),
                number(flips.lost, plain(0)),
                number(flips.p, p_value),
                words(listed or NOT_DONE),
            )
        )
    columns = ("Model", "Configuration", "Rescued", "Regressed", "p (McNemar)", "Which")
    note = "Rescued: passes most rounds now and did not with the length-only baseline; regressed: the reverse."
    return Table("S5", "Rescued and regressed examples", columns, tuple(rows), (note,))


def cost_table(study: Study) -> Table:
    """Returns what each run took: steps, time by part, memory; and what its judge took."""
    rows = [
        (
            words(run.paths.name),
            number(len(run.metrics), plain(0), CellSource(run.paths.metrics, "step"))
            if run.metrics
            else words(NOT_DONE),
            *(_spent(run, key) for key in ("perf/step_s", "perf/rollout_s", "perf/fwd_bwd_s")),
            _peak(run),
            *(_paid(study, run) if study.criteria else ()),
        )
        for run in study.trained
    ]
    columns = ("Run", "Steps", "Minutes", "Minutes sampling", "Minutes updating", "Peak GB")
    judged = ("Judge calls", "Tokens in", "Tokens out", "Dollars") if study.criteria else ()
    return Table("S7", "Cost and time", (*columns, *judged), tuple(rows))


def _paid(study: Study, run: Trained) -> tuple[Cell, ...]:
    """What the judge of a run took."""
    usage = run.last.summary.get("judging", {}).get("usage", {})
    judged, source = judge_command(study, run.last), CellSource(run.last.folder / SUMMARY, "judging.usage")
    counts = [
        number(usage.get(key), plain(0), source, command=judged) for key in ("calls", "input_tokens", "output_tokens")
    ]
    if usage and usage.get("dollars") is None:
        return (*counts, words("price unknown"))
    return (*counts, number(usage.get("dollars"), plain(2), source, command=judged))


def _column(run: Trained, key: str) -> list[float]:
    return [float(row[key]) for row in run.metrics if isinstance(row.get(key), int | float)]


def _spent(run: Trained, key: str) -> Cell:
    values = _column(run, key)
    return (
        number(math.fsum(values) / 60, plain(1), CellSource(run.paths.metrics, f"sum of {key}"))
        if values
        else words(NOT_DONE)
    )


def _peak(run: Trained) -> Cell:
    values = _column(run, key := "perf/peak_memory_gb")
    return number(max(values), plain(2), CellSource(run.paths.metrics, f"max of {key}")) if values else words(NOT_DONE)


def differences_table(study: Study) -> Table:
    """Returns every setting that not all runs share."""
    flat = [_flat(run.config) for run in study.trained]
    keys = dict.fromkeys(key for settings in flat for key in settings if not key.startswith("run."))
    rows = [
        (
            words(key),
            *(
                Cell(str(s.get(key, NOT_DONE)), source=CellSource(run.paths.config, key))
                for run, s in zip(study.trained, flat, strict=True)
            ),
        )
        for key in keys
        if len({str(settings.get(key)) for settings in flat}) > 1
    ]
    columns = ("Setting", *(run.paths.name for run in study.trained))
    return Table("S8", "Settings that differ", columns, tuple(rows), folded=True)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def samples_tables(study: Study, outcomes: Sequence[ConfigurationResult]) -> list[Table]:
    """Returns, for each model, completions of the same examples side by side; the examples are spread evenly over the
    split."""
    several = len(study.models) > 1
    tables = [
        _samples(f"S9{letter(place) if several else ''}", study, outcomes, model)
        for place, model in enumerate(study.models)
    ]
    return [table for table in tables if table.rows]


def _samples(label: str, study: Study, outcomes: Sequence[ConfigurationResult], model: str) -> Table:
    found = [*filter(None, [baseline_of(study, model)]), *(one for one in outcomes if one.model == model)]
    shown = [(one.name, one.evaluations[0]) for one in found]
    shown = shown or [(e.folder.name, e) for e in study.baselines if e.model == model]
    ids = shown[0][1].scores.frame["id"].to_list() if shown else []
    picked = ids[:: max(1, math.ceil(len(ids) / SAMPLES))]
    rows = []
    for key in picked:
        cells = [words(key)]
        for _, evaluation in shown:
            text = evaluation.texts.get(key, "")
            cut = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
            cells.append(Cell(cut or "(empty)", source=CellSource(evaluation.folder / "scores.jsonl", key)))
        rows.append(tuple(cells))
    columns = ("Example", *(name for name, _ in shown))
    return Table(label, f"Completions side by side, {model}", columns, tuple(rows), folded=True)


def limits(study: Study, outcomes: Sequence[ConfigurationResult]) -> list[str]:
    """Returns what a reader should keep in mind about these very runs."""
    said = list(study.notices)
    if any(len(one.evaluations) == 1 for one in outcomes):
        said.append(
            "A configuration with one seed cannot show how much training varies; its p value is about examples."
        )
    if not study.criteria:
        said.append("Training and evaluation measure the same: a reward that can be satisfied by a trick rises too.")
    elif study.judge is None:
        said.append("No judge has scored these runs: lengths and overlap say little about quality.")
    else:
        said.append(f"Quality is the opinion of one judge ({study.judge}); no human has scored these summaries.")
    if any("exact+stem" in str(e.summary.get("meteor")) for e in study.evaluations):
        said.append("METEOR matched words and stems without WordNet's synonyms.")
    data = {run.config["data"]["path"] for run in study.trained}
    said.append(f"One data set ({', '.join(sorted(data)) or 'that of the baselines'}), one split, greedy decoding.")
    return said
