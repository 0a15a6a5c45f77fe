"""The order of a report: what was found, the results, how they came about, and the provenance. To add a
table, write a function that returns it in `sections/` and list it here.

A number without S is that of the study's own table or figure. S0 to S19 are taken, and those from S20 on number the
results of a fourth and later model (`result_tables` in `sections/paper.py`): a new table takes S20, and lets those
begin one later; one for each model or panel adds a letter. A cell that no run fills names the command that would
(`shell_commands.py`). The same runs give the same bytes.
"""

from collections.abc import Iterable

from smolsum.results.analysis_plan import AnalysisPlan
from smolsum.results.report.collect import ReportInputs
from smolsum.results.report.document import Figure, Item, Page, Section
from smolsum.results.report.outcomes import compared, stage_outcomes
from smolsum.results.report.results import configuration_results
from smolsum.results.report.sections import findings, lengths, paper, planned, scores, setup, training
from smolsum.rewards import REWARDS


def build(inputs: ReportInputs, plan: AnalysisPlan | None = None) -> Page:
    """Return the whole report; the same inputs give the same page. Runs that follow the study have its tables too. With
    a plan, the report says what was planned and what was looked at afterwards."""
    results = configuration_results(inputs)
    study = inputs.follows_study
    metrics = compared(inputs)
    outcomes = stage_outcomes(inputs, results, metrics)
    sections: list[tuple[str, Iterable[Item]]] = [
        ("What was found", findings.findings_items(inputs, outcomes, metrics)),
        ("What was planned", [planned.plan_table(inputs, plan)] if plan else []),
        (
            "Results",
            [
                *(paper.result_tables(inputs, results) if study else training.change_tables(inputs)),
                scores.headlines_table(inputs),
                scores.other_evaluations_table(inputs),
                *([] if study else [*scores.side_by_side(inputs), *scores.panels_tables(inputs)]),
            ],
        ),
        (
            "Quality, length and errors",
            [
                *lengths.targets_items(inputs),
                *lengths.histogram_figures(inputs, outcomes),
                lengths.validity_table(outcomes),
                *lengths.difficulty_figures(outcomes),
                *(paper.length_figures(inputs, results) if study else []),
                scores.errors_table(inputs, results),
                *training.error_figures(inputs),
                paper.flips_table(inputs, results) if study else training.stage_results_table(inputs),
            ],
        ),
        ("Constraint and quality", findings.trade_off_items(inputs, metrics)),
        ("Baselines", paper.baseline_tables(inputs) if study else []),
        ("Published figures", paper.published_tables(inputs, results) if study else []),
        ("Training", training.curve_figures(inputs, [paper.WATCHED] if study else [])),
        ("Correlations", paper.correlation_figures(inputs, results) if study else []),
        (
            "The judge",
            [scores.noise_table(inputs), scores.corrected_table(inputs), *scores.reward_figures(results)]
            if inputs.criteria
            else [],
        ),
        ("Cost", [training.cost_table(inputs)]),
        ("Samples", scores.samples_tables(inputs, results)),
        ("Data", setup.data_tables(inputs, prompts="Post" if study else "Prompt", references=study)),
        ("Evaluation", [setup.judged_metrics_table(inputs)]),
        (
            "Method",
            [
                setup.signals_table(inputs, tuple(REWARDS) if study else ()),
                *([paper.configurations_table(inputs)] if study and inputs.has_references else []),
                setup.settings_table(inputs),
                setup.stage_settings_table(inputs, signals=not study),
            ],
        ),
        ("Settings", [setup.differences_table(inputs)]),
        ("Limits", []),
        ("Left out", [setup.left_out_table(inputs.left_out)]),
        ("Provenance", [setup.provenance_table(inputs)]),
    ]
    texts = {"Limits": tuple(setup.limits(inputs, results))}
    if plan:
        texts["What was planned"] = tuple(planned.plan_text(inputs, plan))
    # a table of comparisons has no rows where nothing is compared
    found = [
        Section(title, tuple(item for item in items if isinstance(item, Figure) or item.rows), texts.get(title, ()))
        for title, items in sections
    ]
    shown = tuple(section for section in found if section.items or section.text)
    verdict = findings.verdict(inputs, outcomes, metrics)
    return Page(f"smolsum report: {', '.join(inputs.models)}", verdict, shown)
