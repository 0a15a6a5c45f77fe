"""Fingerprints of stages: what decides the weights at a stage's end, for runs made before and for settings added since.

`tests/golden/first_release` holds settings as the first release wrote them, and the fingerprints that it computed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.places import ROOT

from smolsum.config.resolve import resolve
from smolsum.config.sections import Config
from smolsum.tasks import TASKS
from smolsum.training.setup import deciding, stage_fingerprint

GOLDEN = ROOT / "tests" / "golden" / "first_release"
EARLIER: dict[str, dict[str, str]] = json.loads((GOLDEN / "fingerprints.json").read_text(encoding="utf-8"))
PROVENANCE = {
    "model": {"path": "m"}, "tokenizer": "t", "data": {"train": "d"}, "meteor": "stems",
    "versions": {"smolsum": "0.1.0"},
}  # fmt: skip


def settings(name: str, *sets: str) -> Config:
    return resolve(TASKS, config_file=GOLDEN / f"{name}.toml", sets=sets).config


def fingerprints(config: Config) -> dict[str, str]:
    """Of stages of seven steps each."""
    found: dict[str, str] = {}
    for name in config.stages:
        found[name] = stage_fingerprint(config, PROVENANCE, name, 7, next(reversed(found.values()), ""))
    return found


@pytest.mark.parametrize("name", EARLIER)
def test_earlier_runs_keep_theirs(name: str) -> None:
    """So they can be resumed, and their stages reused."""
    assert fingerprints(settings(name)) == EARLIER[name]


@pytest.mark.parametrize(
    "text",
    [
        "rewards.bleu=study", "rewards.length_counts=retokenized", "grpo.advantage_std=population",
        "grpo.advantage_eps=1e-6", "grpo.train_eos=false", "stages.length.temperature_end=0.5",
    ],
)  # fmt: skip
def test_a_setting_added_later_counts_where_it_is_used(text: str) -> None:
    """Another value than that of all earlier runs is another stage, and the difference is known by its name."""
    changed = settings("tldr", text)
    assert fingerprints(changed)["length"] != EARLIER["tldr"]["length"]
    assert deciding(changed).keys() - deciding(settings("tldr")).keys() == {text.partition("=")[0]}


@pytest.mark.parametrize(
    ("mask", "same"),
    # the golden file leaves out truncated completions in both stages; "auto" does so in the stage of quality alone
    [("true", True), ("auto", False), ("false", False)],
)
def test_masking_counts_as_what_holds_in_the_stage(mask: str, same: bool) -> None:
    """However it was asked for."""
    found = fingerprints(settings("tldr", f"grpo.mask_truncated={mask}"))
    assert (found["length"] == EARLIER["tldr"]["length"]) is same
    by_stage = settings("tldr", "stages.length.mask_truncated=false", "stages.quality.mask_truncated=true")
    assert fingerprints(settings("tldr", "grpo.mask_truncated=auto")) == fingerprints(by_stage)


def test_the_reference_counts_from_the_second_stage_on() -> None:
    """In the first one both references are the model that the run starts from."""
    of_stage, of_start = EARLIER["strict-json"], fingerprints(settings("strict-json", "grpo.reference=start"))
    assert of_start["format_basics"] == of_stage["format_basics"]
    assert of_start["progressive"] != of_stage["progressive"]
    assert of_start["full_difficulty"] != of_stage["full_difficulty"]


def test_a_reference_that_nothing_reads_does_not_count() -> None:
    """Without a KL term."""

    def found(*sets: Any) -> dict[str, str]:
        return fingerprints(settings("strict-json", "grpo.beta=0", *sets))

    assert found("grpo.reference=start") == found()


def test_bands_count_where_a_stage_mixes_them() -> None:
    """What makes a prompt hard, and the bands that came of it: other scores are another stage."""
    mix = "stages.length.mix={easy=1.0}"

    def found(bands: str, *sets: str) -> dict[str, str]:
        config = settings("tldr", mix, *sets)
        provenance = {**PROVENANCE, "bands": bands}
        return {name: stage_fingerprint(config, provenance, name, 7, "") for name in config.stages}

    scores = ("difficulty.by=scores", "difficulty.scores=f", "difficulty.column=rouge")
    one, other = found("a", *scores), found("b", *scores)
    assert one["length"] != other["length"]
    assert one["quality"] == other["quality"]
    assert found("a", "difficulty.by=length")["length"] not in (one["length"], other["length"])
