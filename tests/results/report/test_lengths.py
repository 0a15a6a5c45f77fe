"""Lengths of completions in a report, and answers by difficulty: what is drawn is what was measured."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.reports import figures, report_of, tables
from support.studies import CRITERIA, PATHS, evaluation, judged, run

SVG = "{http://www.w3.org/2000/svg}"
WEIGHTS = {"path": PATHS["lfm"], "dtype": "bfloat16", "weights": "w1"}
Outline = list[tuple[float, float]]


def rows(n: int, **columns: Sequence[float]) -> list[dict[str, Any]]:
    return judged({key: [0.5] * n for key in (*CRITERIA, "composite")} | columns)


def trained(folder: Path, name: str, before: Sequence[float], after: Sequence[float], *, seed: int = 0) -> Path:
    """A run whose completions have these lengths before and after training."""
    found = rows(len(after), tokens=after)
    root = run(folder, name, PATHS["lfm"], {"included": ["length"]}, found, {"composite": 2.0}, seed=seed)
    if before:
        evaluation(root / "eval" / "start-test", rows(len(before), tokens=before), {"composite": 2.0}, step=0,
                   model=WEIGHTS)  # fmt: skip
    return root


def drawn(svg: str) -> tuple[dict[str, Outline], list[float]]:
    """Of the first panel: its outlines in tokens and shares, by their names, and the ends of its band in tokens."""
    panel = next(node for node in ElementTree.fromstring(svg).iter(f"{SVG}g") if node.get("transform"))
    texts = [node for node in panel.iter(f"{SVG}text") if node.get("class") == "faint"]
    shares = [node for node in texts if (node.text or "").endswith("%")]
    tokens = [node for node in texts if re.fullmatch(r"[\d.]+", node.text or "")]
    grid = [float(re.findall(r"[\d.]+", node.attrib["d"])[1]) for node in panel.iter() if node.get("class") == "grid"]
    across = [(float(node.attrib["x"]), float(node.text or 0)) for node in tokens]
    up = [(y, float((node.text or "").rstrip("%")) / 100) for y, node in zip(grid, shares, strict=True)]

    def value(at: float, scale: Sequence[tuple[float, float]]) -> float:
        (a, low), (b, high) = scale[0], scale[-1]
        return low + (at - a) / (b - a) * (high - low)

    found = {}
    for node in panel.iter(f"{SVG}path"):
        if (node.get("class") or "").startswith("line"):
            points = re.findall(r"[ML]([\d.]+) ([\d.]+)", node.attrib["d"])
            name = next(node.iter(f"{SVG}title")).text or ""
            found[name] = [(value(float(x), across), value(float(y), up)) for x, y in points]
    boxes = [(float(node.attrib["x"]), float(node.attrib["width"])) for node in panel.iter(f"{SVG}rect")]
    return found, [value(at, across) for x, wide in boxes for at in (x, x + wide)]


def test_a_histogram_has_the_shares_of_the_lengths(tmp_path: Path) -> None:
    """The bin of the target is as wide as its tolerance: half of the completions are in it after training, none was
    before, and both outlines hold all completions."""
    before, after = [120.0, 121.0, 130.0, 10.0], [59.0, 69.0, 58.0, 70.0]
    figure = figures(report_of(trained(tmp_path, "run", before, after)))["L1"]
    found, band = drawn(figure.svg)
    assert band == pytest.approx([58.5, 69.5], abs=0.2)
    assert list(found) == ["before training", "after training"]
    assert found["after training"] == [
        pytest.approx(point, abs=0.3)
        for point in [(47.5, 0), (47.5, 0.25), (58.5, 0.25), (58.5, 0.5), (69.5, 0.5), (69.5, 0.25), (80.5, 0.25),
                      (80.5, 0)]
    ]  # fmt: skip
    for outline in found.values():
        assert sum((b[0] - a[0]) * b[1] for a, b in pairwise(outline)) == pytest.approx(11, rel=0.01)
    assert "target 64 ±5 tokens" in figure.svg
    assert figure.alt.endswith("medians: length-only 120.5 before training, 64 after training")
    assert ">tokens<" in figure.svg
    assert "bins of 11 tokens" in figure.notes[0]


@pytest.mark.parametrize("settings", [{"targets": "16-128"}, {"unit": "words"}])
def test_where_no_target_in_tokens_holds_for_all_none_is_drawn(settings: Mapping[str, str], tmp_path: Path) -> None:
    root = trained(tmp_path, "run", [], [60.0, 61.0, 64.0])
    config = (root / "config.toml").read_text()
    lines = "".join(f'{key} = "{value}"\n' for key, value in settings.items())
    (root / "config.toml").write_text(config.replace("[task]\n", f"[task]\n{lines}"))
    figure = figures(report_of(root))["L1"]
    found, band = drawn(figure.svg)
    assert list(found) == ["after training"]
    assert band == []
    assert "target" not in figure.svg


@pytest.mark.parametrize("longest", [30.0, 70.0, 1024.0, 1e15])
def test_an_axis_begins_with_no_negative_length(longest: float, tmp_path: Path) -> None:
    """Also where a completion is empty."""
    panel = figures(report_of(trained(tmp_path, "run", [], [0.0, 64.0, longest])))["L1"].parts[0]
    assert "\N{MINUS SIGN}" not in panel


def test_seeds_are_pooled_and_equal_lengths_are_one_bin(tmp_path: Path) -> None:
    roots = [trained(tmp_path, f"run-{seed}", [], [64.0] * 3, seed=seed) for seed in (0, 1)]
    found, _ = drawn(figures(report_of(*roots))["L1"].svg)
    (outline,) = found.values()
    assert [y for _, y in outline] == pytest.approx([0, 1, 1, 0], abs=0.01)
    assert outline[1][0] <= 64 <= outline[2][0]


def test_without_lengths_there_is_no_histogram(tmp_path: Path) -> None:
    root = run(tmp_path, "run", PATHS["lfm"], {"included": ["length"]}, rows(3), {"composite": 2.0})
    assert "L1" not in figures(report_of(root))


def json_run(folder: Path) -> Path:
    """A run of two stages on strict JSON, with the model before, between and after; of the middle some levels."""
    root = run(folder, "json", PATHS["lfm"], {"one": ["schema"], "two": ["schema"]}, rows(6), {})
    points = {
        ("start", 0): ([0, 0, 1, 1, 0, 1], [0, 0, 0, 1, 0, 0], {"simple": 0.5, "medium": 0.0, "hard": 0.0}),
        ("one", 4): ([1] * 6, [0, 0, 1, 1, 0, 1], {"simple": 1.0, "hard": 0.25}),
        ("two", 8): ([1] * 6, [1] * 6, {"simple": 1.0, "medium": 1.0, "hard": 0.75}),
    }
    lengths = [10.0, 20.0, 30.0, 40.0, 50.0, 100.0]
    for (label, step), (parses, passed, levels) in points.items():
        one = {"parses": parses, "passed": passed, "tokens": lengths, "truncated": [0, 0, 0, 0, 0, 1]}
        means = {"passed": sum(passed) / 6, **{f"{level}/passed": value for level, value in levels.items()}}
        evaluation(root / "eval" / f"{label}-test", judged(one), means, step=step, model=WEIGHTS, judge=None,
                   judging=None, criteria=[], score="passed", headlines=[], errors={})  # fmt: skip
    return root


def test_answers_of_each_validity_have_their_lengths(tmp_path: Path) -> None:
    """Before training one of six satisfies its schema, two only parse and three do not; afterwards all satisfy it."""
    table = tables(report_of(json_run(tmp_path)))["L2"]
    assert [[cell.text for cell in row[1:]] for row in table.rows] == [
        ["one+two with schema", "untrained", "satisfies the schema", "1", "16.7%", "40.0", "40", "40", "40", "0.0%"],
        ["one+two with schema", "untrained", "parses only", "2", "33.3%", "65.0", "30", "100", "100", "50.0%"],
        ["one+two with schema", "untrained", "does not parse", "3", "50.0%", "26.7", "20", "50", "50", "0.0%"],
        ["one+two with schema", "two", "satisfies the schema", "6", "100.0%", "41.7", "30", "100", "100", "16.7%"],
    ]


def test_a_heat_map_has_difficulties_and_stages(tmp_path: Path) -> None:
    """Rows are difficulties, columns the untrained model and each stage; what was not measured is a dash in grey."""
    figure = figures(report_of(json_run(tmp_path)))["D1a"]
    root = ElementTree.fromstring(figure.svg)
    texts = [(float(node.attrib["y"]), float(node.attrib["x"]), node.text or "") for node in root.iter(f"{SVG}text")]
    cells: dict[float, list[str]] = {}
    for y, _, text in sorted(texts):
        if text.endswith("%") or text == "\N{EN DASH}":
            cells.setdefault(y, []).append(text)
    assert list(cells.values()) == [
        ["50.0%", "100.0%", "100.0%"], ["0.0%", "\N{EN DASH}", "100.0%"], ["0.0%", "25.0%", "75.0%"],
    ]  # fmt: skip
    numbers = {text for row in cells.values() for text in row}
    words = [text for _, _, text in sorted(texts) if text not in numbers]
    assert words == ["difficulty", "after stage", "untrained", "one", "two", "simple", "medium", "hard"]
    assert [node.get("class") for node in root.iter(f"{SVG}rect")].count("none") == 1


def test_other_tasks_have_neither(tmp_path: Path) -> None:
    page = report_of(trained(tmp_path, "run", [], [60.0, 61.0]))
    assert "L2" not in tables(page)
    assert not any(number.startswith("D1") for number in figures(page))


def test_a_run_without_lengths_does_not_hide_those_of_another(tmp_path: Path) -> None:
    trained(tmp_path, "with", [], [60.0, 61.0, 62.0])
    other = trained(tmp_path, "without", [], [60.0, 61.0, 62.0])
    for path in other.glob("eval/*/scores.jsonl"):
        path.write_text(re.sub(r'"tokens": ?[\d.]+, ?', "", path.read_text()))
    figure = figures(report_of(*tmp_path.iterdir()))["L1"]
    assert figure.svg.count('class="line') == 1
