"""Tables of settings: what they work out from several files of a run."""

from pathlib import Path

import pytest
from support.reports import edit, report_of, tables
from support.studies import CRITERIA, PATHS, judged, run

TWO = {"length": ["length"], "quality": ["meteor"]}


def trained(folder: Path, name: str, steps: dict[str, int]) -> Path:
    """A run of 2 prompts a step on 2,000 training prompts, with so many steps a stage; the second is cooler."""
    rows = judged({key: [0.5, 0.6, 0.7] for key in (*CRITERIA, "composite")})
    last = sum(steps.values())
    root = run(folder, name, PATHS["lfm"], {stage: TWO[stage] for stage in steps}, rows, {"composite": 0.6})
    text = (root / "config.toml").read_text()
    (root / "config.toml").write_text(text.replace("[stages.quality]", "[stages.quality]\ntemperature = 0.5"))
    edit(root / "run.json", steps=steps)
    edit(next(root.glob("eval/*/summary.json")), step=last)
    return root


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([{"length": 1000}], "1"),
        ([{"length": 500, "quality": 1500}], "0.5, then 1.5"),
        ([{"length": 500, "quality": 500}], "0.5"),
        ([{"length": 4}, {"length": 250_000}], "0.004 | 250"),
    ],
)
def test_epochs_follow_from_steps_and_prompts(runs: list[dict[str, int]], expected: str, tmp_path: Path) -> None:
    """Table 9 has them for all stages, and Table 9b for each, where a run has several."""
    for place, steps in enumerate(runs):
        trained(tmp_path, f"run-{place}", steps)
    found = tables(report_of(*sorted(tmp_path.iterdir())))
    cells = {row[0].text: row[1] for row in found["9"].rows}
    assert cells["Training epochs, each stage"].text == expected
    assert any(note.startswith("Epochs: ") for note in found["9"].notes)
    if len(runs[0]) > 1:
        place = found["9b"].columns.index("Epochs")
        assert [row[place].value for row in found["9b"].rows] == [steps / 1000 for steps in runs[0].values()]


def test_without_the_size_of_the_data_there_are_no_epochs(tmp_path: Path) -> None:
    root = trained(tmp_path, "run", {"length": 4, "quality": 4})
    edit(root / "run.json", corpus=None)
    found = tables(report_of(root))
    assert not any("pochs" in text for text in (*(row[0].text for row in found["9"].rows), *found["9"].notes))
    assert [row[found["9b"].columns.index("Epochs")].text for row in found["9b"].rows] == ["-", "-"]
