"""Runs under constraints through the command line: their metrics, exact resumption, and names that mean nothing."""

import json
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
import tomli
from support.calls import Call, done
from support.refusals import assert_refused
from support.training import arguments, assert_goes_on, weights

from smolsum.cli.main import main
from smolsum.files import read_jsonl
from smolsum.stats.several import hypervolume

CONSTRAINTS = "length within tolerance: 0.99; bleu >= 0.1; repeated_trigrams <= 0.01; rouge >= 0.9 start"
SHARE, BLEU, REPEATED, ROUGE = (
    f"constraint/{name}"
    for name in (
        "length_within_tolerance", "bleu_at_least_0.1", "repeated_trigrams_at_most_0.01", "rouge_at_least_0.9_start",
    )
)  # fmt: skip


def command(data: Path, runs: Path, name: str) -> list[str]:
    """A run of two steps for the length and seven for the quality, each under the constraints."""
    return [
        *arguments(data, runs, name, stages__length__steps=2, stages__quality__steps=7),
        "--constraint=length within tolerance: 0.99", "--constraint=bleu >= 0.1; repeated_trigrams <= 0.01",
        "--constraint=rouge >= 0.9 start",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    runs = tmp_path_factory.mktemp("whole")
    assert main(command(data, runs, "whole")) == 0
    return runs / "whole"


def test_metrics_say_how_each_constraint_stands(finished: Path) -> None:
    """A share is that of the step's rollouts, also of a signal and of a measure that no stage rewards; multipliers
    move by the violation and begin again with each stage."""
    rows = read_jsonl(finished / "metrics.jsonl")
    for row in rows:
        rollouts = read_jsonl(finished / "completions" / f"step-{row['step']:06d}.jsonl")
        lengths = [len(one["token_ids"]) - (one["finish_reason"] == "stop") for one in rollouts]
        assert row[f"{SHARE}/share"] == pytest.approx(sum(abs(n - 42) <= 3 for n in lengths) / len(lengths))
        assert row[f"{BLEU}/mean"] == pytest.approx(row["rewards/bleu/mean"])
        assert row[f"{REPEATED}/mean"] == pytest.approx(row["completions/repeated_trigrams"])
        assert row[f"{SHARE}/violation"] == pytest.approx(max(0.0, 0.99 - row[f"{SHARE}/share"]))
    assert [row[f"{SHARE}/multiplier"] for row in rows if row["stage_step"] == 1] == [1.0, 1.0]
    for before, after in pairwise(rows[2:]):
        expected = min(5.0, before[f"{SHARE}/multiplier"] + 0.02 * (0.99 - before[f"{SHARE}/share"]))
        assert after[f"{SHARE}/multiplier"] == pytest.approx(expected)


def test_a_bound_may_be_what_the_stage_began_with(finished: Path) -> None:
    """Less a tenth: the mean of its first five steps, of those so far until then, and of no stage before it."""
    rows = read_jsonl(finished / "metrics.jsonl")
    for stage in ("length", "quality"):
        own = [row for row in rows if row["stage"] == stage]
        for n, row in enumerate(own, 1):
            began = [one["rewards/rouge/mean"] for one in own[: min(n, 5)]]
            assert row[f"{ROUGE}/bound"] == pytest.approx(0.9 * sum(began) / len(began))


def test_checkpoints_keep_the_multipliers(finished: Path) -> None:
    """Those that the next step uses, by constraint."""
    state = json.loads((finished / "checkpoints" / "step-000008" / "state.json").read_text())
    assert list(state["multipliers"]) == CONSTRAINTS.replace(": 0.99", "").split("; ")
    ninth = read_jsonl(finished / "metrics.jsonl")[8]
    assert state["multipliers"]["bleu >= 0.1"][0] == ninth[f"{BLEU}/multiplier"]


def test_constraints_change_what_is_learnt(finished: Path, data: Path, tmp_path: Path) -> None:
    """The same run without them ends with other weights."""
    assert main([*command(data, tmp_path, "free")[:-3], "--constraint=none"]) == 0
    assert weights(tmp_path / "free", 6) != weights(finished, 6)
    assert not any(
        key.startswith("constraint/") for row in read_jsonl(tmp_path / "free" / "metrics.jsonl") for key in row
    )


def test_multipliers_that_moved_change_what_is_learnt(finished: Path, data: Path, tmp_path: Path) -> None:
    """The same run with faster ones begins alike, and its second step has learnt something else."""
    assert main([*command(data, tmp_path, "fast"), "--set=grpo.constraint_rate=1", "--set=stages.quality.steps=1"]) == 0
    first, at_rest = (read_jsonl(run / "completions" / "step-000001.jsonl") for run in (tmp_path / "fast", finished))
    assert [row["token_ids"] for row in first] == [row["token_ids"] for row in at_rest]
    assert weights(tmp_path / "fast", 2) != weights(finished, 2)


def test_report_shows_what_the_constraints_cost(finished: Path, tmp_path: Path) -> None:
    """The area covered at the end and over the validations, the cost, and how each constraint stands."""
    assert main(["report", str(finished), "--format=json", f"--output={tmp_path}"]) == 0
    sections = json.loads((tmp_path / "report.json").read_text())["sections"]
    table, figure = next(one for one in sections if one["title"] == "Constraint and quality")["items"]
    row = dict(zip(table["columns"], table["rows"][0], strict=True))
    end = json.loads((finished / "eval" / "quality-test" / "summary.json").read_text())["metrics"]
    rows = read_jsonl(finished / "metrics.jsonl")
    keys = ("validation/length/within_tol", "validation/meteor")
    ways = [tuple(line[key] for key in keys) for line in rows if keys[0] in line]
    assert row["Hypervolume, end"]["value"] == pytest.approx(end["length/within_tol"] * end["meteor"])
    assert row["Hypervolume, steps"]["value"] == pytest.approx(hypervolume(ways))
    costs = [line["constraint/cost"] for line in rows if "constraint/cost" in line]
    assert row["Cost in reward"]["value"] == pytest.approx(sum(costs) / len(costs))
    assert "length within tolerance: " in row["Constraints"]["text"]
    assert "bleu >= 0.1: " in row["Constraints"]["text"]
    assert f"rouge >= 0.9 start ({rows[-1][f'{ROUGE}/bound']:.3g}): " in row["Constraints"]["text"]
    assert f"{ways[-1][1]:.3f}" in figure["alt"]


@pytest.mark.slow
def test_resume_after_kill_is_bitwise(data: Path, finished: Path, tmp_path: Path) -> None:
    """After a checkpoint inside a stage the multipliers go on where they were."""
    assert_goes_on(command(data, tmp_path, "killed"), 6, finished)


@pytest.mark.parametrize("dry", [["--dry-run"], []])
@pytest.mark.parametrize(
    ("constraint", "named"),
    [("lenght in 38..46: 0.99", ["'lenght'", "length"]), ("meteor within 1: 0.99", ["meteor", "meteor in A..B: 0.95"])],
)
def test_names_that_mean_nothing(
    data: Path, tmp_path: Path, call: Call, constraint: str, named: list[str], dry: list[str]
) -> None:
    """One error before anything is trained, in a dry run too, with what was probably meant."""
    assert_refused(call(*arguments(data, tmp_path, "wrong"), f"--constraint={constraint}", *dry), *named)
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize(
    ("constraint", "named"),
    [
        ("length in 200..300: 0.99", ["length in 200..300", "max_new_tokens = 46", "max_new_tokens=400"]),
        ("length <= 0", ["length <= 0", "never hold"]),
        ("meteor >= 5", ["meteor >= 5", "from 0 to 1"]),
        ("overlong >= 0.5: 0.9", ["overlong >= 0.5", "from -1 to 0"]),
        ("supported >= 95", ["supported >= 95", "never hold", "from 0 to 1", "0.95 is 95 percent"]),
        ("repeated_trigrams <= 2", ["repeated_trigrams <= 2", "every completion", "from 0 to 1", "0.02 is 2 percent"]),
        ("bleu >= 0: 0.9", ["bleu >= 0", "every completion"]),
        ("copied in 0..1", ["copied >= 0", "every completion"]),
        ("length in 0..46: 0.9", ["length in 0..46", "from 0 to 46 (sampling.max_new_tokens)", "leaves some"]),
    ],
)
def test_ranges_that_bound_nothing(data: Path, tmp_path: Path, call: Call, constraint: str, named: list[str]) -> None:
    """No value is in them, so that the multiplier would stand at its limit for the whole run; or every value is."""
    assert_refused(call(*arguments(data, tmp_path, "wrong"), f"--constraint={constraint}", "--dry-run"), *named)


@pytest.mark.parametrize("constraint", ["copied in 0..0.3", "meteor in 0.3..1", "length >= 1: 0.99", "length <= 45"])
def test_a_range_may_begin_or_end_where_values_do(data: Path, tmp_path: Path, call: Call, constraint: str) -> None:
    """Its other end is the bound; and no text at all has no length."""
    done(call(*arguments(data, tmp_path, "fine"), f"--constraint={constraint}", "--dry-run"))


def test_a_gate_cannot_have_what_should_be_low(data: Path, tmp_path: Path, call: Call) -> None:
    """It would multiply the reward by a negative number, so that the best becomes the worst."""
    for bound, instead in (("copied <= 0.3", "copied in 0..0.3: 0.95"), ("copied <= start", "copied in A..B: 0.95")):
        gate = (f"--constraint={bound}", "--set=grpo.constraint_method=gate", "--dry-run")
        assert_refused(call(*arguments(data, tmp_path, "wrong"), *gate), bound, "gate", f'"{instead}"')


def test_constraints_need_references_as_rewards_do(data: Path, tmp_path: Path, call: Call) -> None:
    """A bound on METEOR could never be measured on data without references, and would silently bound nothing."""
    bare = tmp_path / "bare"
    bare.mkdir()
    for split in ("train", "validation", "test"):
        pl.read_parquet(data / f"{split}.parquet").select("id", "prompt").write_parquet(bare / f"{split}.parquet")
    command = [*arguments(bare, tmp_path, "bare"), "--reward=length", "--constraint=meteor >= 0.3", "--dry-run"]
    assert_refused(call(*(text for text in command if "quality" not in text)), "stage length", "meteor", "references")


def test_a_users_reward_is_asked_once_a_step(data: Path, tmp_path: Path, call: Call) -> None:
    """About all completions of the step with their own prompts, whatever the guard and constraints measure besides."""
    (plugin := tmp_path / "mine.py").write_text(
        "import smolsum\n\n@smolsum.reward\ndef brief(prompts, completions, **columns):\n"
        f"    with open({str(tmp_path / 'asked')!r}, 'a') as file:\n"
        "        file.write(f'{len(prompts)} {min(map(len, prompts)) > 0}\\n')\n"
        "    return [float(len(text) < 150) for text in completions]\n"
    )
    flags = [
        f"--plugin={plugin}",
        "--constraint=copied <= 0.5: 0.95; brief >= 0.5: 0.9",
        "--set=train.validate_every=0",
    ]
    steps = {"stages__length__steps": 2, "stages__quality__steps": 1, "sampling__rollouts": 3}
    done(call(*arguments(data, tmp_path, "counted", **steps), *flags))
    config = tomli.loads((tmp_path / "counted" / "config.toml").read_text())
    count = config["train"]["prompts_per_step"] * config["sampling"]["rollouts"]
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked.count(f"{count} True") == 3
    assert not [line for line in asked if line.endswith("False")]


def test_a_users_reward_that_is_only_bounded_decides_the_weights(data: Path, tmp_path: Path, call: Call) -> None:
    """Its file is kept with the run, and changed code is not the same run: resuming is refused."""
    (plugin := tmp_path / "mine.py").write_text(
        "import smolsum\n\n@smolsum.reward\ndef brief(completions, **columns):\n"
        "    return [float(len(text) < 150) for text in completions]\n"
    )
    flags = [f"--plugin={plugin}", "--constraint=brief >= 0.5: 0.9"]
    steps = {"stages__length__steps": 2, "stages__quality__steps": 1}
    done(call(*arguments(data, tmp_path, "bounded", **steps), *flags))
    run = tmp_path / "bounded"
    assert "constraint/brief_at_least_0.5/share" in read_jsonl(run / "metrics.jsonl")[0]
    info = json.loads((run / "run.json").read_text())
    assert info["plugins"][0]["rewards"] == ["brief"]
    assert "plugin of brief" in info["settings"]
    plugin.write_text(plugin.read_text().replace("150", "160"))
    assert_refused(call("train", "--resume", str(run), f"--plugin={plugin}"), "mine.py", "sha256")
