"""Which stages learn from truncated completions: those of every preset, and what a user's own settings change."""

from pathlib import Path
from typing import Any

import pytest

from smolsum.config.presets import names_for
from smolsum.config.resolve import Resolved, resolve, to_toml
from smolsum.tasks import NAMES, TASKS

OUTSIDE = "OWNER/MODEL"
"""a model without a preset"""
SIZES = ("qwen-1.5b", "qwen-3b", "qwen-7b", "qwen-14b")
LARGE = (
    "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "llama-3.2-1b",
    "llama-3.2-3b", "lfm2-700m", "lfm2-1.2b", "lfm2-2.6b", "gemma-3-1b", "gemma-3-4b", "smollm3-3b",
    "gemma-3-270m", "smollm2-360m", "smollm2-1.7b",
)  # fmt: skip

# model, strategy and --preset by task, with the stages that leave out truncated completions
LEFT_OUT: list[tuple[str, str, str, str | None, set[str]]] = [
    # a summary that is cut is too long: the length stage must see it, a stage of quality alone need not
    *(("tldr", model, "finetuned", None, {"quality"}) for model in ("qwen", "lfm", OUTSIDE)),
    *(("tldr", model, "included", None, set()) for model in ("qwen", "lfm", OUTSIDE)),
    *(("tldr", model, "finetuned", None, {"quality"}) for model in LARGE),
    # these were measured with all completions
    *(("tldr", "tiny", strategy, None, set()) for strategy in ("finetuned", "included")),
    *(("tldr", "tiny-lfm", strategy, None, set()) for strategy in ("finetuned", "included")),
    # a constraint on the length is no reward of it, but a summary that is cut violates it
    *(("tldr", "smollm2-135m", strategy, None, set()) for strategy in ("included", "constrained")),
    *(("tldr", model, "constrained", None, set()) for model in ("qwen", "lfm", "tiny", "tiny-lfm", OUTSIDE)),
    *(("tldr", model, "sft-constrained", None, set()) for model in ("qwen", "lfm", "tiny", "tiny-lfm", OUTSIDE)),
    *(("tldr", model, "sft-included", None, set()) for model in ("qwen", "lfm", "tiny", "tiny-lfm", OUTSIDE)),
    *(("tldr", model, "any-length", None, set()) for model in ("qwen", "lfm", "tiny", "tiny-lfm", OUTSIDE)),
    ("tldr", "tiny", "any-length", "any-length", set()),
    *(("tldr", model, "short-sentences", None, set()) for model in ("qwen", "lfm", "tiny", "tiny-lfm", OUTSIDE)),
    # the study's code leaves out nothing
    *(("tldr", model, "finetuned", "study", set()) for model in ("qwen", "lfm", "tiny", "tiny-lfm")),
    *(("tldr", model, "finetuned", "kalomaze", {"quality"}) for model in ("qwen", "lfm", "tiny", OUTSIDE)),
    # notes, summaries and answers that are cut are too long
    *(("ab-judge", model, "judge", None, set()) for model in (*SIZES, "judge", OUTSIDE)),
    *(("ab-judge", model, "judge", "kalomaze", set()) for model in ("judge", OUTSIDE)),
    ("doc-qa", OUTSIDE, "answers", "repliqa", set()),
    *(("tldr", OUTSIDE, strategy, "small", set()) for strategy in ("finetuned", "included")),
    *(("tldr", OUTSIDE, "finetuned", preset, {"quality"}) for preset in ("news", "xsum", "abstracts", "dialogues")),
    *(("doc-qa", model, "answers", None, set()) for model in ("tiny", "tiny-lfm", "qwen", "lfm", OUTSIDE)),
    *(("doc-qa", model, "ranking", None, set()) for model in ("tiny", "qwen")),
    *(
        ("strict-json", model, strategy, None, set())
        for model in ("tiny-json", "smollm2-135m", "smollm2-360m", "qwen", "tinyllama-1.1b", "gemma-2-2b")
        for strategy in ("standard", "curriculum", "think-standard", "think-curriculum")
    ),
    ("strict-json", OUTSIDE, "standard", "all-weights", set()),
]


def resolved(task: str = "tldr", **given: Any) -> Resolved:
    return resolve(TASKS, **{"flags": {"task.name": task}, "sets": (), **given})


def left_out(found: Resolved) -> set[str]:
    return {name for name, stage in found.config.stages.items() if stage.mask_truncated}


@pytest.mark.parametrize(("task", "model", "strategy", "preset", "stages"), LEFT_OUT)
def test_every_preset(task: str, model: str, strategy: str, preset: str | None, stages: set[str]) -> None:
    """By stage: nothing is left out where a signal depends on length or truncation, unless a preset says otherwise."""
    found = resolved(task, model=model, strategy=strategy, presets=(preset,) if preset else ())
    assert left_out(found) == stages


def test_no_preset_is_missing() -> None:
    """Every strategy of every task that trains, every model of a task's own, and every profile."""
    for name in NAMES:
        task = TASKS[name]
        listed = [row for row in LEFT_OUT if row[0] == name]
        assert {row[2] for row in listed} == set(task.presets.strategies)
        assert {row[1] for row in listed} >= set(task.presets.models)
    profiles = {name for task in TASKS.values() for name in names_for(task, "profiles")}
    assert {row[3] for row in LEFT_OUT} - {None} == profiles - {"default"}
    assert {row[1] for row in LEFT_OUT if row[0] == "tldr"} == {*names_for(TASKS["tldr"], "models"), OUTSIDE}


@pytest.mark.parametrize(
    ("reward", "reason"),
    [
        *((name, "signal overlong depends") for name in ("overlong", "meteor-overlong")),
        *((name, "no signal depends") for name in ("meteor-rouge", "bleu")),
    ],
)
def test_the_source_says_why(reward: str, reason: str) -> None:
    """The dry run prints it next to the value of each stage."""
    found = resolved(model="qwen", strategy="finetuned", reward=reward)
    assert found.sources["stages.quality.mask_truncated"] == f"derived, as {reason} on length or truncation"
    assert left_out(found) == ({"quality"} if reason.startswith("no") else set())
    assert found.sources["stages.length.mask_truncated"].startswith("derived, as signal length depends")


@pytest.mark.parametrize(
    ("task", "stage", "constraint"),
    [("tldr", "quality", "off_target <= 1"), ("tldr", "quality", "truncated <= 0.02"),
     ("ab-judge", "judge", "length <= 60: 0.95")],
)  # fmt: skip
def test_a_constraint_on_what_is_cut_counts(task: str, stage: str, constraint: str) -> None:
    """A column that depends on length or truncation, and the length of a task without a signal of that name."""
    sets = ["stages.judge.rewards={right = 1.0, notes_length = 0.0}"] if task == "ab-judge" else []
    given = {"task": task, "model": OUTSIDE, "strategy": "finetuned" if task == "tldr" else None}
    assert stage in left_out(resolved(**given, sets=sets))
    found = resolved(**given, sets=[*sets, f"stages.{stage}.constraints={constraint}"])
    assert stage not in left_out(found)
    assert "constraint on" in found.sources[f"stages.{stage}.mask_truncated"]
    (warning,) = TASKS[task].warnings(
        resolved(
            **given, sets=[*sets, f"stages.{stage}.constraints={constraint}", f"stages.{stage}.mask_truncated=true"]
        ).config
    )
    assert f"stage {stage} has a constraint on {constraint.split()[0]}" in warning


def test_a_signal_that_is_only_logged_does_not_count() -> None:
    """Of weight 0: the stage does not learn from it."""

    def weighted(length: float) -> set[str]:
        sets = [f"stages.quality.rewards={{meteor = 1.0, length = {length}}}"]
        return left_out(resolved(model="qwen", strategy="finetuned", sets=sets))

    assert weighted(0.0) == {"quality"}
    assert weighted(0.1) == set()


@pytest.mark.parametrize("value", [True, False])
def test_a_users_own_value_counts(value: bool, tmp_path: Path) -> None:
    """From a file, from --set, and for one stage."""
    mask = f"mask_truncated={str(value).lower()}"
    (file := tmp_path / "mine.toml").write_text(f'[model]\npath = "{OUTSIDE}"\n[grpo]\n{mask}\n')
    for strategy, stages in (("finetuned", {"length", "quality"}), (None, {"constrained"})):
        everywhere = stages if value else set()
        assert left_out(resolved(config_file=file, strategy=strategy)) == everywhere
        assert left_out(resolved(model="qwen", strategy=strategy, sets=[f"grpo.{mask}"])) == everywhere
    assert left_out(resolved(model="qwen", sets=[f"stages.constrained.{mask}"])) == (
        {"constrained"} if value else set()
    )
    one = resolved(model="qwen", strategy="finetuned", sets=[f"stages.length.{mask}"])
    assert left_out(one) == {"quality"} | ({"length"} if value else set())


@pytest.mark.parametrize(
    ("task", "strategy", "sets", "warned"),
    [
        ("tldr", "finetuned", ["grpo.mask_truncated=true"], ["stage length rewards length"]),
        ("tldr", None, ["grpo.mask_truncated=true"], ["stage constrained has a constraint on length"]),
        ("ab-judge", None, ["grpo.mask_truncated=true"], ["stage judge rewards notes_length"]),
        ("tldr", "finetuned", ["stages.quality.mask_truncated=true"], []),
        ("tldr", "finetuned", [], []),
        ("tldr", None, [], []),
        ("ab-judge", None, [], []),
    ],
)
def test_leaving_out_what_length_punishes_warns(
    task: str, strategy: str | None, sets: list[str], warned: list[str]
) -> None:
    """Where the user asks for it himself: each stage whose signals depend on length, with the remedy."""
    found = TASKS[task].warnings(resolved(task, model=OUTSIDE, strategy=strategy, sets=sets).config)
    assert [text.partition(" but ")[0] for text in found] == warned
    assert all(text.endswith("--set grpo.mask_truncated=auto trains on them") for text in found)


def test_the_settings_of_a_run_repeat_it(tmp_path: Path) -> None:
    """A config.toml holds what was decided for each stage; a typed value for the whole run replaces it."""
    file = tmp_path / "config.toml"
    first = resolved(model="qwen", strategy="finetuned").config
    file.write_text(to_toml(first), encoding="utf-8")
    assert resolved(config_file=file).config == first
    assert left_out(resolved(config_file=file, sets=["grpo.mask_truncated=false"])) == set()
    assert left_out(resolved(config_file=file, sets=["grpo.mask_truncated=true"])) == {"length", "quality"}


def test_the_weights_that_count_are_those_that_a_task_adjusts() -> None:
    """Strict JSON without thoughts gives the weight of `reasoning` to the others."""
    found = resolved("strict-json", model="qwen", sets=["stages.standard.rewards={reasoning = 1.0, strictness = 1.0}"])
    assert found.config.stages["standard"].rewards == {"reasoning": 0.0, "strictness": 2.0}
    assert left_out(found) == {"standard"}


@pytest.mark.parametrize("name", TASKS)
def test_signals_that_depend_on_length_exist(name: str) -> None:
    """A misspelt name would leave out what the signal is to teach."""
    rewards = TASKS[name].rewards
    assert set(rewards.length_signals) <= set(rewards.signals)
