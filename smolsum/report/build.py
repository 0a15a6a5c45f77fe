"""The order of a report: what was found, the results, how they came about, and the provenance. To add a
table, write a function that returns it in `sections/` and list it here.

A number without S is that of the study's own table or figure. S0 to S15 are taken, and those from S16 on number the
results of a third and later model (`result_tables` in `sections/paper.py`): a new table takes S16, and lets those begin
one later; one for each model or panel adds a letter. A cell that no run fills names the command that would
(`shell_commands.py`). The same runs give the same bytes.
"""

from collections.abc import Sequence

from smolsum.report.collect import ReportInputs
from smolsum.report.document import Figure, Item, Page, Section
from smolsum.report.outcomes import compared, journeys
from smolsum.report.results import configuration_results
from smolsum.report.sections import (
    difficulty,
    findings,
    judge,
    lengths,
    paper,
    provenance,
    published,
    scores,
    setup,
    targets,
    trade_off,
    training,
)
from smolsum.rewards import REWARDS


def build(inputs: ReportInputs) -> Page:
    """Return the whole report; the same inputs give the same page. Runs that follow the study have its tables too."""
    results = configuration_results(inputs)
    study = inputs.follows_study
    metrics = compared(inputs)
    ways = journeys(inputs, results, metrics)
    sections: list[tuple[str, Sequence[Item]]] = [
        ("What was found", findings.findings_items(inputs, ways, metrics)),
        (
            "Results",
            [
                *(paper.result_tables(inputs, results) if study else training.change_tables(inputs)),
                scores.headlines_table(inputs),
                *scores.other_evaluations_table(inputs),
                *([] if study else [*scores.side_by_side(inputs), *scores.panels_tables(inputs)]),
            ],
        ),
        (
            "Quality, length and errors",
            [
                *targets.targets_items(inputs),
                *lengths.histogram_figures(inputs, ways),
                *lengths.validity_tables(ways),
                *difficulty.difficulty_figures(ways),
                *(paper.length_figures(inputs, results) if study else []),
                scores.errors_table(inputs, results),
                *training.error_figures(inputs),
                *([paper.flips_table(inputs, results)] if study else training.stage_results_tables(inputs)),
            ],
        ),
        ("Constraint and quality", trade_off.trade_off_items(inputs, metrics)),
        ("Baselines", paper.baseline_tables(inputs) if study else []),
        ("Published figures", published.published_tables(inputs, results) if study else []),
        ("Training", training.curve_figures(inputs, [paper.WATCHED] if study else [])),
        ("Correlations", paper.correlation_figures(inputs, results) if study else []),
        ("The judge", [judge.noise_table(inputs), *judge.reward_figures(results)] if inputs.criteria else []),
        ("Cost", [training.cost_table(inputs)]),
        ("Samples", scores.samples_tables(inputs, results)),
        ("Data", setup.data_tables(inputs, prompts="Post" if study else "Prompt", references=study)),
        ("Evaluation", setup.judged_metrics_tables(inputs)),
        (
            "Method",
            [
                setup.signals_table(inputs, tuple(REWARDS) if study else ()),
                *([paper.configurations_table(inputs)] if study and inputs.has_references else []),
                setup.settings_table(inputs),
                *setup.stage_settings_tables(inputs, signals=not study),
            ],
        ),
        ("Settings", setup.differences_tables(inputs)),
    ]
    shown = [(title, tuple(filter(_has_content, items))) for title, items in sections]
    kept = [Section(title, items) for title, items in shown if items]
    kept.append(Section("Limits", (), tuple(provenance.limits(inputs, results))))
    if inputs.left_out:
        kept.append(Section("Left out", (provenance.left_out_table(inputs.left_out),)))
    kept.append(Section("Provenance", (provenance.provenance_table(inputs),)))
    verdict = findings.verdict(inputs, ways, metrics)
    return Page(f"smolsum report: {', '.join(inputs.models)}", verdict, tuple(kept))


def _has_content(item: Item) -> bool:
    """Whether there is something to show: a table of comparisons has no rows where nothing is compared."""
    return isinstance(item, Figure) or bool(item.rows)
