"""`smolsum report` for other programs: tables as CSV and Parquet, evaluations for inspect_ai and Every Eval Ever.
`golden/*.schema.json` record what the official readers accept; `integration/test_official_readers.py` asks them."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest
from support.calls import Call, done
from support.places import GOLDEN
from support.refusals import assert_refused
from support.studies import CRITERIA, PATHS, evaluation, judged, run
from support.training import arguments, make_data

from smolsum.cli import main
from smolsum.errors import SmolsumError
from smolsum.files import read_jsonl

SHORT: dict[str, Any] = {
    "stages__length__steps": 2, "stages__quality__steps": 1, "sampling__rollouts": 2, "sampling__max_new_tokens": 24,
    "task__target_tokens": 20,
}  # fmt: skip
SECRET = "my roommate took the car"
REASON = "it names the car"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `posts`, and `runs` with a run `mine` and the baseline `plain` on the same posts."""
    folder = tmp_path_factory.mktemp("home-of-ann")
    data = make_data(folder / "posts")
    assert main.main([*arguments(data, folder / "runs", "mine", **SHORT), "--quiet"]) == 0
    asked = ["--model", "tiny", "--prompt", "Say it in ten words.", "--set", f"data.path={data}"]
    assert main.main(["baseline", *asked, "--runs-dir", str(folder / "runs"), "--quiet"]) == 0
    return folder


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A folder with a judged run and a judged model behind an endpoint."""
    columns = {name: [0.5, 0.7, 0.25, 1.0] for name in CRITERIA} | {"composite": [2.0, 2.8, 1.0, 4.0]}
    columns |= {"meteor": [0.1, 0.2, 0.3, 0.1]}
    rows = judged(columns, [f"{SECRET} {number}" for number in range(4)])
    rows[1]["meteor"] = None
    rows[0]["rounds"] = {"clarity": [0.25, 0.75]}
    means = {name: sum(values) / 4 for name, values in columns.items()} | {"meteor": 0.5 / 3, "errors/copied": 0.25}
    root = run(tmp_path / "runs", "judged", PATHS["qwen"], {"length": ["length"]}, rows, means)
    reasons = [{"id": "test-0000", "round": n, "metric": "clarity", "judge": "judge-a", "key": "k", "score": 0.25,
                "reason": REASON, "endpoint": "http://10.0.0.7/v1"} for n in (1, 2)]  # fmt: skip
    lines = "".join(json.dumps(row) + "\n" for row in reasons)
    (root / "eval" / "length-test" / "judgements.jsonl").write_text(lines)
    api = {"path": "their-model", "weights": "behind http://10.0.0.8/v1"}
    settings = {"name": "tldr", "target_tokens": 64, "tolerance_tokens": 5}
    evaluation(tmp_path / "runs" / "api", rows, means, model=api, task=settings)
    return tmp_path / "runs"


def all_text(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted(folder.rglob("*.json")))


def logs_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The logs in a folder by the name of their evaluation, each as the recorded schema wants it."""
    schema = json.loads((GOLDEN / "inspect_log.schema.json").read_text())
    found = {}
    for path in sorted(folder.glob("*.json")):
        log = json.loads(path.read_text())
        jsonschema.Draft202012Validator(schema).validate(log)
        time, _, rest = path.name.partition("_")
        assert log["eval"]["created"].replace(":", "-") == time
        assert rest.endswith(f"_{log['eval']['task_id']}.json")
        found[log["eval"]["task_display_name"]] = log
    return found


def metrics_of(log: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {
        (score["name"], name): metric["value"]
        for score in log["results"]["scores"]
        for name, metric in score["metrics"].items()
    }


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_have_the_values_of_the_report(form: str, study: Path, call: Call) -> None:
    """Each table that JSON has, with its numbers unrounded, and null for what is missing."""
    assert done(call("report", study / "judged", "--format", form, "--output", "out"))[0] == "out/tables\n"
    done(call("report", study / "judged", "--format", "json", "--output", "out"))
    read = pl.read_parquet if form == "parquet" else pl.read_csv
    contents = read(f"out/tables/contents.{form}")
    report = json.loads(Path("out/report.json").read_text())
    tables = [one for section in report["sections"] for one in section["items"] if "table" in one]
    tables = [(one, [row for row in one["rows"] if any("value" in cell or "command" not in cell for cell in row)])
              for one in tables]  # fmt: skip
    compared = 0
    for table, rows in tables:
        if table["table"] not in contents["table"].cast(pl.String).to_list():
            assert all(any("command" in cell for cell in row) for row in table["rows"])
            continue
        frame = read(f"out/tables/table-{table['table']}.{form}")
        shown = [name for name in frame.columns if name.endswith(", as shown")]
        assert len(frame.columns) == len(table["columns"]) + len(shown)
        assert frame.height <= len(rows)
        numbers = [cell["value"] for row in table["rows"] for cell in row if isinstance(cell.get("value"), float)]
        written = {str(value) for column in frame for value in column.to_list()}
        assert not [value for value in numbers if str(value) not in written and str(int(value)) not in written]
        compared += len(numbers)
    assert compared > 20
    done(call("report", study / "judged", "--format", form, "--output", "out", "--check"))
    path = next(Path("out/tables").glob(f"table-*.{form}"))
    path.write_bytes(path.read_bytes() + b"\n9,9")
    Path(f"out/tables/table-old.{form}").write_text("")
    again = call("report", study / "judged", "--format", form, "--output", "out", "--check")
    assert_refused(again, path.name, "table-old", "is not what these runs give", error=SmolsumError)


def test_logs_have_every_number(home: Path, call: Call) -> None:
    """Means and scores of each example as the evaluation has them, for all evaluations of the runs."""
    out, _ = done(call("report", *sorted((home / "runs").iterdir()), "--format", "inspect"))
    assert out == "report/inspect\n"
    logs = logs_of(Path("report/inspect"))
    baseline = next(path for path in (home / "runs").glob("baseline*"))
    folders = {
        f"mine-{label}-test": home / "runs/mine/eval" / f"{label}-test" for label in ("start", "length", "quality")
    }
    folders |= {baseline.name: baseline}
    assert logs.keys() == folders.keys()
    for name, folder in folders.items():
        summary, rows = json.loads((folder / "summary.json").read_text()), read_jsonl(folder / "scores.jsonl")
        written = metrics_of(logs[name])
        for metric, value in summary["metrics"].items():
            assert value is None or value in written.values(), metric
        for row, sample in zip(rows, logs[name]["samples"], strict=True):
            numbers = {key: value for key, value in row.items() if isinstance(value, float | int)}
            assert {key: score["value"] for key, score in sample["scores"].items()} == numbers
            assert sample["id"] == row["id"]
    assert logs["mine-quality-test"]["eval"]["model"] == "smolsum/mine-step-3"
    assert logs["mine-start-test"]["eval"]["model"] == "smolsum/tiny"
    done(call("report", *sorted((home / "runs").iterdir()), "--format", "inspect", "--check"))


def test_texts_leave_only_when_asked(home: Path, call: Call) -> None:
    """Prompts as they were sent, references and answers with --texts; without, none of them, and no folder or host."""
    private = [str(home), "home-of-ann", json.loads((home / "runs/mine/status.json").read_text())["host"] + '"']
    posts = pl.read_parquet(home / "posts" / "test.parquet")
    rows = read_jsonl(home / "runs/mine/eval/quality-test/scores.jsonl")
    texts = [*posts["prompt"], *posts["completion"], *(row["text"] for row in rows)]
    texts = [json.dumps(text, ensure_ascii=False)[1:-1] for text in texts if len(text) > 20]
    for form in ("inspect", "every-eval-ever"):
        done(call("report", *sorted((home / "runs").iterdir()), "--format", form))
        found = all_text(Path("report") / form)
        assert not [one for one in (*private, *texts) if one in found]
    done(call("report", *sorted((home / "runs").iterdir()), "--format", "inspect", "--texts"))
    found = all_text(Path("report/inspect"))
    assert not [one for one in texts if one not in found]
    assert not [one for one in private if one in found]
    logs = logs_of(Path("report/inspect"))
    asked = next(log for name, log in logs.items() if name.startswith("baseline"))["samples"][0]["input"]
    assert (asked[0]["role"], asked[1]["content"]) == ("system", posts["prompt"][0])
    assert asked[0]["content"] == "Say it in ten words."
    ends = {
        row["id"]: row["finish_reason"] for row in read_jsonl(home / "runs/mine/eval/quality-test/generations.jsonl")
    }
    for sample in logs["mine-quality-test"]["samples"]:
        known = {"stop": "stop", "length": "max_tokens"}[ends[sample["id"]]]
        assert sample["output"]["choices"][0]["stop_reason"] == known


def test_data_that_are_elsewhere(home: Path, tmp_path: Path, call: Call) -> None:
    """Answers are still there, and a warning says what is not."""
    shutil.copytree(home / "runs", tmp_path / "runs", symlinks=True)
    config = tmp_path / "runs/mine/config.toml"
    config.write_text(config.read_text().replace(str(home / "posts"), str(tmp_path / "gone")))
    done(call("report", "runs/mine", "--format", "inspect", "--texts"), "the prompts of", "are left out", "gone")
    sample = logs_of(tmp_path / "runs/mine/report/inspect")["mine-quality-test"]["samples"][0]
    assert sample["input"] == ""
    assert sample["output"]["completion"] == read_jsonl(home / "runs/mine/eval/quality-test/scores.jsonl")[0]["text"]


def test_a_copy_gives_the_same_bytes(home: Path, tmp_path: Path, call: Call) -> None:
    """The time of an evaluation is that of the run's events, not of the copied file."""
    done(call("report", home / "runs/mine", "--format", "inspect", "--output", "out"))
    shutil.copytree(home / "runs/mine", tmp_path / "runs/mine", symlinks=True)
    for path in (tmp_path / "runs/mine/eval").glob("*/summary.json"):
        os.utime(path, (0, 0))
    done(call("report", "runs/mine", "--format", "inspect", "--output", "out", "--check"))


def test_evidence_has_no_texts(home: Path, tmp_path: Path, call: Call) -> None:
    """What was exported without texts is written without, and a warning says so."""
    done(call("export", home / "runs/mine", "model", "--license", "mit"))
    done(
        call("report", "model/evidence/mine", "--format", "inspect", "--texts"), "quality-test are left out: it has no"
    )
    sample = logs_of(tmp_path / "model/evidence/mine/report/inspect")["mine-quality-test"]["samples"][0]
    assert sample["output"]["completion"] == ""
    assert sample["scores"]


def test_judged_evaluations(study: Path, call: Call) -> None:
    """Rounds are with their example, reasons leave with the texts only, a missing value has no score, and the address
    of an endpoint stays."""
    done(call("report", study / "judged", study / "api", "--format", "inspect"))
    found = all_text(Path("report/inspect"))
    assert not [one for one in (SECRET, REASON, "10.0.0") if one in found]
    logs = logs_of(Path("report/inspect"))
    first, second = logs["judged-length-test"]["samples"][:2]
    assert first["scores"]["clarity"] == {"value": 0.5, "history": [], "metadata": {"rounds": [0.25, 0.75]}}
    assert "meteor" not in second["scores"]
    meteor = next(one for one in logs["judged-length-test"]["results"]["scores"] if one["name"] == "meteor")
    assert (meteor["scored_samples"], meteor["unscored_samples"]) == (3, 1)
    assert meteor["metrics"]["mean"]["value"] == 0.5 / 3
    assert metrics_of(logs["judged-length-test"])["summary", "errors/copied"] == 0.25
    done(call("report", study / "judged", "--format", "inspect", "--texts"))
    first = logs_of(study / "judged/report/inspect")["judged-length-test"]["samples"][0]
    assert first["scores"]["clarity"]["explanation"] == f"{REASON}\n{REASON}"
    assert first["output"]["completion"] == f"{SECRET} 0"


def test_records_of_every_eval_ever(home: Path, study: Path, call: Call) -> None:
    """By the recorded schema, at the store's own paths, with the unrounded means and who evaluated."""
    runs = [home / "runs" / "mine", study / "judged", study / "api"]
    done(call("report", *runs, "--format", "every-eval-ever", "--organization", "My Lab"))
    schema = json.loads((GOLDEN / "every_eval_ever.schema.json").read_text())
    records = {}
    for path in sorted(Path("report/every-eval-ever").rglob("*.json")):
        record = json.loads(path.read_text())
        jsonschema.Draft7Validator(schema).validate(record)
        place, model = path.relative_to("report/every-eval-ever").parts, record["model_info"]["id"]
        assert place[:-1] == ("data", "smolsum-tldr", *model.split("/"))
        records.setdefault(model, []).append(record)
    assert records.keys() == {
        "smolsum/tiny", "My-Lab/mine-step-2", "My-Lab/mine-step-3", "My-Lab/judged-step-4", "unknown/their-model",
    }  # fmt: skip
    (last,) = records["My-Lab/mine-step-3"]
    summary = json.loads((home / "runs/mine/eval/quality-test/summary.json").read_text())
    assert last["source_metadata"]["source_organization_name"] == "My Lab"
    found = {one["metric_config"]["metric_name"]: one for one in last["evaluation_results"]}
    for measure in summary["measures"]:
        if (value := summary["metrics"][measure["name"]]) is not None:
            assert found[measure["title"]]["score_details"]["score"] == value
            assert found[measure["title"]]["metric_config"]["lower_is_better"] == (measure["better"] == "lower")
    (remote,) = records["unknown/their-model"]
    assert remote["model_info"]["additional_details"]["deployment_type"] == "unknown"
    composite = next(one for one in remote["evaluation_results"] if one["metric_config"]["metric_name"] == "composite")
    assert (composite["score_details"]["score"], composite["metric_config"]["max_score"]) == (2.45, 4.0)


def test_models_and_data_on_the_hub(study: Path, call: Call) -> None:
    """They keep their names, without a revision, where the run was made from the hub; a path has its last part only."""
    info = study / "judged" / "run.json"
    named = {"revisions": {PATHS["qwen"]: "abc", "mlabonne/smoltldr": "def"}}
    splits = {"test": {"split": "test", "fingerprint": "d1", "prompts": "p1"}}
    info.write_text(json.dumps({**json.loads(info.read_text()), **named, "data": splits}))
    summary = study / "judged/eval/length-test/summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "step": 0, "label": "start"}))
    shutil.copytree(summary.parent, study / "judged/eval/last-test")
    last = study / "judged/eval/last-test/summary.json"
    last.write_text(json.dumps({**json.loads(last.read_text()), "step": 4, "label": "length"}))
    done(call("report", study / "judged", "--format", "every-eval-ever", "--output", "out"))
    records = [json.loads(path.read_text()) for path in Path("out/every-eval-ever").rglob("*.json")]
    models = {one["model_info"]["id"]: one["model_info"]["additional_details"] for one in records}
    assert models.keys() == {PATHS["qwen"], "unknown/judged-step-4"}
    assert models[PATHS["qwen"]]["model_availability"] == "open_weights"
    assert models["unknown/judged-step-4"]["base_model"] == PATHS["qwen"]
    source = records[0]["evaluation_results"][0]["source_data"]
    assert (source["source_type"], source["hf_repo"]) == ("hf_dataset", "mlabonne/smoltldr")


def test_what_an_earlier_report_left_is_named(home: Path, call: Call) -> None:
    done(call("report", home / "runs" / "mine", "--format", "inspect", "--output", "out"))
    first = sorted(os.listdir("out/inspect"))[0]
    Path("out/inspect", f"9{first}").write_text("{}")
    done(
        call("report", home / "runs" / "mine", "--format", "inspect", "--output", "out"),
        f"9{first} is not of these runs",
    )


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("--format html --texts", "--texts is for logs of inspect_ai"),
        ("--format every-eval-ever --texts", "--texts is for logs of inspect_ai"),
        ("--format inspect --organization Lab", "names no organization"),
        ("--format inspect --plan plan.toml", "a plan is part of a report"),
    ],
)
def test_flags_of_other_forms(line: str, named: str, study: Path, call: Call) -> None:
    assert_refused(call("report", study / "judged", *line.split()), named)
    assert not Path("report").exists()


def test_nothing_to_write(study: Path, call: Call) -> None:
    (study / "judged" / "status.json").write_text('{"state": "running", "step": 2}')
    refused = call("report", study / "judged", "--format", "inspect")
    assert_refused(refused, "there is no finished evaluation", "half-finished", error=SmolsumError)
