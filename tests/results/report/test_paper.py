"""The study's own numbers, given as runs, come out as its own tables."""

import csv
import re
from pathlib import Path

import pytest
from support.reports import figures, tables
from support.studies import PATHS, read_csv

import smolsum.results.report
from smolsum.config.run_labels import FINETUNED, INCLUDED, LENGTH_ONLY, model_name
from smolsum.results.report.document import Page, Table
from smolsum.results.report.write import to_html

PUBLISHED = Path(smolsum.results.report.__file__).with_name("published.csv")
NAMES = {"length-only": "length-only (GRPO baseline)", "length-quality-rouge-l": "length-quality-rouge"}
"""the study calls one signal rouge in three tables and rouge-l in one"""


@pytest.fixture(name="page")
def _page(study: Page) -> Page:
    return study


def table(page: Page, number: str) -> Table:
    return tables(page)[number]


def minus(text: str) -> str:
    """Text with a true minus sign before a number."""
    return text.replace("-", "\N{MINUS SIGN}", 1) if text.startswith("-") else text


@pytest.mark.parametrize("number", ["10", "11", "12", "13"])
def test_results_are_the_study_s(page: Page, number: str) -> None:
    """Every cell of Tables 10-13, row by row in the study's order, and every verdict."""
    found = [[cell.text for cell in row][:11] for row in table(page, number).rows]
    expected = []
    for row in read_csv("study_results.csv"):
        if row["table"] != number:
            continue
        means = [row[k] for k in ("average", "faithfulness", "coverage", "conciseness", "clarity", "pass_rate")]
        mark = {"yes": "✓", "no": "✗", "": "-"}[row["significant"]]
        tested = [minus(row["delta"]), minus(row["t"]), row["p"], mark] if row["delta"] else ["-"] * 4
        expected.append([NAMES.get(row["configuration"], row["configuration"]), *means, *tested])
    assert found == expected


@pytest.mark.parametrize("number", ["10a", "11a", "12a", "13a"])
def test_lengths_are_the_study_s(page: Page, number: str) -> None:
    found = [[cell.text for cell in row] for row in table(page, number).rows]
    names = NAMES | {"length-only": "length-only (baseline)"}
    expected = [
        [names.get(row["configuration"], row["configuration"]), *list(row.values())[3:]]
        for row in read_csv("study_lengths.csv")
        if row["table"] == number
    ]
    assert found == expected


def test_best_of_each_strategy(page: Page) -> None:
    """Table 14, and no test that the study did not make changes its cells."""
    assert [[cell.text for cell in row][:4] for row in table(page, "14").rows] == [
        ["LFM2.5-350M", "2.904 (quality-meteor)", "2.701 (length-quality-meteor-rouge)", minus("-0.203")],
        ["Qwen2.5-0.5B-Instruct", "2.817 (quality-bleu-rouge)", "2.769 (length-quality-meteor-rouge)", minus("-0.048")],
    ]
    assert all(row[4].value is not None and row[5].value is not None for row in table(page, "14").rows)


def test_adjusted_over_all_24(page: Page) -> None:
    """Holm over the 24 comparisons keeps 17 of the study's 19."""
    rows = [row for number in ("10", "11", "12", "13") for row in table(page, number).rows[1:]]
    assert len(rows) == 24
    assert sum(row[10].value == "yes" for row in rows) == 19
    assert sum(isinstance(p := row[11].value, float) and p < 0.05 for row in rows) == 17


def test_every_test_has_a_direction(page: Page) -> None:
    """A significant difference is better or worse, as its sign says, and the note counts both."""
    for number in ("10", "11", "12", "13"):
        rows = table(page, number).rows[1:]
        for row in rows:
            delta, p = row[7].value, row[9].value
            assert isinstance(delta, float)
            assert isinstance(p, float)
            assert row[-1].text == ("-" if p >= 0.05 else "better" if delta > 0 else "worse")
        worse = sum(row[-1].text == "worse" for row in rows)
        better = sum(row[-1].text == "better" for row in rows)
        assert f", {better} better and {worse} worse;" in table(page, number).notes[0]
    assert [row[-1].text for row in table(page, "14").rows] == ["fine-tuned better", "-"]


def test_columns_say_which_values_are_better(page: Page) -> None:
    assert table(page, "10").headings[1:8] == (
        "Average ↑", "Faithfulness ↑", "Coverage ↑", "Conciseness ↑", "Clarity ↑", "Pass Rate ↑", "ΔAverage",
    )  # fmt: skip
    assert table(page, "10a").headings[1:] == (
        "Mean", "Std", "Min", "P50", "P90", "P95", "P99", "Max", "Within ±5 of 64 ↑",
    )  # fmt: skip
    assert table(page, "S4").headings[-2:] == ("Composite ICC ↑", "Failed judgements ↓")
    assert table(page, "S10").headings[-1] == "on target ↑"


def test_the_verdict_names_the_judge_and_how_many_are_on_target(page: Page) -> None:
    """Next to each model's best score, the share of its summaries that have the length."""
    assert page.verdict.count("by the judge judge-a") == 2
    assert page.verdict.count("on target in ") == 2


def test_correlations_pool_as_the_study_did(page: Page) -> None:
    """Figure 1: 1,200 examples of the fine-tuned strategy, 1,400 of the other, for each model."""
    found = [figure.notes[0].split()[2] for number, figure in figures(page).items() if number.startswith("1")]
    assert found == ["1200:", "1400:", "1200:", "1400:"]


def test_a_front_is_of_one_model(page: Page) -> None:
    """Figure S1 is drawn for each model; nothing joins points of two."""
    fronts = {number: figure for number, figure in figures(page).items() if number.startswith("S1")}
    assert list(fronts) == ["S1a", "S1b"]
    assert all("13 configurations" in figure.alt for figure in fronts.values())


def test_lengths_of_a_model_share_their_axes(page: Page) -> None:
    """Figures L1: a panel for each of the 13 configurations of a model, with the same numbers at both axes."""
    for number in ("L1a", "L1b"):
        *panels, legend = figures(page)[number].parts
        assert len(panels) == 13
        assert len({tuple(re.findall(r">(-?[\d.]+%?)</text>", panel)) for panel in panels}) == 1
        assert "target 64 ±5 tokens" in legend


def test_every_configuration_counts_its_metrics(page: Page) -> None:
    """Tables 10-13 say of five metrics how many differ from the baseline; the composite is one of them."""
    for number in ("10", "11", "12", "13"):
        one = table(page, number)
        place, holm = one.columns.index("Metrics"), one.columns.index("p (Holm)")
        for row in one.rows[1:]:
            counts = [int(count) for count in re.findall(r"(\d)/5", row[place].text)]
            assert 0 <= sum(counts) <= 5
            p, direction = row[holm].value, row[-1].text
            assert isinstance(p, float)
            assert p >= 0.05 or f"/5 {direction}" in row[place].text


def test_the_whole_study_is_a_small_file(page: Page, tmp_path: Path) -> None:
    """26 runs make one page below a megabyte that loads nothing, and no two tables, figures or sections of the page
    have one id."""
    text = to_html(page, tmp_path)
    assert len(text.encode()) < 1_000_000
    loading = "<script |<link|<img|url(|@import|src=|fetch(|XMLHttp|import(|innerHTML"
    assert [word for word in loading.split("|") if word in text] == []
    found = re.findall(r' id="([^"]+)"', text)
    assert len(found) == len(set(found))
    assert {"table-S9a", "table-S9b"} <= set(found)


def test_published_figures_stand_next_to_ours(page: Page) -> None:
    """The runs have the study's own figures, so that each pair of columns agrees, and every configuration is there."""
    found = {number: one for number, one in tables(page).items() if number.startswith("S19")}
    assert [one.title.partition(",")[0] for one in found.values()] == [
        "Within ±5 of 64 tokens", "Mean length in tokens", "Average of the judge", "Pass rate",
    ]  # fmt: skip
    for one in found.values():
        assert len(one.rows) == 13
        assert [name.rpartition(", ")[2] for name in one.columns[1:]] == ["published"] * 2 + ["here"] * 2
        for row in one.rows:
            texts = [cell.text for cell in row[1:]]
            assert texts[:2] == texts[2:] or "-" in texts[:2], row


@pytest.mark.parametrize("name", ["study_results.csv", "study_lengths.csv"])
def test_published_figures_are_those_of_the_study(name: str) -> None:
    columns = {"average": "composite", "pass_rate": "pass_rate", "mean": "mean_length", "within": "within_5"}
    published = {
        (row["model"], row["strategy"], row["reward"]): row
        for row in csv.DictReader(PUBLISHED.read_text().splitlines())
    }
    for row in read_csv(name):
        strategy = {"length-only": LENGTH_ONLY}.get(row["configuration"]) or (
            FINETUNED if row["table"].startswith(("10", "12")) else INCLUDED
        )
        reward = row["configuration"].rpartition("quality-")[2].replace("rouge-l", "rouge")
        found = published[model_name(PATHS[row["model"]]), strategy, reward]
        for column in columns.keys() & row.keys():
            text = row[column]
            number = int(text.partition("/")[0]) / 200 if "/" in text else float(text.rstrip("%"))
            assert float(found[columns[column]]) == pytest.approx(number / 100 if column == "pass_rate" else number)
