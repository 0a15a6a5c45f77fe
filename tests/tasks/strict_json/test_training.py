"""Strict JSON through the real command line: curriculum, resume, evaluation with several samples, the report."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tomli
import tomli_w
from support.calls import Call, done
from support.refusals import assert_refused
from support.training import weights

from smolsum.cli import main
from smolsum.config.resolve import resolve
from smolsum.files import read_jsonl
from smolsum.runs.checkpoints import list_checkpoints
from smolsum.runs.paths import RunPaths
from smolsum.runs.typed_json import read_summary
from smolsum.tasks import TASKS

STAGES = ("format_basics", "progressive", "full_difficulty")
SMALL = [
    "--strategy=curriculum", *(f"--set=stages.{name}.steps=2" for name in STAGES),
    "--set=stages.format_basics.mix={simple=1.0}", "--set=stages.full_difficulty.mix={hard=1.0}",
    *(f"--set=task.{split}_prompts={n}" for split, n in (("train", 20), ("validation", 20), ("test", 8))),
    "--set=train.validation_prompts=2", "--set=train.validate_every=1", "--set=train.prompts_per_step=2",
    "--set=sampling.rollouts=4", "--set=sampling.max_new_tokens=64", "--plain",
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a curriculum of three stages of two steps, the optimizer kept between them."""
    folder = tmp_path_factory.mktemp("runs")
    kept = "--set=optimizer.between_stages=kept"
    assert main.main(["train", "--task=strict-json", "--name=whole", f"--runs-dir={folder}", kept, *SMALL]) == 0
    return folder


@pytest.fixture
def whole(runs: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """The run, which commands find by its name."""
    monkeypatch.setenv("SMOLSUM_RUNS_DIR", str(runs))
    return RunPaths(runs / "whole")


def test_each_stage_has_its_mix(whole: RunPaths) -> None:
    """The first has simple prompts alone, the last hard ones; both kinds are in the data."""
    config = resolve(TASKS, config_file=whole.config).config
    examples = TASKS["strict-json"].prompts.load(config, "train").examples
    level_of = {example.id: example.metadata["level"] for example in examples}
    assert len(set(level_of.values())) == 3
    for steps, level in (((1, 2), "simple"), ((5, 6), "hard")):
        rows = [row for step in steps for row in read_jsonl(whole.completions(step))]
        assert {level_of[row["prompt_id"]] for row in rows} == {level}


def test_stages_keep_their_optimizer_if_asked_to(runs: Path, tmp_path: Path) -> None:
    """Each stage goes on with the moments of the one before; by default it begins with a fresh optimizer."""
    rows = read_jsonl(runs / "whole" / "metrics.jsonl")
    assert [row["stage"] for row in rows] == [name for name in STAGES for _ in range(2)]
    assert all({"json/passed", "validation/passed", "validation/errors/no block"} <= set(row) for row in rows)
    assert main.main(["train", "--task=strict-json", "--name=fresh", f"--runs-dir={tmp_path}", *SMALL]) == 0
    for run, expected in ((runs / "whole", [2, 4, 6]), (tmp_path / "fresh", [2, 2, 2])):
        files = [RunPaths(run).checkpoint(step) / "optimizer.safetensors" for step in (2, 4, 6)]
        assert [int(mx.load(str(file))["step"].item()) for file in files] == expected


def test_the_best_checkpoint_is_that_of_all_stages(whole: RunPaths, call: Call) -> None:
    """By the validations in metrics.jsonl: the first with the most that pass, then with the highest reward."""
    rows = read_jsonl(whole.metrics)
    best = max(rows, key=lambda row: (row["validation/passed"], row["validation/reward"]))
    named = (f"step {best['step']} of whole", f"passed {best['validation/passed']:.3f}")
    out, _ = done(call("eval", "whole", "--best", "--plain"), *named)
    assert read_summary(Path(out.strip())).step == best["step"]
    found = {c.step: c.meta.validation for c in list_checkpoints(whole)}
    scores = {row["step"]: {"score": row["validation/passed"], "reward": row["validation/reward"]} for row in rows}
    assert found == {step: scores[step] for step in found if step in scores}


def set_back(whole: Path, folder: Path, step: int) -> Path:
    """A copy of the run as a kill -9 after this step, the last that its metrics have, would leave it."""
    copy = folder / "copy"
    shutil.copytree(whole, copy, symlinks=True)
    (copy / "metrics.jsonl").write_text("".join((copy / "metrics.jsonl").read_text().splitlines(True)[:step]))
    for later in range(2 * (step // 2) + 1, 7):
        shutil.rmtree(RunPaths(copy).checkpoint(later), ignore_errors=True)
    for name in STAGES[step // 2 :]:
        shutil.rmtree(copy / "eval" / f"{name}-test")
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 3, 4])
def test_a_stage_is_resumed_bit_for_bit(runs: Path, tmp_path: Path, step: int) -> None:
    """A run that is set back into its second stage, or to the end of its first or second, ends with the same
    weights."""
    copy = set_back(runs / "whole", tmp_path, step)
    assert main.main(["train", "--resume", str(copy), "--plain"]) == 0
    assert weights(copy, 6) == weights(runs / "whole", 6) != {}


def edit(run: Path, key: str, value: Any) -> None:
    """Change a setting, by its dotted key, in the run's config.toml; None takes it out."""
    config = tomli.loads((run / "config.toml").read_text())
    *sections, last = key.split(".")
    table = config
    for section in sections:
        table = table[section]
    table[last] = value
    if value is None:
        del table[last]
    (run / "config.toml").write_text(tomli_w.dumps(config))


@pytest.mark.parametrize(
    ("key", "value", "stage", "reason"),
    [
        ("stages.progressive.temperature", 0.9, "progressive", "(0.7 then, 0.9 now)"),
        ("stages.progressive.mix", {"hard": 1.0}, "progressive", "stages.progressive.mix.simple (0.15 then, none now)"),
        ("stages.progressive.steps", 3, "progressive", "(2 then, 3 now)"),
        ("stages.format_basics.steps", 1, "format_basics", "(2 then, 1 now)"),
        ("sampling.rollouts", 2, "format_basics", "(4 then, 2 now)"),
        ("stages.progressive", None, "progressive", "no longer"),
    ],
)
def test_a_stage_that_has_begun_stays_as_it_was(
    runs: Path, tmp_path: Path, call: Call, key: str, value: Any, stage: str, reason: str
) -> None:
    """Edited settings are refused, each by its name, and nothing of the run is touched."""
    run = set_back(runs / "whole", tmp_path, 3)
    edit(run, key, value)
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    refused = call("train", "--resume", run, "--plain")
    assert_refused(refused, f"stage {stage}", *([key] if value else []), reason, f"{run}/config.toml")
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


@pytest.mark.slow
def test_a_stage_to_come_may_be_edited(runs: Path, tmp_path: Path) -> None:
    """The run ends as one that had these settings from the start, and says so in run.json, also where it is
    mirrored."""
    run = set_back(runs / "whole", tmp_path, 3)
    shutil.copytree(run, tmp_path / "kept" / "copy", ignore=shutil.ignore_patterns("latest"))
    edit(run, "stages.full_difficulty.temperature", 0.9)
    edit(run, "stages.full_difficulty.steps", 1)
    afresh = ["train", f"--config={run / 'config.toml'}", "--name=afresh", f"--runs-dir={tmp_path / 'apart'}"]
    assert main.main(["train", "--resume", str(run), f"--mirror=file://{tmp_path / 'kept'}", "--plain"]) == 0
    assert main.main([*afresh, "--plain"]) == 0
    assert weights(run, 5) == weights(tmp_path / "apart" / "afresh", 5) != {}
    then, now = (json.loads((r / "run.json").read_text()) for r in (tmp_path / "apart" / "afresh", run))
    assert all(now[key] == then[key] for key in ("steps", "fingerprints", "settings"))
    assert now["steps"]["full_difficulty"] == 1
    assert (tmp_path / "kept" / "copy" / "run.json").read_bytes() == (run / "run.json").read_bytes()


def test_evaluation_and_report(whole: RunPaths, call: Call) -> None:
    """Several samples give pass@k, no judge is asked for, and the report follows errors from stage to stage."""
    out, err = done(call("eval", "whole", "--temperature=1", "--samples=4", "--plain"), "4 samples")
    metrics = read_summary(Path(out.strip())).metrics
    assert metrics["passed/pass@1"] <= metrics["passed/pass@2"] <= metrics["passed/pass@4"]
    assert metrics["parses/pass@4"] >= metrics["passed/pass@4"]
    assert metrics["passed/low"] <= metrics["passed"] <= metrics["passed/high"]
    assert metrics["passed"] == pytest.approx(metrics["passed/pass@1"])
    assert metrics["hard/parses"] == pytest.approx(metrics["hard/parses/pass@1"])
    columns = [f"parses@{k}" for k in (1, 2, 4, 8)]
    assert err.split("hard in k samples")[1].split()[:5] == [*columns, "schema@1"]
    assert "composite" not in err
    assert len(read_jsonl(Path(out.strip()) / "generations.jsonl")) == 4 * 8
    assert call("eval", "whole", "--samples=4")[0] == 2
    done(call("report", "whole", "--format=md"))
    page = (whole.root / "report" / "report.md").read_text()
    shown_parts = (
        "From stage to stage", "Errors by step", "S15b: Simple", "S15c: Medium", "S15d: Hard", "The first prompts**",
        "passed, passed, validation,",  # Figure 3
        "[0.8, then 0.7, then 0.6](",  # Table 9
        "Broken JSON", "no closed block that is marked as JSON",
    )  # fmt: skip
    assert [part for part in shown_parts if part not in page] == []
    assert [part for part in ("share on target", "| Reference |") if part in page] == []
    parts = {part.partition(":")[0]: re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", part) for part in page.split("**Table ")}
    shown = [line.split(" | ") for line in parts["S15a"].splitlines() if "whole" in line]
    folders = [f"{name}-test" for name in ("start", *STAGES)] + ["step-000006-test-t1-seed0-x4"]
    assert [row[0] for row in shown] == [f"| whole, {name}".replace("_", "\\_") for name in folders]
    low, high = (f"{metrics[f'parses/{end}']:.1%}" for end in ("low", "high"))
    assert shown[-1][1:4] == [f"{metrics['parses']:.1%}", low, high]
    sampled = next(part for part in parts.values() if "Satisfies the schema in k samples" in part)
    assert f"| {metrics['passed/pass@4']:.1%} |" in sampled
    assert len([line for line in sampled.splitlines() if "whole" in line]) == 1
    cells = [line.split(" | ") for line in parts["9b"].splitlines() if "whole" in line]
    assert [(row[1], row[2], row[4], row[7]) for row in cells] == [
        ("format\\_basics", "2", "0.8", "simple 1"),
        ("progressive", "2", "0.7", "simple 0.15, medium 0.35, hard 0.5"),
        ("full\\_difficulty", "2", "0.6", "hard 1"),
    ]
    assert cells[0][8].startswith("format 0.2, validity 0.25, schema 0.25")


def test_baseline_thinks_or_not(whole: RunPaths, tmp_path: Path, call: Call) -> None:
    """The baseline asks plainly and for thinking; both are compared example by example."""
    few = [f"--set=task.{split}_prompts=20" for split in ("train", "validation", "test")]
    out, _ = done(call("baseline", "--task=strict-json", "--set=sampling.max_new_tokens=80", *few, "--plain"))
    plain, think = map(Path, out.split())
    assert [path.name for path in (plain, think)] == [
        f"baseline-strict-json-tiny-json-{variant}-test" for variant in ("plain", "think")
    ]
    assert read_summary(plain).metrics["reasoning"] == -0.5
    assert read_summary(think).metrics["reasoning"] > 0
    assert "McNemar" in "".join(done(call("stats", "--paired", plain, think, "--metric", "passed")))
    out, _ = done(call("report", plain, think, "--format=md", "--output", tmp_path / "untrained"))
    page = Path(out.strip()).read_text()
    assert "smolsum train --task strict-json --model builtin:tiny-json" in page
    assert "meteor" not in page


def test_data_without_levels(tmp_path: Path, call: Call) -> None:
    """An evaluation on data of one's own shows the tables that the data fill, and promises no others."""
    row = {"prompt": 'A JSON object with the key "name".', "schema": {"required": ["name"], "properties": {"x": True}}}
    (tmp_path / "test.jsonl").write_text(json.dumps(row) + "\n")
    own = [f"--set=data.path={tmp_path}", f"--runs-dir={tmp_path / 'runs'}", "--set=sampling.max_new_tokens=40"]
    _, shown = done(call("baseline", "--task=strict-json", "--prompt=plain", *own, "--plain"))
    assert [line for line in shown.splitlines() if line.startswith("missing")] == [
        "missing: pass@1, pass@2, pass@4, pass@8; to fill them: --temperature 0.7 --samples 8"
    ]
    assert "satisfies the schema" in shown
