"""What identifies the weights at the end of a stage: the digest by which another run's stage is reused and a resumed
run refused, and the settings in it.

`stage_fingerprint` and `deciding` must name the same settings: one decides, the other explains a refusal.
"""

import dataclasses
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from smolsum.config.checks import EARLIER, asking
from smolsum.config.presets import leaves
from smolsum.config.sections import Config
from smolsum.files import digest
from smolsum.tasks import TASKS
from smolsum.tasks.plugins import digests

LOOP = ("seed", "prompts_per_step", "accumulation_steps", "refill_rounds")
SYNC = ("sync_every", "max_staleness")
ROLLBACK = ("guard", "checkpoint_every")
"""settings of [train], of [workers] where workers sample, and of [train] where the guard goes back, that decide the
weights"""


def stage_fingerprint(config: Config, provenance: Mapping[str, Any], name: str, steps: int, previous: str) -> str:
    """Return what identifies the weights at a stage's end: a digest of model, data, settings, and the stages before
    (`previous`). Stages with the same fingerprint train to the same weights. A setting counts where it differs from its
    default, so that a setting which is new changes no fingerprint of before."""
    stage, grpo = _changed(config.stages[name]) | {"steps": steps}, _changed(config.grpo)
    grpo |= {"mask_truncated": stage.pop("mask_truncated", None)}
    if not previous or config.stages[name].beta == 0:  # in the first stage both references are the same
        grpo.pop("reference", None)
    if not config.stages[name].constraints:
        grpo = {key: value for key, value in grpo.items() if not key.startswith("constraint_")}
    rewards = _changed(config.rewards)
    rewards.pop("timeout_s", None)  # a reward that takes longer is the same reward
    guarded = config.train.guard == "rollback"
    reads_wordnet = guarded or not {"meteor", "nonwords"}.isdisjoint(config.stages[name].used_signals)
    relevant = {
        "stage": stage,
        "model": provenance["model"],
        "tokenizer": provenance["tokenizer"],
        "train": provenance["data"]["train"],
        "meteor": provenance["meteor"] if reads_wordnet else "",
        "settings": [config.task.measures, rewards, _changed(config.sampling), grpo, _changed(config.optimizer)],
        "adapter": _changed(config.lora) if config.model.adapter == "lora" else None,
        "loop": tuple(getattr(config.train, key) for key in LOOP),
        "workers": tuple(getattr(config.workers, key) for key in SYNC) if config.workers.urls else None,
        "version": provenance["versions"]["smolsum"],
        "previous": previous,
    }
    if asking(TASKS[config.task.name].rewards.signals, config.stages[name].used_signals):
        relevant["judge"] = config.judge.measures
    if difficulty := _changed(config.difficulty):
        relevant["difficulty"] = [difficulty, provenance.get("bands", "") if config.stages[name].mix else ""]
    if code := digests(config.stages[name].used_signals):
        relevant["plugins"] = code
    if config.train.skip_untaught:
        relevant["skip_untaught"] = config.train.skip_untaught
    if guarded:
        relevant["guard"] = [getattr(config.train, key) for key in ROLLBACK]
    return digest(relevant)


def deciding(config: Config) -> dict[str, Any]:
    """Return the settings that stage fingerprints hold, by dotted key: those of [stages.NAME] for that stage, the
    others for every stage."""
    whole = dataclasses.asdict(config)
    for stage in whole["stages"].values():
        if stage["mask_truncated"] == whole["grpo"]["mask_truncated"]:
            del stage["mask_truncated"]
    del whole["rewards"]["timeout_s"]
    kept = {name: whole[name] for name in ("stages", "rewards", "sampling", "grpo", "optimizer")}
    kept |= {"task": config.task.measures, "train": {key: whole["train"][key] for key in LOOP}}
    kept["train"] |= {"skip_untaught": config.train.skip_untaught} if config.train.skip_untaught else {}
    kept["train"] |= {key: whole["train"][key] for key in ROLLBACK} if config.train.guard == "rollback" else {}
    kept |= {"judge": config.judge.measures} if config.judge.model else {}
    kept |= {"difficulty": whole["difficulty"]} if _changed(config.difficulty) else {}
    kept |= {"lora": whole["lora"]} if config.model.adapter == "lora" else {}
    kept |= {"workers": {key: whole["workers"][key] for key in SYNC}} if config.workers.urls else {}
    signals = {name for stage in config.stages.values() for name in stage.used_signals}
    code = {f"plugin of {name}": sha256 for name, sha256 in sorted(digests(signals).items())}
    return leaves(kept) | code | {"version of smolsum": version("smolsum")}


def _changed(settings: Any) -> dict[str, Any]:
    """Return the settings of a record that differ from their defaults."""
    default = {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(settings)
    }
    default |= {key: EARLIER[key] for key in default if key in EARLIER}  # so that a run resumes
    return {key: value for key, value in dataclasses.asdict(settings).items() if value != default[key]}
