"""How hard prompts are, which bands that makes, and stages that mix them: by length, column, scores, or a reward."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.calls import Call, done
from support.refusals import refuses
from support.training import arguments, assert_goes_on, events, learned, trained

from smolsum.config.resolve import resolve
from smolsum.config.sections import Config
from smolsum.files import read_jsonl
from smolsum.grpo.difficulty import described, in_bands, known_values, planned_kinds
from smolsum.tasks import TASKS
from smolsum.tasks.data import Example

POSTS = [Example(f"p{n}", " ".join(["word"] * length)) for n, length in enumerate([9, 1, 5, 7, 3, 2])]
MIX = "stages.included.mix={easy=0.5, hard=0.5}"


def config(*sets: str) -> Config:
    return resolve(TASKS, strategy="included", sets=[MIX, *sets]).config


def bands(examples: list[Example], *sets: str) -> tuple[str, ...]:
    return planned_kinds(config(*sets), TASKS["tldr"], examples)


def test_long_posts_are_hard() -> None:
    """Bands have a third of the prompts each, whatever the measure."""
    found = bands(POSTS, "difficulty.by=length")
    assert found == ("hard", "easy", "medium", "hard", "medium", "easy")
    turned = bands(POSTS, "difficulty.by=length", "difficulty.harder=low")
    assert turned == ("easy", "hard", "medium", "easy", "medium", "hard")
    settings = config("difficulty.by=length").difficulty
    values = known_values(settings, POSTS)
    said = described(settings, found, values, [post.id for post in POSTS])
    assert said == "2 easy (1 to 2), 2 medium (3 to 5), 2 hard (7 to 9)"


def test_a_column_of_the_data() -> None:
    """High numbers are hard; a prompt without a number is in no band; a text is refused."""
    posts = [replace(post, metadata={"level": n}) for n, post in enumerate(POSTS)]
    sets = ("difficulty.by=column", "difficulty.column=level", "difficulty.bands=easy,hard")
    assert bands(posts, *sets) == ("easy",) * 3 + ("hard",) * 3
    posts[0] = replace(posts[0], metadata={})
    assert bands(posts, *sets)[0] == ""
    posts[1] = replace(posts[1], metadata={"level": "high"})
    with refuses("p1", "'high'"):
        bands(posts, *sets)
    with refuses("'levl'", "level"):
        bands(posts, sets[0], "difficulty.column=levl", sets[2])


def test_equal_values_are_divided() -> None:
    """By their ids, in whatever order they come: the bands stay equal in size."""
    settings = config("difficulty.by=reward").difficulty
    same = dict.fromkeys((post.id for post in POSTS), 1.0)
    found = in_bands(same, settings, POSTS)
    assert Counter(found) == {"easy": 2, "medium": 2, "hard": 2}
    assert in_bands(same, settings, POSTS[::-1]) == found[::-1]


def test_scores_of_an_evaluation(tmp_path: Path) -> None:
    """Low scores are hard. Prompts that were not evaluated, and metrics that it lacks, are refused."""
    rows = [{"id": f"p{n}", "meteor": n / 10, "text": "t"} for n in range(6)]
    (tmp_path / "scores.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    sets = ("difficulty.by=scores", f"difficulty.scores={tmp_path}")
    assert bands(POSTS, *sets, "difficulty.column=meteor") == ("hard", "hard", "medium", "medium", "easy", "easy")
    with refuses("'metoer'", "meteor"):
        bands(POSTS, *sets, "difficulty.column=metoer")
    with refuses("1 of 7", "q", "--split train"):
        bands([*POSTS, Example("q", "a")], *sets, "difficulty.column=meteor")
    with refuses(f"{tmp_path}/no"):
        bands(POSTS, sets[0], f"difficulty.scores={tmp_path}/no", "difficulty.column=meteor")


BY_LENGTH, BY_COLUMN = "difficulty.by=length", "difficulty.by=column"


@pytest.mark.parametrize(
    ("sets", "named"),
    [
        ([MIX], ["tldr", "categories", BY_LENGTH]),
        ([BY_LENGTH], ["mix", "stages.included.mix={easy=0.5, hard=0.5}"]),
        (["difficulty.column=x"], ["difficulty.column", "difficulty.by", BY_COLUMN]),
        (["difficulty.bands=low,high"], ["difficulty.bands", "difficulty.by", BY_LENGTH]),
        ([MIX, BY_COLUMN], ["difficulty.column=NAME"]),
        ([MIX, "difficulty.by=scores", "difficulty.column=rouge"], ["difficulty.scores", "scores=FOLDER"]),
        ([MIX, BY_LENGTH, "difficulty.column=x"], ["difficulty.column", BY_COLUMN]),
        ([BY_LENGTH, "stages.included.mix={esy=1.0}"], ["'esy'", "easy"]),
        ([MIX, BY_LENGTH, "difficulty.bands=one"], ["difficulty.bands", "easy,medium,hard"]),
        ([BY_LENGTH, "stages.included.mix_end={hard=1.0}"], ["stages.included.mix", "mix={hard="]),
        (["difficulty.adapt=0.2"], ["difficulty.adapt", "mix=", BY_LENGTH]),
        ([MIX, BY_LENGTH, "difficulty.adapt=0.2", "stages.included.mix_end={hard=1.0}"], ["adapt", "mix_end"]),
    ],
)
def test_settings_that_mean_nothing_are_refused(sets: list[str], named: list[str]) -> None:
    with refuses(*named):
        resolve(TASKS, strategy="included", sets=sets)


def taken(run: Path, steps: range) -> list[list[str]]:
    rows = [read_jsonl(run / f"completions/step-{step:06d}.jsonl") for step in steps]
    return [list(dict.fromkeys(row["prompt_id"] for row in own)) for own in rows]


def test_a_run_moves_from_easy_to_hard(data: Path, tmp_path: Path) -> None:
    """By post length: short posts at the first step, long ones at the last; the next stage takes all."""
    changes: dict[str, Any] = {
        "difficulty__by": "length", "stages__length__mix": "{easy=1.0}", "stages__length__mix_end": "{hard=1.0}",
        "stages__length__steps": 3, "stages__quality__steps": 1,
    }  # fmt: skip
    run = trained(data, tmp_path, "moved", **changes)
    rows = pl.read_parquet(data / "train.parquet").to_dicts()
    sizes = {row["id"]: len(row["prompt"].split()) for row in rows}
    ids = sorted(sizes, key=sizes.__getitem__)
    assert set(ids) >= {name for step in taken(run, range(1, 5)) for name in step}
    first, _, last = taken(run, range(1, 4))
    assert max(sizes[name] for name in first) <= sizes[ids[4]]
    assert min(sizes[name] for name in last) >= sizes[ids[-5]]
    found = [(row.get("mix/easy"), row.get("mix/hard")) for row in read_jsonl(run / "metrics.jsonl")]
    assert found == [(1.0, 0.0), (0.5, 0.5), (0.0, 1.0), (None, None)]
    said = next(row["message"] for row in read_jsonl(run / "events.jsonl") if row["kind"] == "difficulty")
    assert "stage length mixes prompts by length: " in said
    assert events(run).count("difficulty") == 1


def test_a_mix_that_follows_what_it_teaches_survives_a_kill(data: Path, tmp_path: Path) -> None:
    """Also where groups that teach nothing are refilled from steps to come: the same prompts, shares and weights."""
    changes: dict[str, Any] = {
        "difficulty__by": "length", "difficulty__adapt": 0.5, "stages__length__mix": "{easy=0.5, hard=0.5}",
        "stages__length__steps": 4, "stages__quality__steps": 1, "train__refill_rounds": 1,
    }  # fmt: skip
    whole = trained(data, tmp_path, "whole", **changes)
    shares = [row["mix/hard"] for row in learned(whole)[:4]]
    assert shares[0] != 0.5
    assert len({*shares}) == 4
    assert_goes_on(arguments(data, tmp_path / "other", "killed", **changes), 4, whole)
    assert taken(tmp_path / "other" / "killed", range(1, 5)) == taken(whole, range(1, 5))


MEASURED = {
    "difficulty__by": "reward", "difficulty__samples": 2, "rewards__length_shape": "linear",
    "stages__length__steps": 4, "stages__length__mix": "{hard=0.5, easy=0.5}", "stages__quality__mix": "{hard=1.0}",
    "stages__quality__steps": 2, "sampling__max_new_tokens": 80,
}  # fmt: skip


@pytest.mark.slow
def test_a_measured_difficulty_is_kept(data: Path, tmp_path: Path) -> None:
    """Each stage measures when it begins, with its own reward. A run that was killed in the middle of a stage, when the
    weights are others, takes the prompts of the whole run."""
    whole = trained(data, tmp_path, "whole", **MEASURED)
    said = [row["message"] for row in read_jsonl(whole / "events.jsonl") if row["kind"] == "difficulty"]
    assert [text.split()[1] for text in said] == ["length", "quality"]
    assert said[0].split(": ", 1)[1] != said[1].split(": ", 1)[1]
    kept = json.loads((whole / "checkpoints" / "step-000004" / "state.json").read_text())["difficulty"]
    ranked = sorted(kept, key=kept.__getitem__)
    assert {name for step in taken(whole, range(1, 5)) for name in step} <= {*ranked[:4], *ranked[-4:]}
    assert_goes_on(arguments(data, tmp_path / "other", "killed", **MEASURED), 4, whole)


def test_steps_of_a_dry_run(data: Path, tmp_path: Path, call: Call) -> None:
    """An epoch is what the mix allows, in the mean over the stage, and nothing is measured for it."""
    sets = {"difficulty__by": "reward", "stages__length__mix": "{easy=1.0}", "stages__length__mix_end": "{hard=1.0}"}
    args = arguments(data, tmp_path, "dry", stages__length__steps=0, stages__quality__steps=1, **sets)
    done(call(*args, "--dry-run"), "4 (epochs = 1)", "mix easy 1 to hard 1")
