"""The model card of an exported policy: its results with intervals, how to use it, how it came about, and its limits.

Its tables are those of a report about the evidence next to it, so that each number has its file. The metadata follow
the hub's model cards (`model-index`).
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from smolsum.config.hub import HubName, hub_name
from smolsum.errors import UsageError
from smolsum.results.report.collect import ReportInputs, TrainedRun, gather
from smolsum.results.report.compatibility import comparable
from smolsum.results.report.document import DASH, Figure, Item, Section, Table
from smolsum.results.report.outcomes import StageOutcomes, compared, stage_outcomes
from smolsum.results.report.results import configuration_results
from smolsum.results.report.sections import findings, scores, setup, training
from smolsum.results.report.write import figures, printable, section_lines, templates
from smolsum.runs.evaluation_records import SUMMARY
from smolsum.runs.paths import RunPaths

CARD = "README.md"
FIGURES = "figures/"
PLACE = "OWNER/NAME"
"""stands for the repository until it is known"""


@dataclass(frozen=True)
class CardFacts:
    """What a card says of the exported files; the rest is in the evidence."""

    title: str
    step: int
    parameters: int
    dtype: str
    system: str = ""
    """the system message that the chat template applies"""
    license: str = ""
    adapter: bool = False
    """whether only adapters were exported, for the base model"""
    own_template: bool = False
    """whether the base has no chat template, or another one than the adapters were trained with"""
    file: str = ""
    """the GGUF file that was exported; empty for the Hugging Face layout"""


def card_files(evidence: RunPaths, facts: CardFacts, folder: Path) -> dict[str, str]:
    """Return the card and its figures by their names in `folder`, which holds the evidence. Raises UsageError where the
    evidence has no evaluation of that step on the test split."""
    found = gather([str(evidence.root)], evidence.root.parent)
    if not found.trained:
        reason = found.left_out[0].reason.replace(f"{evidence.root}/", "")
        raise UsageError(f"{evidence.name} has no results for a card: {reason}", hint="smolsum eval makes them")
    inputs = comparable(found)
    run, results, metrics = inputs.trained[0], configuration_results(inputs), compared(inputs)
    outcomes = stage_outcomes(inputs, results, metrics)
    first, *others = sections = [printable(one) for one in _sections(inputs, outcomes)]
    limits = Section("Limits", (), tuple(setup.limits(inputs, results)))
    # more marks than the message has in a row, so that tags and Markdown in it are shown as they are
    marks = max(3, 1 + max(map(len, re.findall("`+", facts.system)), default=0))
    card = (
        templates(escaped=False)
        .get_template("card.md.j2")
        .render(
            metadata=_metadata(run, outcomes, facts, folder),
            facts=facts,
            run=run,
            size=_size(facts.parameters),
            verdict=findings.verdict(inputs, outcomes, metrics),
            results="\n".join(section_lines(first, folder, FIGURES)),
            base=_on_hub(run, "model"),
            place=PLACE,
            fence="`" * marks,
            others="\n".join(line for one in (*others, limits) for line in section_lines(one, folder, FIGURES)),
        )
    )
    drawn = {f"{FIGURES}{name}": svg for name, svg in figures(sections).items()}
    return {CARD: card, **drawn}


def _sections(inputs: ReportInputs, outcomes: Sequence[StageOutcomes]) -> list[Section]:
    """The sections of a report that say what one run did."""
    metrics = compared(inputs)
    judged = (
        [scores.judged_scores_table(inputs), scores.noise_table(inputs), setup.judged_metrics_table(inputs)]
        if inputs.judge
        else []
    )
    found: list[tuple[str, Iterable[Item]]] = [
        (
            "Results",
            [
                *findings.findings_items(inputs, outcomes, metrics, advice=False),
                scores.headlines_table(inputs),
                training.stage_results_table(inputs),
                scores.other_evaluations_table(inputs),
                *judged,
            ],
        ),
        (
            "Training",
            [
                setup.stage_settings_table(inputs, every=True),
                setup.signals_table(inputs),
                setup.settings_table(inputs),
                training.cost_table(inputs),
                *training.curve_figures(inputs),
            ],
        ),
        # a published card must not have texts of the data
        ("Data", setup.data_tables(inputs, texts=False)),
    ]
    numbers = {Table: count(1), Figure: count(1)}
    return [
        Section(title, tuple(replace(item, number=str(next(numbers[type(item)]))) for item in _filled(items)))
        for title, items in found
    ]


def _filled(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items without what a report would ask its reader to run, and without empty rows and columns."""
    for item in items:
        if isinstance(item, Figure):
            yield item
        elif item.filled:
            rows = [[DASH if cell.command else cell for cell in row] for row in item.filled]
            kept = [place for place, column in enumerate(zip(*rows, strict=True)) if any(c != DASH for c in column)]
            names = tuple(item.columns[place] for place in kept)
            yield replace(item, columns=names, rows=tuple(tuple(row[place] for place in kept) for row in rows))


def _size(count: int) -> str:
    """A number of parameters in words, with two significant digits."""
    unit, name = (1e9, "billion") if count >= 1e9 else (1e6, "million")
    return f"{count / unit:.2g} {name}" if count < 100 * unit else f"{count / unit:.0f} {name}"


def _on_hub(run: TrainedRun, section: str) -> HubName | None:
    """Return the hub's name of the model or the data; None for a path, which may look like one."""
    path = str(run.config[section]["path"])
    return hub_name(path) if path in run.info.revisions else None


def _metadata(run: TrainedRun, outcomes: Sequence[StageOutcomes], facts: CardFacts, folder: Path) -> str:
    """The card's metadata as YAML."""
    from huggingface_hub import EvalResult, ModelCardData

    base, data = (_on_hub(run, section) for section in ("model", "data"))
    summary, changes = run.last.summary, outcomes[0].end.changes if outcomes else {}
    source = (run.last.folder / SUMMARY).relative_to(folder).as_posix()
    results = []
    for headline in summary.headlines:
        if (value := summary.metrics.get(headline.metric)) is None:
            continue
        arguments: dict[str, Any] = {"n": summary.n, "file": source, "field": f"metrics.{headline.metric}"}
        change = changes.get(headline.metric)
        if change is not None and math.isfinite(change.low):
            arguments["interval_95"] = [change.low, change.high]
        path = str(run.config["data"]["path"])
        results.append(
            EvalResult(
                task_type="text-generation",
                task_name=run.config["task"]["name"],
                dataset_type=data.id if data else path,
                dataset_name=path,
                dataset_split=run.config["data"]["test_split"],
                metric_type=headline.metric,
                metric_name=headline.title,
                metric_value=value,
                metric_args=arguments,
            )
        )
    card = ModelCardData(
        model_name=facts.title,
        base_model=base.id if base else None,
        datasets=[data.id] if data else None,
        license=facts.license or None,
        library_name="gguf" if facts.file else "mlx" if facts.adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["smolsum", "grpo", "gguf" if facts.file else "mlx"],
        eval_results=results,
    )
    if base:
        card["base_model_relation"] = "adapter" if facts.adapter else "finetune"
    return str(card.to_yaml())
