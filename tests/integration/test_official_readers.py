"""The official readers open what `smolsum report` writes for them, and have the numbers of the evaluations.

$SMOLSUM_INSPECT_PYTHON names the Python of an environment that has inspect_ai, pandas and pyarrow,
$SMOLSUM_EVERY_EVAL_EVER_PYTHON that of one that has every-eval-ever.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.training import arguments, make_data

from smolsum.cli import main
from smolsum.files import read_jsonl

INSPECT = os.environ.get("SMOLSUM_INSPECT_PYTHON", "")
EVERY_EVAL_EVER = os.environ.get("SMOLSUM_EVERY_EVAL_EVER_PYTHON", "")
pytestmark = pytest.mark.slow
SHORT: dict[str, Any] = {"stages__length__steps": 2, "stages__quality__steps": 1, "sampling__rollouts": 2}
READ_LOGS = """
import json, sys
from inspect_ai.analysis import evals_df, samples_df
from inspect_ai.log import list_eval_logs, read_eval_log
logs = [read_eval_log(info.name) for info in list_eval_logs(sys.argv[1])]
assert [read_eval_log(log.location, header_only=True).results for log in logs] == [log.results for log in logs]
assert len(evals_df(sys.argv[1], quiet=True)) == len(logs)
assert len(samples_df(sys.argv[1], quiet=True)) == sum(len(log.samples) for log in logs)
print(json.dumps({
    log.eval.task_display_name: {
        "status": log.status,
        "metrics": [metric.value for score in log.results.scores for metric in score.metrics.values()],
        "samples": {one.id: {name: score.value for name, score in one.scores.items()} for one in log.samples},
        "answers": {one.id: one.output.completion for one in log.samples},
    }
    for log in logs
}))
"""
READ_RECORDS = """
import importlib.resources, json, sys
import jsonschema
from every_eval_ever.eval_types import EvaluationLog
schema = json.loads(importlib.resources.files("every_eval_ever").joinpath("schemas/eval.schema.json").read_text())
found = {}
for path in sys.argv[1:]:
    content = json.load(open(path))
    jsonschema.Draft7Validator(schema).validate(content)
    log = EvaluationLog.model_validate(content)
    found[log.model_info.id] = {
        one.metric_config.metric_name: one.score_details.score for one in log.evaluation_results
    }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("official")
    data = make_data(folder / "posts")
    assert main.main([*arguments(data, folder / "runs", "mine", **SHORT), "--quiet"]) == 0
    return folder / "runs" / "mine"


def evaluations(run: Path) -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Summary and scores of each evaluation of the run."""
    return {
        folder.name: (json.loads((folder / "summary.json").read_text()), read_jsonl(folder / "scores.jsonl"))
        for folder in sorted((run / "eval").iterdir())
    }


def output_of(python: str, code: str, *args: object) -> Mapping[str, Any]:
    command = [python, "-c", code, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found: Mapping[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.skipif(not INSPECT, reason="SMOLSUM_INSPECT_PYTHON names no environment that has inspect_ai")
@pytest.mark.parametrize("texts", [False, True])
def test_inspect_ai(run: Path, tmp_path: Path, texts: bool) -> None:
    """`read_eval_log`, whole and its header, and the data frames; `inspect view bundle` takes the logs too."""
    flags = ["--texts"] if texts else []
    assert main.main(["report", str(run), "--format", "inspect", "--output", str(tmp_path), *flags]) == 0
    logs = output_of(INSPECT, READ_LOGS, tmp_path / "inspect")
    assert len(logs) == 3
    for name, (summary, rows) in evaluations(run).items():
        log = logs[f"mine-{name}"]
        assert log["status"] == "success"
        assert not [value for value in summary["metrics"].values() if value is not None and value not in log["metrics"]]
        for row in rows:
            numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
            assert log["samples"][row["id"]] == numbers
            assert log["answers"][row["id"]] == (row["text"] if texts else "")
    bundle = ["view", "bundle", "--log-dir", tmp_path / "inspect", "--output-dir", tmp_path / "page"]
    subprocess.run([Path(INSPECT).with_name("inspect"), *bundle], check=True, capture_output=True, timeout=300)
    assert len(list((tmp_path / "page" / "logs").glob("*_tldr-mine-*.json"))) == 3


@pytest.mark.skipif(not EVERY_EVAL_EVER, reason="SMOLSUM_EVERY_EVAL_EVER_PYTHON names no environment that has it")
def test_every_eval_ever(run: Path, tmp_path: Path) -> None:
    """The package's validator accepts the records without a warning, and its types have the numbers."""
    flags = ["--organization", "My Lab", "--output", str(tmp_path)]
    assert main.main(["report", str(run), "--format", "every-eval-ever", *flags]) == 0
    store = tmp_path / "every-eval-ever"
    paths = [path.relative_to(store) for path in sorted(store.rglob("*.json"))]
    tool = Path(EVERY_EVAL_EVER).with_name("every_eval_ever")
    done = subprocess.run([tool, "validate", "--format", "json", *paths], cwd=store, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"warnings": [{' not in " ".join(done.stdout.split())
    records = output_of(EVERY_EVAL_EVER, READ_RECORDS, *(store / path for path in paths))
    names = {"start-test": "smolsum/tiny", "length-test": "My-Lab/mine-step-2", "quality-test": "My-Lab/mine-step-3"}
    for name, (summary, _) in evaluations(run).items():
        known = {one["title"]: summary["metrics"].get(one["name"]) for one in summary["measures"]}
        assert records[names[name]] == {title: value for title, value in known.items() if value is not None}
