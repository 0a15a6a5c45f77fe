"""Strict JSON through the real command line: curriculum, resume, evaluation with several samples, the report."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tomli
import tomli_w

from smolsum.cli import main
from smolsum.config.resolve import resolve
from smolsum.files import read_jsonl
from smolsum.runs.checkpoints import list_checkpoints
from smolsum.runs.paths import RunPaths
from smolsum.runs.record_io import read_summary
from smolsum.tasks import TASKS

STAGES = ("format_basics", "progressive", "full_difficulty")
SMALL = [
    "--strategy=curriculum",
    *(f"--set=stages.{name}.steps=2" for name in STAGES),
    "--set=stages.format_basics.mix={simple=1.0}",
    "--set=stages.full_difficulty.mix={hard=1.0}",
    *(f"--set=task.{split}_prompts={n}" for split, n in (("train", 20), ("validation", 20), ("test", 8))),
    "--set=train.validation_prompts=2",
    "--set=train.validate_every=1",
    "--set=train.prompts_per_step=2",
    "--set=sampling.rollouts=4",
    "--set=sampling.max_new_tokens=64",
    "--plain",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a curriculum of three stages of two steps, the optimizer kept between them."""
    folder = tmp_path_factory.mktemp("runs")
    kept = "--set=optimizer.between_stages=kept"
    assert main.main(["train", "--task=strict-json", "--name=whole", f"--runs-dir={folder}", kept, *SMALL]) == 0
    return folder


def optimizer_steps(run: Path, step: int) -> int:
    return int(mx.load(str(RunPaths(run).checkpoint(step) / "optimizer.safetensors"))["step"].item())


def test_each_stage_has_its_mix(runs: Path) -> None:
    """The first has simple prompts alone, the last hard ones; both kinds are in the data."""
    config = resolve(
        TASKS, config_file=runs / "whole" / "config.toml", ).config  # fmt: skip
    level_of = {
        example.id: example.metadata["level"] for example in TASKS["strict-json"].prompts.load(config, "train").examples
    }
    assert len(set(level_of.values())) == 3
    for steps, level in (((1, 2), "simple"), ((5, 6), "hard")):
        rows = [row for step in steps for row in read_jsonl(RunPaths(runs / "whole").completions(step))]
        assert {level_of[row["prompt_id"]] for row in rows} == {level}


def test_stages_keep_their_optimizer(runs: Path) -> None:
    """Asked to, each stage goes on with the moments of the one before."""
    run = runs / "whole"
    assert [optimizer_steps(run, step) for step in (2, 4, 6)] == [2, 4, 6]
    assert [row["stage"] for row in read_jsonl(run / "metrics.jsonl")] == [name for name in STAGES for _ in range(2)]
    assert all({"json/passed", "validation/passed", "validation/errors/no block"} <= set(row) for row in
               read_jsonl(run / "metrics.jsonl"))  # fmt: skip


def test_stages_begin_with_a_fresh_optimizer(tmp_path: Path) -> None:
    """By default."""
    fresh = ["train", "--task=strict-json", "--name=fresh", f"--runs-dir={tmp_path}", *SMALL]
    assert main.main(fresh) == 0
    assert [optimizer_steps(tmp_path / "fresh", step) for step in (2, 4, 6)] == [2, 2, 2]


def test_the_best_checkpoint_is_that_of_all_stages(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the validations in metrics.jsonl: the first with the most that pass, then with the highest reward."""
    monkeypatch.setenv("SMOLSUM_RUNS_DIR", str(runs))
    rows = read_jsonl(runs / "whole" / "metrics.jsonl")
    best = max(rows, key=lambda row: (row["validation/passed"], row["validation/reward"]))
    assert main.main(["eval", "whole", "--best", "--plain"]) == 0
    output = capsys.readouterr()
    assert read_summary(Path(output.out.strip())).step == best["step"]
    assert f"step {best['step']} of whole did best on the validation split (passed {best['validation/passed']:.3f}" in (
        output.err
    )
    found = {c.step: c.meta.validation for c in list_checkpoints(RunPaths(runs / "whole"))}
    assert found == {
        row["step"]: {"score": row["validation/passed"], "reward": row["validation/reward"]}
        for row in rows
        if row["step"] in found
    }


@pytest.mark.slow
def test_a_stage_is_resumed_bit_for_bit(runs: Path, tmp_path: Path) -> None:
    """A run that is set back into its second stage, or to the end of its first, ends with the same weights."""
    last = mx.load(str(RunPaths(runs / "whole").checkpoint(6) / "model.safetensors"))
    for point in (2, 4):
        copy = tmp_path / f"back-to-{point}" / "whole"
        shutil.copytree(runs / "whole", copy, symlinks=True)
        for step in range(point + 1, 7):
            shutil.rmtree(RunPaths(copy).checkpoint(step), ignore_errors=True)
        for name in STAGES[point // 2 :]:
            shutil.rmtree(copy / "eval" / f"{name}-test")
        assert main.main(["train", "--resume", str(copy), "--plain"]) == 0
        again = mx.load(str(RunPaths(copy).checkpoint(6) / "model.safetensors"))
        assert all(mx.array_equal(again[key], value).item() for key, value in last.items())


def killed_in_its_second_stage(whole: Path, folder: Path) -> Path:
    """A copy of the run as a kill -9 after its third step would leave it."""
    copy = folder / "copy"
    shutil.copytree(whole, copy, symlinks=True)
    (copy / "metrics.jsonl").write_text("".join((copy / "metrics.jsonl").read_text().splitlines(True)[:3]))
    for step in range(3, 7):
        shutil.rmtree(RunPaths(copy).checkpoint(step), ignore_errors=True)
    for name in STAGES[1:]:
        shutil.rmtree(copy / "eval" / f"{name}-test")
    return copy


def edit(run: Path, key: str, value: Any) -> None:
    """Change a setting, by its dotted key, in the run's config.toml."""
    config = tomli.loads((run / "config.toml").read_text())
    *sections, last = key.split(".")
    table = config
    for section in sections:
        table = table[section]
    table[last] = value
    (run / "config.toml").write_text(tomli_w.dumps(config))


def contents(run: Path) -> dict[str, bytes]:
    """Every file of a run but its log."""
    return {str(file.relative_to(run)): file.read_bytes() for file in run.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("key", "value", "stage", "reason"),
    [
        ("stages.progressive.temperature", 0.9, "progressive", "(0.7 then, 0.9 now)"),
        ("stages.progressive.mix", {"hard": 1.0}, "progressive", "stages.progressive.mix.simple (0.15 then, none now)"),
        ("stages.progressive.steps", 3, "progressive", "(2 then, 3 now)"),
        ("stages.format_basics.steps", 1, "format_basics", "(2 then, 1 now)"),
        ("sampling.rollouts", 2, "format_basics", "(4 then, 2 now)"),
    ],
)
def test_a_stage_that_has_begun_stays_as_it_was(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: Any, stage: str, reason: str
) -> None:
    """Edited settings are refused, each by its name, and nothing of the run is touched; restored, it goes on."""
    run = killed_in_its_second_stage(runs / "whole", tmp_path)
    edit(run, key, value)
    before = contents(run)
    assert main.main(["train", "--resume", str(run), "--plain"]) == 2
    said = capsys.readouterr().err
    assert f"error: run copy began stage {stage} with other settings: {key}" in said
    assert reason in said
    assert f"hint: restore {run}/config.toml; or" in said
    assert contents(run) == before


def test_a_run_of_before_settings_were_noted(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The stage is named. One that config.toml has no more is named too."""
    run = killed_in_its_second_stage(runs / "whole", tmp_path)
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({key: value for key, value in info.items() if key != "settings"}))
    edit(run, "stages.progressive.temperature", 0.9)
    assert main.main(["train", "--resume", str(run), "--plain"]) == 2
    assert "error: run copy began stage progressive with other settings\n" in capsys.readouterr().err
    stages = tomli.loads((run / "config.toml").read_text())["stages"]
    edit(run, "stages", {name: stages[name] for name in ("format_basics", "full_difficulty")})
    assert main.main(["train", "--resume", str(run), "--plain"]) == 2
    assert (
        "error: run copy has begun stage progressive, which config.toml no longer has in that place"
        in capsys.readouterr().err
    )


@pytest.mark.slow
def test_a_stage_to_come_may_be_edited(runs: Path, tmp_path: Path) -> None:
    """The run ends as one that had these settings from the start, and says so in run.json, also where it is
    mirrored."""
    run = killed_in_its_second_stage(runs / "whole", tmp_path)
    shutil.copytree(run, tmp_path / "kept" / "copy", ignore=shutil.ignore_patterns("latest"))
    edit(run, "stages.full_difficulty.temperature", 0.9)
    edit(run, "stages.full_difficulty.steps", 1)
    afresh = ["train", f"--config={run / 'config.toml'}", "--name=afresh", f"--runs-dir={tmp_path / 'apart'}"]
    assert main.main(["train", "--resume", str(run), f"--mirror=file://{tmp_path / 'kept'}", "--plain"]) == 0
    assert main.main([*afresh, "--plain"]) == 0
    edited, fresh = (mx.load(str(RunPaths(r).checkpoint(5) / "model.safetensors")) for r in
                     (run, tmp_path / "apart" / "afresh"))  # fmt: skip
    assert all(mx.array_equal(edited[key], value).item() for key, value in fresh.items())
    then, now = (json.loads((r / "run.json").read_text()) for r in (tmp_path / "apart" / "afresh", run))
    assert {key: now[key] for key in ("steps", "fingerprints", "settings")} == {
        key: then[key] for key in ("steps", "fingerprints", "settings")
    }
    assert now["steps"]["full_difficulty"] == 1
    assert (tmp_path / "kept" / "copy" / "run.json").read_bytes() == (run / "run.json").read_bytes()


def test_evaluation_and_report(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Several samples give pass@k, no judge is asked for, and the report follows errors from stage to stage."""
    monkeypatch.setenv("SMOLSUM_RUNS_DIR", str(runs))
    assert main.main(["eval", "whole", "--temperature=1", "--samples=4", "--plain"]) == 0
    output = capsys.readouterr()
    metrics = read_summary(Path(output.out.strip())).metrics
    assert metrics["passed/pass@1"] <= metrics["passed/pass@2"] <= metrics["passed/pass@4"]
    assert metrics["parses/pass@4"] >= metrics["passed/pass@4"]
    assert metrics["passed/low"] <= metrics["passed"] <= metrics["passed/high"]
    assert metrics["passed"] == pytest.approx(metrics["passed/pass@1"])
    assert metrics["hard/parses"] == pytest.approx(metrics["hard/parses/pass@1"])
    assert "4 samples; means over all samples, intervals over examples" in output.err
    assert output.err.split("hard in k samples")[1].split()[:5] == [
        "parses@1",
        "parses@2",
        "parses@4",
        "parses@8",
        "schema@1",
    ]
    assert "composite" not in output.err
    assert len(read_jsonl(Path(output.out.strip()) / "generations.jsonl")) == 4 * 8
    assert main.main(["eval", "whole", "--samples=4"]) == 2
    assert main.main(["report", "whole", "--format=md"]) == 0
    page = (runs / "whole" / "report" / "report.md").read_text()
    assert "From stage to stage" in page
    assert "Errors by step" in page
    parts = {part.partition(":")[0]: re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", part) for part in page.split("**Table ")}
    shown = [line.split(" | ") for line in parts["S15a"].splitlines() if "whole" in line]
    folders = [f"{name}-test" for name in ("start", *STAGES)] + ["step-000006-test-t1-seed0-x4"]
    assert [row[0] for row in shown] == [f"| whole, {name}".replace("_", "\\_") for name in folders]
    low, high = (f"{metrics[f'parses/{end}']:.1%}" for end in ("low", "high"))
    assert shown[-1][1:4] == [f"{metrics['parses']:.1%}", low, high]
    assert all(
        f"S15{letter}: {level}" in page for letter, level in zip("bcd", ("Simple", "Medium", "Hard"), strict=True)
    )
    sampled = next(part for part in parts.values() if "Satisfies the schema in k samples" in part)
    assert f"| {metrics['passed/pass@4']:.1%} |" in sampled
    assert len([line for line in sampled.splitlines() if "whole" in line]) == 1
    assert "passed, passed, validation," in page  # Figure 3
    assert "share on target" not in page
    assert "[0.8, then 0.7, then 0.6](" in page  # Table 9
    (stages,) = (part for part in page.split("**Table ") if part.startswith("9b: Stages"))
    cells = [
        re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line).split(" | ") for line in stages.splitlines() if "whole" in line
    ]
    assert [(row[1], row[2], row[3], row[6]) for row in cells] == [
        ("format\\_basics", "2", "0.8", "simple 1"),
        ("progressive", "2", "0.7", "simple 0.15, medium 0.35, hard 0.5"),
        ("full\\_difficulty", "2", "0.6", "hard 1"),
    ]
    assert cells[0][7].startswith("format 0.2, validity 0.25, schema 0.25")
    assert "The first prompts**" in page
    assert "| Reference |" not in page
    assert "Broken JSON" in page
    assert "no closed block that is marked as JSON" in page


def test_baseline_thinks_or_not(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The baseline asks plainly and for thinking; both are compared example by example."""
    monkeypatch.setenv("SMOLSUM_RUNS_DIR", str(runs))
    few = [f"--set=task.{split}_prompts=20" for split in ("train", "validation", "test")]
    assert main.main(["baseline", "--task=strict-json", "--set=sampling.max_new_tokens=80", *few, "--plain"]) == 0
    plain, think = capsys.readouterr().out.split()
    assert [Path(p).name for p in (plain, think)] == [
        f"baseline-strict-json-tiny-json-{variant}-test" for variant in ("plain", "think")
    ]
    shares = [read_summary(Path(p)).metrics["reasoning"] for p in (plain, think)]
    assert shares[0] == -0.5
    assert shares[1] > 0
    assert main.main(["stats", "--paired", plain, think, "--metric", "passed"]) == 0
    assert "McNemar" in "".join(capsys.readouterr())
    assert main.main(["report", plain, think, "--format=md", f"--output={runs / 'untrained'}"]) == 0
    page = (runs / "untrained" / "report.md").read_text()
    assert "smolsum train --task strict-json --model builtin:tiny-json" in page
    assert "meteor" not in page


def test_data_without_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An evaluation on data of one's own shows the tables that the data fill, and promises no others."""
    row = {"prompt": 'A JSON object with the key "name".', "schema": {"required": ["name"], "properties": {"x": True}}}
    (tmp_path / "test.jsonl").write_text(json.dumps(row) + "\n")
    own = [f"--set=data.path={tmp_path}", f"--runs-dir={tmp_path / 'runs'}", "--set=sampling.max_new_tokens=40"]
    assert main.main(["baseline", "--task=strict-json", "--prompt=plain", *own, "--plain"]) == 0
    shown = capsys.readouterr().err
    assert [line for line in shown.splitlines() if line.startswith("missing")] == [
        "missing: pass@1, pass@2, pass@4, pass@8; to fill them: --temperature 0.7 --samples 8"
    ]
    assert "satisfies the schema" in shown
