"""What a report opens with: the finding in words, a figure and a table against the untrained model."""

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from support.reports import commands, edit, edit_lines, report_of, tables
from support.studies import evaluation, judged, run

from smolsum.results.report.collect import gather
from smolsum.results.report.document import Figure, Page, Table
from smolsum.results.report.outcomes import NO_DIFFERENCE
from smolsum.results.report.write import to_html, to_markdown
from smolsum.tasks import TASKS
from smolsum.tasks.base import Metric

MODEL = "LiquidAI/LFM2.5-350M"
N = 40
WEIGHTS = {"path": MODEL, "dtype": "bfloat16", "weights": "w1"}
UNJUDGED = {"judge": None, "judging": None, "criteria": None, "headlines": [], "errors": {}}
TASK = {"name": "tldr", "target_tokens": 64, "tolerance_tokens": 5}


def alternating(share: float) -> list[float]:
    return [float(int((i + 1) * share) > int(i * share)) for i in range(N)]


def spread(mean: float, step: float = 0.01) -> list[float]:
    """Values around a mean, each different."""
    return [mean + step * (i - (N - 1) / 2) / N for i in range(N)]


def columns(meteor: float, on_target: float, repeated: float, seed: float = 0.0) -> dict[str, list[float]]:
    return {
        "meteor": spread(meteor, 0.01 + meteor / 10 + seed),
        "within_tol": alternating(on_target),
        "repeated_trigrams": spread(repeated, 0.002 + repeated / 10),
    }


def summary(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    means = {name: sum(values) / N for name, values in found.items()}
    return means | {"length/within_tol": means["within_tol"]}


def assess(
    root: Path, label: str, step: int, found: Mapping[str, Sequence[float]], *, by_judge: bool = False, **more: Any
) -> None:
    """An evaluation of a run, by the judge or without one."""
    rows = judged(found) if by_judge else [row | {"judge": None} for row in judged(found)]
    metrics = more.pop("metrics", None) or summary(found)
    facts = {"model": WEIGHTS, "weights": f"{root.name}-{label}" if step else "w1", "task": TASK, "step": step}
    evaluation(root / "eval" / f"{label}-test", rows, metrics, **({} if by_judge else UNJUDGED) | facts | more)


def bare(runs: Path, name: str, stages: Mapping[str, Sequence[str]], **more: Any) -> Path:
    """A run that nothing evaluated."""
    root = run(runs, name, MODEL, stages, judged(columns(*POINTS[0])), {}, **more)
    shutil.rmtree(root / "eval")
    return root


def staged(runs: Path, name: str, points: Sequence[tuple[float, float, float]], *, seed: int = 0, **more: Any) -> Path:
    """A run of a length and a quality stage, evaluated without a judge at its start and after the last stages."""
    root = bare(runs, name, {"length": ["length"], "quality": ["meteor"]}, seed=seed)
    labels = [("start", 0), ("length", 4), ("quality", 8)][-len(points) :]
    for (label, step), point in zip(labels, points, strict=True):
        assess(root, label, step, columns(*point, seed=seed / 1000), **more)
    return root


def opening(page: Page) -> tuple[Figure, Table]:
    """The figure and the table that a page begins with."""
    figure, table = page.sections[0].items
    assert isinstance(figure, Figure)
    assert isinstance(table, Table)
    return figure, table


POINTS = ((0.5, 0.1, 0.01), (0.6, 1.0, 0.03), (0.8, 0.1, 0.01))


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return report_of(staged(tmp_path, "one", POINTS))


def test_the_finding_is_first_and_the_provenance_last(page: Page) -> None:
    assert page.verdict == (
        "LFM2.5-350M, quality-meteor: METEOR 0.500 before training, 0.800 after (better); on target 10.0% before "
        "training, 10.0% after (no significant difference). After the stage length it was on target 100.0%. "
        "Price: 8.0 minutes of training."
    )
    assert [section.title for section in page.sections][:: len(page.sections) - 1] == ["What was found", "Provenance"]
    assert page.sections[1].title == "Results"


def test_each_stage_is_compared_with_the_untrained_model(page: Page) -> None:
    """Direction, interval and price of both measures; what became worse is named."""
    _, table = opening(page)
    texts = [[cell.text for cell in row] for row in table.rows]
    assert table.columns[2:6] == ("METEOR ↑", "against untrained", "on target ↑", "against untrained, points")
    assert [row[1] for row in texts] == ["-", "length", "quality"]
    assert [row[2] for row in texts] == ["0.500", "0.600", "0.800"]
    assert re.fullmatch(r"\+0\.100 \[\+0\.09\d, \+0\.10\d\] better", texts[1][3])
    assert re.fullmatch(r"\+90\.0 \[\+80\.\d, \+90\.0\] better", texts[1][5])
    assert texts[2][5].endswith(NO_DIFFERENCE)
    assert [row[6] for row in texts] == ["-", "4.0", "8.0"]
    assert texts[1][7] == "repeated 1.0% → 3.0%"
    assert texts[2][7] == "-"
    assert any("also a reward" in note for note in table.notes)


def test_the_way_is_drawn_from_the_untrained_model(page: Page) -> None:
    """Two arrows, three crosses of intervals, the names of the points; later is further up."""
    figure, _ = opening(page)
    assert figure.svg.count('class="shaft"') == 2
    assert figure.svg.count('class="span') == 3
    assert all(f">{name}<" in figure.svg for name in ("untrained", "length", "quality", "METEOR ↑", "on target ↑"))
    places = re.findall(r'class="dot [^>]*><title>(\w+)</title><circle cx="([\d.]+)" cy="([\d.]+)"', figure.svg)
    assert [name for name, _, _ in places] == ["untrained", "length", "quality"]
    (_, x0, y0), (_, x1, y1), (_, x2, y2) = [(name, float(x), float(y)) for name, x, y in places]
    assert x0 == x2 < x1
    assert y0 > y1 > y2


def test_what_is_worse_is_called_worse(tmp_path: Path) -> None:
    """Without a start nothing is compared, and one line says what evaluates the untrained model."""
    points = (0.8, 1.0, 0.01), (0.6, 0.2, 0.01), (0.5, 0.1, 0.01)
    _, table = opening(report_of(staged(tmp_path, "one", points)))
    assert [cell.text.rpartition("] ")[2] for cell in table.rows[2][3:6:2]] == ["worse", "worse"]
    _, table = opening(report_of(two := staged(tmp_path, "two", points[1:])))
    assert table.gap is not None
    assert table.gap.names == ("untrained",)
    assert table.gap.commands == (f"smolsum eval {MODEL} --config {two / 'config.toml'}",)
    assert all(cell.text == "-" for row in table.filled for cell in row[3:6:2])


def test_of_several_configurations_the_best_is_marked(tmp_path: Path) -> None:
    """By quality; the one that keeps the constraint is named too. Seeds are one row, with an interval between them."""
    page = report_of(
        staged(tmp_path, "a", POINTS),
        staged(tmp_path, "a-s1", (POINTS[0], (0.61, 1.0, 0.03), (0.82, 0.1, 0.01)), seed=1),
        staged(tmp_path, "b", (POINTS[0], (0.6, 1.0, 0.03), (0.6, 0.9, 0.01)), seed=1),
    )
    figure, table = opening(page)
    assert page.verdict.startswith("LFM2.5-350M: of 3 configurations ")
    assert "better than the untrained model, 0.500" in page.verdict
    assert "Of those with on target in at least half of the examples " in page.verdict
    assert [cell.text for row in table.rows for cell in row if cell.best] == [table.rows[2][0].text]
    assert figure.svg.count('class="ring"') == 1


def test_seeds_are_one_way(tmp_path: Path) -> None:
    """Two seeds are one row with their mean, and the interval is wider than that over examples."""
    one = staged(tmp_path, "a", POINTS)
    two = staged(tmp_path, "a-s1", (POINTS[0], (0.61, 1.0, 0.03), (0.82, 0.1, 0.01)), seed=1)
    _, alone = opening(report_of(one))
    figure, both = opening(report_of(one, two))
    assert len(both.rows) == 3
    assert both.rows[2][0].text == "quality-meteor x2"
    assert both.rows[2][2].value == pytest.approx(0.81)

    def width(cell: str) -> float:
        low, high = re.findall(r"[+-][\d.]+", cell.partition("[")[2])
        return float(high) - float(low)

    assert width(both.rows[2][3].text) > 3 * width(alone.rows[2][3].text)
    assert figure.svg.count('class="shaft"') == 2
    few = "With two seeds hardly any difference can be significant"
    assert [any(few in note for note in table.notes) for table in (alone, both)] == [False, True]
    assert "10.0% after (no significant difference with 2 seeds)" in report_of(one, two).verdict


def test_the_untrained_model_may_be_another_run_s(tmp_path: Path) -> None:
    one, two = staged(tmp_path, "one", POINTS[1:]), staged(tmp_path, "two", POINTS, seed=3)
    rows = opening(report_of(one, two))[1].rows
    assert "untrained" in [cell.text for row in rows for cell in row]
    assert not any(row[0].command for row in rows)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_has_a_constraint_and_a_quality(name: str) -> None:
    """Each with a direction; a quality is never its own constraint."""
    roles = {m.role: m for m in TASKS[name].evaluation.headlines if m.role}
    assert set(roles) == {"constraint", "quality"}
    assert all(metric.better for metric in roles.values())
    assert roles["constraint"].name != roles["quality"].name


def test_a_task_s_own_measures_are_used(tmp_path: Path) -> None:
    """A summary says what its task compares by, and what is better: fewer repetitions are up."""
    metrics = (
        Metric("repeated_trigrams", "echoes", better="lower", role="quality"),
        Metric("length/within_tol", "in the band", better="higher", role="constraint", column="within_tol"),
    )
    figure, table = opening(report_of(staged(tmp_path, "one", POINTS, measures=[asdict(metric) for metric in metrics])))
    assert table.columns[2:5:2] == ("echoes ↓", "in the band ↑")
    assert table.rows[1][3].text.endswith("worse")
    places = re.findall(r'<title>(\w+)</title><circle cx="[\d.]+" cy="([\d.]+)"', figure.svg)
    heights = {name: float(y) for name, y in places}
    assert heights["length"] > heights["untrained"]


def test_a_damaged_format_is_named(tmp_path: Path) -> None:
    root = staged(tmp_path, "one", POINTS)
    measures = [asdict(replace(Metric("meteor", "METEOR"), form="x"))]
    edit(root / "eval" / "quality-test" / "summary.json", measures=measures)
    (out,) = gather([str(root)], tmp_path).left_out
    assert "measures" in out.reason


Render = Callable[[Page, Path], str]


@pytest.mark.parametrize("render", [to_html, to_markdown])
def test_rows_that_nothing_fills_are_one_line(page: Page, tmp_path: Path, render: Render) -> None:
    """A run of the README's kind, without a judge and without a grid: no row of a table lacks every value, the tables
    that nothing fills are one line, and both name a command; similar rows share one."""
    found = tables(page).values()
    hidden = sum(bool(cell.command) for table in found for row in table.rows for cell in row)
    shown = sum(bool(cell.command) for table in found for row in table.filled for cell in row)
    assert shown < 30 < 200 < hidden
    text = render(page, tmp_path)
    assert text.count("not run") < 40
    gaps = {table.number: table.gap for table in found if table.gap}
    assert all(one in text.replace("&#39;", "'") for gap in gaps.values() for one in gap.commands)
    assert len(gaps["10a"].names) == 5
    (command,) = gaps["10a"].commands
    assert "--strategy finetuned --reward all" in command


def judge(root: Path, label: str, step: int, point: tuple[float, float, float], composite: float) -> None:
    """Give an evaluation of a run the scores of a judge."""
    found = columns(*point) | {"composite": spread(composite, composite / 10), "clarity": spread(0.6)}
    assess(root, label, step, found, by_judge=True)


def test_an_untrained_model_without_a_judge_has_its_command(tmp_path: Path) -> None:
    """Where only the trained model was judged, the composite of the untrained one lacks, and the command asks the model
    itself: there is no checkpoint of step 0. Until then both are compared in what both have."""
    root = staged(tmp_path, "one", POINTS)
    judge(root, "quality", 8, POINTS[2], 2.5)
    page = report_of(root)
    _, table = opening(page)
    assert page.verdict.startswith("LFM2.5-350M, quality-meteor: METEOR 0.500 before training, 0.800 after (better);")
    assert page.verdict.endswith("\nThe judge has scored 1 of 2 evaluations, so METEOR is compared.")
    command = f"smolsum eval {MODEL} --config {root / 'config.toml'} --judge judge-a"
    assert f"To judge the rest: {command}." in table.notes[-1]
    judge(root, "start", 0, POINTS[0], 2.0)
    page = report_of(root)
    _, table = opening(page)
    assert page.verdict.startswith(
        "LFM2.5-350M, quality-meteor: "
        "composite (of 4, by the judge judge-a) 2.000 before training, 2.500 after (better);"
    )
    blank = table.rows[1][2]
    assert blank.text == "not known"
    assert blank.command == f"smolsum eval {root / 'checkpoints' / 'step-000004'} --judge judge-a"


def test_one_judged_run_of_two_is_no_winner(tmp_path: Path) -> None:
    """The run without a judge is better in METEOR, and wins in it; the figure has both, as its caption says."""
    worse, better = staged(tmp_path, "a", POINTS), staged(tmp_path, "b", (*POINTS[:2], (0.9, 0.1, 0.01)), seed=0)
    judge(worse, "quality", 8, POINTS[2], 2.5)
    page = report_of(worse, better)
    figure, table = opening(page)
    assert " · b ends best in METEOR, 0.900" in page.verdict
    assert "better than the untrained model, 0.500" in page.verdict
    assert "The judge has scored 1 of 3 evaluations, so METEOR is compared." in page.verdict
    assert "composite" not in page.verdict
    assert "2 configurations" in figure.alt
    assert str(better) in table.notes[-1]


def test_a_caption_explains_what_is_drawn(tmp_path: Path) -> None:
    """One point has neither arrows nor a ring nor a line, though another configuration has no value."""
    one, two = staged(tmp_path, "a", POINTS[2:]), staged(tmp_path, "b", POINTS[2:], seed=0)
    path = two / "eval" / "quality-test" / "summary.json"
    metrics = json.loads(path.read_text())["metrics"]
    edit(path, metrics={key: value for key, value in metrics.items() if key != "meteor"})
    page = report_of(one, two)
    figure, _ = opening(page)
    assert figure.svg.count('class="dot') == 1
    assert figure.notes == ("Crosses: 95 % intervals. Up and right is better.",)
    assert "of 1 of 2 configurations" in page.verdict


def test_without_references_the_constraint_is_compared(tmp_path: Path) -> None:
    """The length that was trained is in the sentence, the figure and the table. Nothing offers to measure METEOR or to
    train rewards that need references."""
    root = bare(tmp_path, "one", {"length": ["length"]})
    for label, step, share in (("start", 0, 0.1), ("length", 4, 0.9)):
        found = columns(0.5, share, 0.01)
        del found["meteor"]
        assess(root, label, step, found, metrics=summary(found) | {"meteor": None})
    corpus = json.loads((root / "run.json").read_text())["corpus"]
    edit(root / "run.json", corpus={split: found | {"references": None} for split, found in corpus.items()})
    page = report_of(root)
    figure, table = opening(page)
    assert page.verdict.startswith("LFM2.5-350M, length-only: on target 10.0% before training, 90.0% after (better).")
    assert (figure.title, figure.notes) == ("On target", ("Lines: 95 % intervals.",))
    assert table.columns[2:4] == ("on target ↑", "against untrained, points")
    assert not any(cell.command for row in table.rows for cell in row)
    assert table.notes[-1] == "METEOR cannot be measured on this data."
    assert not [one for one in commands(page) if one.startswith("smolsum train")]
    assert all(one.rows for one in tables(page).values())
    assert "S5" not in tables(page)  # nothing is compared with length alone


def test_a_share_says_what_it_is_of(tmp_path: Path) -> None:
    """A title has room for a word, a sentence has not enough with it; a configuration has one colon less."""
    measures = [asdict(one) for one in TASKS["strict-json"].evaluation.headlines if one.role]
    own: dict[str, Any] = {"task": {"name": "strict-json"}, "score": "passed", "measures": measures, "criteria": []}
    roots = [bare(tmp_path, name, {"standard": each}) for name, each in (("a", ["valid", "schema"]), ("b", ["valid"]))]
    for root, after in zip(roots, (0.9, 0.2), strict=True):
        for label, step, share in (("start", 0, 0.1), ("standard", 4, after)):
            own |= {"weights": f"{root.name}{step}", "metrics": dict.fromkeys(("passed", "parses"), share)}
            assess(root, label, step, dict.fromkeys(("passed", "parses"), alternating(share)), **own)
    assert report_of(roots[0]).verdict.startswith(
        "LFM2.5-350M: answers that satisfy the schema 10.0% before training, 90.0% after (better); answers that parse "
    )
    both = "LFM2.5-350M: of 2 configurations standard with valid-schema ends best in answers "
    assert report_of(*roots).verdict.startswith(both)


def test_a_figure_has_the_name_of_its_model(tmp_path: Path) -> None:
    """A model without points has no figure, and lends its name to no other's."""
    rows, half = judged({"meteor": spread(0.5), "within_tol": alternating(0.5)}), {"length/within_tol": 0.5}
    for name, path, metrics in (
        ("one", "a/First", half),
        ("two", "b/Second", half | {"meteor": 0.5}),
        ("three", "c/Third", half | {"meteor": 0.6}),
    ):
        run(tmp_path, name, path, {"included": ["length", "meteor"]}, rows, metrics)
    figures = [item for item in report_of(*tmp_path.iterdir()).sections[0].items if isinstance(item, Figure)]
    assert [figure.title.rpartition(", ")[2] for figure in figures] == ["Second", "Third"]
    assert [figure.alt.partition(",")[0] for figure in figures] == ["Second", "Third"]


def test_of_lower_values_the_least_keeps_the_constraint(tmp_path: Path) -> None:
    """Where the constraint is a share that should be low, the best that keeps it is that with at most half."""
    metrics = (
        Metric("meteor", "METEOR", ".3f", better="higher", role="quality"),
        Metric("length/within_tol", "over the limit", better="lower", role="constraint", column="within_tol"),
    )
    own = {"measures": [asdict(metric) for metric in metrics]}
    ends = {"a": (0.8, 0.9, 0.01), "b": (0.6, 0.2, 0.01)}
    page = report_of(*(staged(tmp_path, name, (*POINTS[:2], end), **own) for name, end in ends.items()))
    assert "a ends best in METEOR, 0.800, over the limit in 90.0% of the examples" in page.verdict
    assert "Of those with over the limit in at most half of the examples" in page.verdict
    assert "b ends best, 0.600, over the limit in 20.0%." in page.verdict


def test_a_stage_of_another_run_costs_what_it_took_there(tmp_path: Path) -> None:
    """And where that run is not in the report, the price is not known."""
    one, two = staged(tmp_path, "a", POINTS), staged(tmp_path, "b", POINTS, seed=1)
    edit_lines(two / "metrics.jsonl", lambda _, row: row if row["step"] > 4 else None)
    for root in (one, two):
        edit(root / "run.json", fingerprints={"length": "same", "quality": root.name})
    _, table = opening(report_of(one, two))
    assert [row[6].text for row in table.rows[1:]] == ["4.0", "8.0"]
    assert "Price: 8.0 minutes of training" in report_of(one, two).verdict
    assert "minutes" not in report_of(two).verdict


def test_lengths_of_several_seeds_are_those_of_all(tmp_path: Path) -> None:
    """The least and the greatest of any seed, and the counts of all together. More is better within the tolerance, and
    within each closer distance."""
    points, roots = judged(columns(*POINTS[0])), []
    for seed, (low, high, share) in enumerate([(40.0, 86.0, 0.5), (20.0, 68.0, 0.25)]):
        metrics = {"completions/min_length": low, "completions/max_length": high}
        metrics |= {f"length/within_{n}": share for n in ("tol", 1, 2)}
        roots.append(run(tmp_path, f"{seed}", MODEL, {"included": ["length", "meteor"]}, points, metrics, seed=seed))
    table = tables(report_of(*roots))["11a"]
    assert table.headings[-3:] == ("Within ±5 of 64 ↑", "Within ±1 ↑", "Within ±2 ↑")
    cells = dict(zip(table.headings, (cell.text for cell in table.rows[0]), strict=True))
    assert (cells["Min"], cells["Max"]) == ("20", "86")
    assert cells["Within ±5 of 64 ↑"] == f"{N * 3 // 4}/{2 * N} (37%)"
    assert "the counts are sums" in table.notes[0]
