"""Fingerprints of stages: what decides the weights at a stage's end."""

import pytest

from smolsum.config.resolve import resolve
from smolsum.config.sections import Config
from smolsum.grpo.setup.fingerprints import deciding, stage_fingerprint
from smolsum.tasks import TASKS

PROVENANCE = {
    "model": {"path": "m"}, "tokenizer": "t", "data": {"train": "d"}, "meteor": "stems",
    "versions": {"smolsum": "0.1.0"},
}  # fmt: skip


def settings(task: str, *sets: str) -> Config:
    """Of a strategy with several stages."""
    strategy = {"strict-json": "curriculum", "tldr": "finetuned"}[task]
    return resolve(TASKS, strategy=strategy, sets=sets, flags={"task.name": task}).config


def fingerprints(config: Config) -> dict[str, str]:
    """Of stages of seven steps each."""
    found: dict[str, str] = {}
    for name in config.stages:
        found[name] = stage_fingerprint(config, PROVENANCE, name, 7, next(reversed(found.values()), ""))
    return found


@pytest.mark.parametrize(
    "text",
    [
        "rewards.bleu=study", "rewards.length_counts=retokenized", "grpo.advantage_std=population",
        "grpo.advantage_eps=1e-6", "grpo.train_eos=false", "stages.length.temperature_end=0.5", "train.seed=7",
        "task.target_tokens=50", "sampling.rollouts=4", "optimizer.max_grad_norm=0.5",
    ],
)  # fmt: skip
def test_a_setting_that_decides_the_weights_is_another_stage(text: str) -> None:
    """A stage of another value is not reused, and the difference is known by its name."""
    changed = settings("tldr", text)
    assert fingerprints(changed)["length"] != fingerprints(settings("tldr"))["length"]
    own, other = deciding(settings("tldr")), deciding(changed)
    assert text.partition("=")[0] in {name for name in other if other[name] != own.get(name)}


@pytest.mark.parametrize(
    "text", ["run.name=other", "train.checkpoint_every=1", "train.validate_every=9", "rewards.timeout_s=9"]
)
def test_a_setting_that_does_not_is_the_same_stage(text: str) -> None:
    assert fingerprints(settings("tldr", text)) == fingerprints(settings("tldr"))


def test_a_run_from_before_a_default_changed_is_still_known() -> None:
    """Constraints began with a multiplier of 2 that moved 20 times as fast; a run of that time resumes, and does not
    count as one of today. Without constraints nothing changed."""
    bound = "grpo.constraints=length in 59..69: 0.9"
    before = fingerprints(settings("tldr", bound, "grpo.constraint_weight=2", "grpo.constraint_rate=0.4"))
    assert before["length"] == "5a9c6ea4758f2f052edc9d3a508f2607"
    assert before["length"] != fingerprints(settings("tldr", bound))["length"]
    assert fingerprints(settings("tldr"))["length"] == "51cc8c424e10969fa6d1318afbae5cc1"


@pytest.mark.parametrize(
    ("mask", "same"),
    # "auto", the default, leaves out truncated completions in the stage of quality alone
    [("true", False), ("auto", True), ("false", True)],
)
def test_masking_counts_as_what_holds_in_the_stage(mask: str, same: bool) -> None:
    """However it was asked for."""
    found = fingerprints(settings("tldr", f"grpo.mask_truncated={mask}"))
    assert (found["length"] == fingerprints(settings("tldr"))["length"]) is same
    by_stage = settings("tldr", "stages.length.mask_truncated=false", "stages.quality.mask_truncated=true")
    assert fingerprints(settings("tldr", "grpo.mask_truncated=auto")) == fingerprints(by_stage)


def test_the_reference_counts_from_the_second_stage_on() -> None:
    """In the first one both references are the model that the run starts from. Without a KL term nothing reads it."""
    of_stage, of_start = (fingerprints(settings("strict-json", f"grpo.reference={one}")) for one in ("stage", "start"))
    assert [of_start[name] == of_stage[name] for name in of_start] == [True, False, False]
    unread = (fingerprints(settings("strict-json", "grpo.beta=0", *sets)) for sets in ([], ["grpo.reference=start"]))
    assert next(unread) == next(unread)


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
    adapting = found("a", "difficulty.by=length", "difficulty.adapt=0.5")
    assert adapting["length"] != found("a", "difficulty.by=length")["length"]
