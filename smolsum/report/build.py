"""The order of a report: verdict and provenance, then its sections. To add a table, write a function that returns it in
`sections/` and list it here."""

from collections.abc import Sequence

from smolsum.report.collect import ReportInputs
from smolsum.report.document import Item, Page, Section
from smolsum.report.results import configuration_results
from smolsum.report.sections import judge, paper, provenance, scores, setup, training
from smolsum.rewards import MEANINGS


def build(inputs: ReportInputs) -> Page:
    """Return the whole report; the same inputs give the same page. Runs that follow the study have its tables too."""
    results = configuration_results(inputs)
    study = inputs.follows_study
    sections: list[tuple[str, Sequence[Item]]] = [
        ("Provenance", [provenance.provenance_table(inputs)]),
        ("Left out", [provenance.left_out_table(inputs.left_out)] if inputs.left_out else []),
        ("Data", setup.data_tables(inputs, prompts="Post" if study else "Prompt", references=study)),
        ("Evaluation", setup.judged_metrics_tables(inputs)),
        ("Baselines", paper.baseline_tables(inputs) if study else []),
        (
            "Method",
            [
                setup.signals_table(inputs, tuple(MEANINGS) if study else ()),
                *([paper.configurations_table(inputs)] if study else []),
                setup.settings_table(inputs),
                *setup.stage_settings_tables(inputs, signals=not study),
            ],
        ),
        (
            "Results",
            [
                *(paper.result_tables(inputs, results) if study else training.change_tables(inputs)),
                scores.headlines_table(inputs),
                *([] if study else [*scores.side_by_side(inputs), *scores.panels_tables(inputs)]),
            ],
        ),
        ("Training", training.curve_figures(inputs, [paper.WATCHED] if study else [])),
        ("Correlations", paper.correlation_figures(inputs, results) if study else []),
        (
            "Quality, length and errors",
            [
                *(paper.length_figures(inputs, results) if study else []),
                scores.errors_table(inputs, results),
                *training.error_figures(inputs),
                *([paper.flips_table(inputs, results)] if study else training.stage_results_tables(inputs)),
            ],
        ),
        ("The judge", [judge.noise_table(inputs), *judge.reward_figures(results)] if inputs.criteria else []),
        ("Cost", [training.cost_table(inputs)]),
        ("Samples", scores.samples_tables(inputs, results)),
        ("Settings", setup.differences_tables(inputs)),
    ]
    verdict = paper.verdict(inputs, results) if study else training.verdict(inputs)
    kept = [Section(title, tuple(items)) for title, items in sections if items]
    kept.append(Section("Limits", (), tuple(provenance.limits(inputs, results))))
    return Page(f"smolsum report: {', '.join(inputs.models)}", verdict, tuple(kept))
