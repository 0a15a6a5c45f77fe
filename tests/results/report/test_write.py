"""The page of a report: what readers, screen readers and printers work with."""

import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.reports import edit_lines, figures, report_of
from support.studies import CRITERIA, PATHS, judged, run

from smolsum.results.report.write import script, style, to_html

Element = ElementTree.Element
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def text(tmp_path: Path) -> str:
    for name, shift, stages in (
        ("length", 0.0, {"length": ["length"]}),
        ("meteor", 0.1, {"length": ["length"], "quality": ["meteor"]}),
    ):
        columns = {key: [0.5 + shift * (i + 1) / 4 for i in range(6)] for key in CRITERIA}
        columns |= {"composite": [4 * value for value in columns["clarity"]], "meteor": [0.2, 0.3, 0.1, 0.4, 0.5, 0.2]}
        means = {key: sum(values) / 6 for key, values in columns.items()} | {"length/within_tol": 0.5 + shift}
        run(tmp_path, name, PATHS["lfm"], stages, judged(columns), means)
    return to_html(report_of(tmp_path / "length", tmp_path / "meteor"), tmp_path)


@pytest.fixture
def root(text: str) -> Element:
    whole = text.partition("\n")[2].replace('<meta charset="utf-8">', "")
    return ElementTree.fromstring(whole.replace('initial-scale=1">', 'initial-scale=1"/>'))


def test_landmarks(root: Element) -> None:
    """A header with the finding, a named navigation, one main part of named sections, a footer."""
    body = root.find("body")
    assert body is not None
    assert [child.tag for child in body] == ["header", "nav", "main", "footer", "script"]
    assert body[1].get("aria-label") == "Sections"
    main = body[2]
    ids = {node.get("id") for node in root.iter() if node.get("id")}
    assert all(section.tag == "section" and section.get("aria-labelledby") in ids for section in main)
    assert [link.get("href") for link in body[1]] == [f"#{section.get('id')}" for section in main]


def test_tables_have_captions_and_headers(root: Element) -> None:
    """Each table has a caption, a header for each column, and one for each row that has a name."""
    tables = list(root.iter("table"))
    assert len(tables) > 10
    for table in tables:
        assert table[0].tag == "caption"
        assert (table[0].text or "").startswith("Table ")
        assert all(head.get("scope") == "col" for head in table.findall("thead/tr/th"))
        assert all(head.get("scope") == "row" for head in table.findall("tbody/tr/th"))
    named = next(table for table in tables if table.get("id") == "table-10")
    assert [row[0].tag for row in named.findall("tbody/tr")] == ["th", "th"]


def test_figures_have_captions_and_words(root: Element) -> None:
    for figure in root.iter("figure"):
        assert figure[0].tag == "figcaption"
        drawings = list(figure.iter("{http://www.w3.org/2000/svg}svg"))
        assert drawings
        assert all(drawing.get("role") == "img" and drawing.get("aria-label") for drawing in drawings)


def test_the_page_is_whole_without_its_script(text: str) -> None:
    """The script adds: what it makes is not in the page, and nothing is hidden that only it could show."""
    still = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert "<button" not in still
    assert "display:none" not in still.replace(style(), "")
    assert "hidden=" not in still


def test_each_entry_of_a_legend_has_its_series(text: str) -> None:
    """A filter finds what to hide: a legend's entry shares the colour and the stroke of its series."""
    figures = re.findall(r"<figure.*?</figure>", text, re.DOTALL)
    checked = 0
    for figure in figures:
        for series in re.findall(r'class="entry ([^"]+)"', figure):
            found = re.findall(r'class="(?:line|points|dot|way|span) ([^"]+)"', figure)
            assert any(one.split()[: len(series.split())] == series.split() for one in found)
            checked += 1
    assert checked > 6


def test_print_keeps_captions_with_their_tables() -> None:
    printed = style().partition("@media print{")[2]
    assert re.search(r"h2,caption,figcaption,thead[^{]*\{break-after:avoid\}", printed)
    assert "nav,caption button,code+button" in printed


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_is_valid(tmp_path: Path) -> None:
    (tmp_path / "page.js").write_text(script())
    done = subprocess.run(["node", "--check", str(tmp_path / "page.js")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_curves_do_not_cross_from_stage_to_stage(tmp_path: Path) -> None:
    """Each stage has a plot of its own for the reward, whose scales do not compare; other curves have a gap and a
    divider there, also where a page is short of room, and the figure says why KL falls to 0."""
    stages = {"length": ["length"], "quality": ["meteor"]}
    root = run(tmp_path, "two", PATHS["lfm"], stages, judged({"composite": [0.5, 0.6]}), {"composite": 0.55}, steps=90)
    edit_lines(root / "metrics.jsonl", lambda place, row: row | {"stage": "length" if place < 90 else "quality"})
    found = figures(report_of(root))
    kl, dynamics = (ElementTree.fromstring(found[number].svg) for number in ("2", "3"))
    titles = [node.text for node in dynamics.iter() if node.get("class") == "title"]
    assert [title for title in titles if title and title.startswith("reward ↑")] == [
        "reward ↑, stage length", "reward ↑, stage quality"
    ]  # fmt: skip
    assert "loss" in titles
    curves = [node.attrib["d"] for node in kl.iter() if node.get("class") == "line c0"]
    assert [curve.count("M") for curve in curves] == [2, 2]
    assert len([node for node in kl.iter() if node.get("class") == "grid dashed"]) == 2
    assert found["2"].notes == (
        "A dashed line is the end of a stage.", "Each stage measures KL from the policy that it began with."
    )  # fmt: skip
    assert found["3"].notes == found["2"].notes[:1]


@pytest.mark.parametrize(
    ("stages", "weight", "expected"),
    [
        ({"length": ["length"], "quality": ["meteor", "bleu"]}, 1.0,
         {"length, mean ↑": (1, 4), "meteor, mean ↑": (5, 8), "bleu, mean ↑": (5, 8)}),
        ({"included": ["length", "meteor"]}, -1.0, {"length, mean ↑": (1, 4), "meteor, mean": (1, 4)}),
        ({"length": ["length"]}, 1.0, {}),
    ],
)  # fmt: skip
def test_each_signal_has_a_curve(
    stages: dict[str, list[str]], weight: float, expected: dict[str, tuple[int, int]], tmp_path: Path
) -> None:
    """Where several make the reward, each has the steps of the stages that reward it; only of a penalty less is
    better."""
    root = run(tmp_path, "one", PATHS["lfm"], stages, judged({"composite": [0.5, 0.6]}), {"composite": 0.55})
    config = (root / "config.toml").read_text()
    (root / "config.toml").write_text(config.replace("meteor = 1.0", f"meteor = {weight}"))
    found = {title: curve for title, curve in _curves(figures(report_of(root))["3"].svg).items() if "mean" in title}
    assert {"advantage, mean", "tokens, mean"} <= set(found)
    signals = {title: curve for title, curve in found.items() if title not in ("advantage, mean", "tokens, mean")}
    assert list(signals) == list(expected)
    for title, (first, last) in expected.items():
        ticks, steps = signals[title]
        assert steps == last - first + 1
        assert ticks[0] <= first
        assert ticks[-1] >= last


def _curves(svg: str) -> dict[str, tuple[list[float], int]]:
    """Of each panel, by its title: the ticks of its x axis, and the points of its first curve."""
    found = {}
    for panel in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        texts = list(panel.iter(f"{SVG}text"))
        title = next((node.text for node in texts if node.get("class") == "title"), None)
        curve = next((node.attrib["d"] for node in panel.iter() if node.get("class") == "line c0"), None)
        if panel.get("transform") and title and curve:
            ticks = [float(node.text or 0) for node in texts if node.get("y") == "145.0"]
            found[title] = (ticks, len(re.findall("[ML]", curve)))
    return found
