"""What a run is made from: the policy, the prompts of each split, their fingerprints, and the source of rollouts."""

import dataclasses
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from smolsum.config.presets import leaves
from smolsum.config.sections import Config
from smolsum.errors import UsageError
from smolsum.evaluate.prompt_encoding import encode_prompts, meteor_matching, split_fingerprints
from smolsum.files import digest
from smolsum.policy import distributed
from smolsum.policy.cpu.blas import preload
from smolsum.policy.group_gradient import Chunking
from smolsum.policy.load import Policy, is_here, load_policy, weights_hash
from smolsum.policy.logprobs import can_share_prefix
from smolsum.policy.memory import GB, MaxLengths, choose_chunking, estimate, shape_of
from smolsum.policy.weights import tokenizer_digest
from smolsum.rollout.remote_source import RemoteSource
from smolsum.rollout.source import LocalSource, Receiver, Source
from smolsum.tasks import TASKS
from smolsum.tasks.base import Task
from smolsum.tasks.data import SPLITS, Split, overlap
from smolsum.tasks.text_metrics import length_table
from smolsum.types import Prompt, Rollout

LIBRARIES = ("smolsum", "mlx", "mlx-lm", "transformers", "rouge-score", "nltk", "sacrebleu")

LOOP = ("seed", "prompts_per_step", "accumulation_steps", "refill_rounds")
SYNC = ("sync_every", "max_staleness")
"""settings of [train], and of [workers] where workers sample, that decide the weights"""


@dataclass(frozen=True)
class Setup:
    """Everything that a run needs, loaded and checked before anything is trained or written."""

    policy: Policy
    task: Task
    prompts: Mapping[str, tuple[Prompt, ...]]
    measure: Callable[[Prompt, Rollout], dict[str, Any]]
    provenance: Mapping[str, Any]
    """fingerprints of model, tokenizer, prompts and data, the METEOR matcher, the settings that decide the weights,
    versions, machine"""
    chunking: Chunking
    warnings: tuple[str, ...]


def prepare(config: Config) -> Setup:
    """Load everything that `config` names. Raises the errors of loading, and UsageError for prompts over
    `max_input_tokens`."""
    policy = _policy(config)
    task = TASKS[config.task.name]
    splits = {name: task.prompts.load(config, name) for name in SPLITS}
    warnings = [*task.check(config), *(split.left_out for split in splits.values() if split.left_out)]
    if not can_share_prefix(policy.model):
        warnings.append(
            "this model cannot share a prompt among its completions: the prompt is computed for each one, more slowly"
        )
    for a, b in (("train", "validation"), ("train", "test"), ("validation", "test")):
        if shared := overlap(splits[a], splits[b]):
            warnings.append(
                f"{len(shared)} prompts are in both the {a} and the {b} split: results on {b} flatter the model"
            )
    prompts = {}
    for name, split in splits.items():
        prompts[name], dropped = encode_prompts(policy, task, split, config)
        if dropped:
            warnings.append(
                f"{dropped} prompts of the {name} split are longer than {config.data.max_input_tokens} tokens "
                "and were dropped"
            )
    matcher = meteor_matching(task, config, warnings.append)
    provenance = {
        "model": {"path": config.model.path, "dtype": policy.dtype, "weights": weights_hash(policy.path)}
        | {"quantize": config.model.quantize},
        "tokenizer": tokenizer_digest(policy.tokenizer),
        "data": {name: split_fingerprints(split, prompts[name]) for name, split in splits.items()},
        "headlines": {headline.name: headline.title for headline in task.evaluation.headlines},
        "corpus": {name: corpus_facts(split, policy.tokenizer) for name, split in splits.items()},
        "meteor": matcher,
        "settings": deciding(config),
        "blas": preload(),
        "versions": {name: version(name) for name in LIBRARIES},
        "machine": {
            "system": platform.platform(),
            "python": platform.python_version(),
            "processor": platform.machine(),
        },
    }
    chunking = choose_chunking(shape_of(policy.model, policy.config), config, _max_lengths(prompts["train"], config))
    measure = task.evaluation.measurer(list(splits.values()), config)
    return Setup(policy, task, prompts, measure, provenance, chunking, tuple(warnings))


def open_source(setup: Setup, config: Config, *, notify: Callable[..., None], stopping: Callable[[], bool]) -> Source:
    """Return the source of rollouts: the workers of `workers.urls`, which the first rank uses for all, or else the
    policy itself. Arguments and errors as of RemoteSource."""
    if not config.workers.urls:
        return LocalSource(setup.policy, config)
    if not distributed.leads():
        return Receiver()
    return RemoteSource(setup.policy, config, setup.prompts["train"], on_event=notify, stopping=stopping)


def forecast(config: Config) -> dict[str, float] | None:
    """Return the peak memory of an update in GB, by purpose, with their sum as `peak`. No weight is read.

    None for a model that is not on this machine yet. Raises what `prepare` raises for model, prompts and budget.
    """
    if not is_here(config.model.path):
        return None
    policy, task = _policy(config, shapes_only=True), TASKS[config.task.name]
    splits = {name: task.prompts.load(config, name) for name in SPLITS}
    prompts, _ = encode_prompts(policy, task, splits["train"], config)
    shape, lengths = shape_of(policy.model, policy.config), _max_lengths(prompts, config)
    parts = estimate(shape, config, choose_chunking(shape, config, lengths), lengths)
    return {name: size / GB for name, size in {**parts, "peak": sum(parts.values())}.items()}


def corpus_facts(split: Split, tokenizer: Any) -> dict[str, Any]:
    """Return the number of examples of a split, and the lengths of their posts and references (if any) in tokens,
    without special tokens: mean, std (population), min, p50, p90, p95, p99, max."""
    posts = [example.source for example in split.examples]
    references = [text for example in split.examples for text in example.references]
    facts: dict[str, Any] = {"examples": len(split.examples)}
    for name, texts in (("posts", posts), ("references", references)):
        if not texts:
            continue
        lengths = length_table([len(tokenizer.encode(text, add_special_tokens=False)) for text in texts])
        facts[name] = {key.removeprefix("completions/").removesuffix("_length"): n for key, n in lengths.items()}
    return facts


def stage_fingerprint(config: Config, provenance: Mapping[str, Any], name: str, steps: int, previous: str) -> str:
    """Return what identifies the weights at a stage's end: a digest of model, data, settings, and the stages before
    (`previous`). Stages with the same fingerprint train to the same weights."""
    relevant = {
        "stage": dataclasses.asdict(config.stages[name]) | {"steps": steps},
        "model": provenance["model"],
        "tokenizer": provenance["tokenizer"],
        "train": provenance["data"]["train"],
        "meteor": provenance["meteor"] if "meteor" in config.stages[name].rewards else "",
        "settings": [
            config.task.measures,
            *(dataclasses.asdict(s) for s in (config.rewards, config.sampling, config.grpo, config.optimizer)),
        ],
        "adapter": dataclasses.asdict(config.lora) if config.model.adapter == "lora" else None,
        "loop": tuple(getattr(config.train, key) for key in LOOP),
        "workers": tuple(getattr(config.workers, key) for key in SYNC) if config.workers.urls else None,
        "version": provenance["versions"]["smolsum"],
        "previous": previous,
    }
    return digest(relevant)


def deciding(config: Config) -> dict[str, Any]:
    """Return the settings that stage fingerprints hold, by dotted key: those of [stages.NAME] for that stage, the
    others for every stage."""
    whole = dataclasses.asdict(config)
    kept = {name: whole[name] for name in ("stages", "rewards", "sampling", "grpo", "optimizer")}
    kept |= {"task": config.task.measures, "train": {key: whole["train"][key] for key in LOOP}}
    kept |= {"lora": whole["lora"]} if config.model.adapter == "lora" else {}
    kept |= {"workers": {key: whole["workers"][key] for key in SYNC}} if config.workers.urls else {}
    return leaves(kept) | {"version of smolsum": version("smolsum")}


def _policy(config: Config, *, shapes_only: bool = False) -> Policy:
    """Load the policy. Raises UsageError for settings that train nothing or contradict the weights' type."""
    policy = load_policy(
        config.model.path,
        dtype=config.model.dtype,
        lora=config.lora if config.model.adapter == "lora" else None,
        quantize=config.model.quantize,
        seed=config.train.seed,
        shapes_only=shapes_only,
    )
    if policy.quantised and policy.lora is None:
        raise UsageError(
            "quantised weights cannot be trained without an adapter",
            hint="--set model.adapter=lora, or a model that is not quantised",
        )
    if config.optimizer.precision == "stochastic" and policy.dtype != "bfloat16":
        raise UsageError(
            f"optimizer.precision = stochastic rounds to bfloat16, but the weights are {policy.dtype}",
            hint="--set model.dtype=bfloat16, or --set optimizer.precision=masters",
        )
    return policy


def _max_lengths(prompts: Sequence[Prompt], config: Config) -> MaxLengths:
    return MaxLengths(max(len(prompt.token_ids) for prompt in prompts), config.sampling.max_new_tokens)
