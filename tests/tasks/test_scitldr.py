"""The script that writes SciTLDR's abstracts as data."""

import json
import subprocess
import sys
from pathlib import Path

from support.calls import Call, done

SCRIPT = Path(__file__).parents[2] / "scripts" / "scitldr.py"
PAPERS = {
    "train": [("a", ["We count  bees.", "There are nine."], ["Bees, counted. "]), ("b", ["In a test."], ["Leaked."])],
    "dev": [("c", ["A line\u2028goes on."], ["Lines."]), ("d", ["Nobody sums it up."], ["", " "])],
    "test": [("b", ["In a test."], ["Two of them.", " ", "Both are kept."])],
}


def test_its_abstracts_become_data(tmp_path: Path, call: Call) -> None:
    """Blanks are single, a paper has all of its TLDRs, one without any is left out, and what is tested is not trained
    on. The result is read as it is."""
    source, out = tmp_path / "clone" / "SciTLDR-Data" / "SciTLDR-A", tmp_path / "out"
    command = [sys.executable, str(SCRIPT), str(tmp_path / "clone"), str(out)]
    assert "is no clone of allenai/scitldr" in subprocess.run(command, capture_output=True, text=True).stderr
    source.mkdir(parents=True)
    for split, papers in PAPERS.items():
        lines = [json.dumps({"paper_id": name, "source": text, "target": tldrs}) for name, text, tldrs in papers]
        (source / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    subprocess.run(command, check=True)
    rows = {path.stem: [*map(json.loads, path.read_text().splitlines())] for path in out.iterdir()}
    assert rows == {
        "train": [{"id": "a", "prompt": "We count bees. There are nine.", "completion": ["Bees, counted."]}],
        "validation": [{"id": "c", "prompt": "A line goes on.", "completion": ["Lines."]}],
        "test": [{"id": "b", "prompt": "In a test.", "completion": ["Two of them.", "Both are kept."]}],
    }
    assert '"prompt": "We count bees.' in done(call("data", "tldr", f"--set=data.path={out}"))[0]
