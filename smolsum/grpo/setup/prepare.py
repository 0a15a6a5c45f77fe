"""What a run is made from: the policy, the prompts of each split, their fingerprints, and the source of rollouts."""

import dataclasses
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import combinations
from typing import Any

from smolsum.config.sections import Config
from smolsum.errors import UsageError
from smolsum.files import digest
from smolsum.grpo.constrained_values import check_constraints
from smolsum.grpo.difficulty import planned_kinds
from smolsum.grpo.learning_rate import choose_rates, default_rate
from smolsum.grpo.setup.fingerprints import deciding
from smolsum.grpo.setup.memory_plan import MemoryPlan, plan_memory
from smolsum.policy import distributed
from smolsum.policy.chat_template import shared_system
from smolsum.policy.cpu import native
from smolsum.policy.cpu.blas import preload
from smolsum.policy.cpu.streams import kernels
from smolsum.policy.device_memory import raise_wired_limit
from smolsum.policy.load import Policy, is_here, load_policy, read_weights, weights_hash
from smolsum.policy.logprobs import can_share_prefix
from smolsum.policy.lora import count_parameters
from smolsum.policy.lower_half import trains_below
from smolsum.policy.weights import tokenizer_digest
from smolsum.results.evaluate.prompt_encoding import PromptWriter, encode_prompts, meteor_matching, split_fingerprints
from smolsum.rewards.judge import check_endpoint
from smolsum.rollout.remote_source import RemoteSource
from smolsum.rollout.sampling_count import ShowCount
from smolsum.rollout.source import LocalSource, Receiver, Source
from smolsum.runs.records import RunInfo
from smolsum.runs.typed_json import to_row
from smolsum.tasks import TASKS
from smolsum.tasks.base import Measure, Task
from smolsum.tasks.data import Split, check_references, overlap
from smolsum.tasks.data_files import SPLITS
from smolsum.tasks.hub_data import commit_of
from smolsum.tasks.plugin_files import Plugin
from smolsum.tasks.plugins import check_columns, loaded_plugins
from smolsum.tasks.text_metrics import length_table
from smolsum.types import Prompt

LIBRARIES = ("smolsum", "mlx", "mlx-lm", "transformers", "rouge-score", "nltk", "sacrebleu")

SMALL = 20_000_000
"""parameters below which settings for half a billion do not suit a model"""


@dataclass(frozen=True)
class Setup:
    """Everything that a run needs, loaded and checked before anything is trained or written."""

    config: Config
    """the settings, with a number for each learning rate that was left to the model"""
    policy: Policy
    task: Task
    prompts: Mapping[str, tuple[Prompt, ...]]
    writer: PromptWriter | None
    """of the training split, where its prompts ask for a length"""
    measure: Measure
    """of an evaluation"""
    measure_rollout: Measure | None
    """of every rollout, for the guard; None where nothing is watched"""
    provenance: Mapping[str, Any]
    """fingerprints of model, tokenizer, prompts and data, the METEOR matcher, the settings that decide the weights,
    versions, machine"""
    memory: MemoryPlan
    plugins: tuple[Plugin, ...]
    """the users' code that the run executes"""
    warnings: tuple[str, ...]


def prepare(config: Config, recorded: RunInfo | None = None) -> Setup:
    """Load everything that `config` names; `recorded` is run.json of a run that is resumed. Raises the errors of
    loading, UsageError for prompts over `max_input_tokens`, and MachineError where the memory does not suffice."""
    policy = load_shapes(config)
    config, task = choose_rates(config, policy.model), TASKS[config.task.name]
    splits, prompts, warnings = _load_prompts(config, task, policy)
    memory = plan_memory(config, policy, prompts["train"], recorded, load_shapes)
    raise_wired_limit()
    read_weights(policy)
    policy = dataclasses.replace(policy, system=shared_system(prompts["train"]))
    plugins = tuple(plugin for plugin in loaded_plugins() if plugin.serves(config))
    measure, quick = _measures(task, splits, config)
    check_constraints(config, task.rewards.signals, prompts["train"][0], quick or measure)
    targets, examples = task.targets.of(config), {example.id: example for example in splits["train"].examples}
    writer = PromptWriter(policy, task, config, targets, examples) if targets else None
    warnings += memory.warnings
    provenance = _provenance(config, task, policy, splits, prompts, plugins, warnings.append)
    provenance |= {"memory": memory.record()}
    return Setup(
        config=config,
        policy=policy,
        task=task,
        prompts=prompts,
        writer=writer,
        measure=measure,
        measure_rollout=None if config.train.guard == "off" else quick,
        provenance=provenance,
        memory=memory,
        plugins=plugins,
        warnings=tuple(warnings),
    )


def _measures(task: Task, splits: Mapping[str, Split], config: Config) -> tuple[Measure, Measure | None]:
    """Return how the task measures a completion, with the rewards of plugins, and how quickly without them; None where
    it has no quick way."""
    evaluation, every = task.evaluation, list(splits.values())
    measure, quick = evaluation.measurer(every, config), evaluation.quick_measurer
    return measure, measure if quick is evaluation.measurer else quick and quick(every, config)


def _load_prompts(
    config: Config, task: Task, policy: Policy
) -> tuple[dict[str, Split], dict[str, tuple[Prompt, ...]], list[str]]:
    """Return the splits, their prompts, and warnings about them. Raises UsageError for data that the rewards or the
    judge cannot use, and for a judge where several ranks would each ask it."""
    splits = {name: task.prompts.load(config, name) for name in SPLITS}
    warnings = [*task.warnings(config), *(split.left_out for split in splits.values() if split.left_out)]
    warnings += filter(None, [check_references(splits, config.stages)])
    check_columns(task, splits, config)
    check_endpoint(config, _dollars)
    if config.judge.model and not distributed.alone():
        raise UsageError(
            "with several processes each would ask the judge for itself, and be given other answers",
            hint="start it without mlx.launch; --worker URL lets other machines sample",
        )
    if not can_share_prefix(policy.model):
        warnings.append(
            "this model cannot share a prompt among its completions: the prompt is computed for each one, more slowly"
        )
    for a, b in combinations(SPLITS, 2):
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
    return splits, prompts, warnings


def _provenance(
    config: Config,
    task: Task,
    policy: Policy,
    splits: Mapping[str, Split],
    prompts: Mapping[str, tuple[Prompt, ...]],
    plugins: Sequence[Plugin],
    warn: Callable[[str], None],
) -> dict[str, Any]:
    """Return what the run is made from, for run.json and the fingerprints of its stages."""
    commits = {config.model.path: policy.commit, config.data.path: commit_of(config.data.path)}
    found = {
        "model": {"path": config.model.path, "dtype": policy.dtype, "weights": weights_hash(policy.path)}
        | {"quantize": config.model.quantize},
        "tokenizer": tokenizer_digest(policy.tokenizer),
        "data": {name: split_fingerprints(split, prompts[name]) for name, split in splits.items()},
        "revisions": {path: commit for path, commit in commits.items() if commit},
        "headlines": {headline.name: headline.title for headline in task.evaluation.headlines},
        "corpus": {name: corpus_facts(split, policy.tokenizer) for name, split in splits.items()},
        "meteor": meteor_matching(task, config, warn),
        "settings": deciding(config),
        "plugins": [to_row(plugin.record()) for plugin in plugins],
        "blas": preload(),
        "native": native.library() is not None,
        "versions": {name: version(name) for name in LIBRARIES},
        "machine": {
            "system": platform.platform(),
            "python": platform.python_version(),
            "processor": platform.machine(),
            "kernels": kernels(),
        },
    }
    if config.difficulty.by != "none":
        found["bands"] = digest(planned_kinds(config, task, prompts["train"]))
    return found


def open_rollouts(
    setup: Setup, config: Config, *, notify: Callable[..., None], stopping: Callable[[], bool], show: ShowCount
) -> Source:
    """Return the source of rollouts: the workers of `workers.urls`, which the first rank uses for all, or else the
    policy itself. Takes and raises what RemoteSource does."""
    if not config.workers.urls:
        return LocalSource(setup.policy, config, show)
    if not distributed.leads():
        return Receiver()
    return RemoteSource(setup.policy, config, setup.prompts["train"], on_event=notify, stopping=stopping, show=show)


def _dollars(model: str, input_tokens: int, output_tokens: int) -> float | None:
    from smolsum.results.evaluate.geval import dollars  # loads DeepEval, which lists prices

    return dollars(model, input_tokens, output_tokens)


def forecast(config: Config, splits: Mapping[str, Split] | None = None) -> MemoryPlan | None:
    """Return the memory that a new run would take, with `splits` if they are loaded already. No weight is read.

    None for a model that is not on this machine yet. Raises what `prepare` raises for model, prompts and memory.
    """
    if not is_here(config.model.path):
        return None
    policy, task = load_outline(config), TASKS[config.task.name]
    splits = splits or {name: task.prompts.load_preview(config, name) for name in SPLITS}
    check_references(splits, config.stages)
    check_columns(task, splits, config)
    check_endpoint(config, _dollars)
    measure, quick = _measures(task, splits, config)  # refuses a reader that cannot read these data
    prompts, _ = encode_prompts(policy, task, splits["train"], config)
    check_constraints(config, task.rewards.signals, prompts[0], quick or measure)
    return plan_memory(config, policy, prompts, None, load_outline)


def preview_rates(config: Config) -> tuple[Config, int, str]:
    """Return the settings as `prepare` will complete them, the model's number of parameters, and how the learning rate
    is chosen, in words. No weight is read. A model that is not on this machine yet has 0 parameters and no rate."""
    if not is_here(config.model.path):
        return config, 0, f"chosen once {config.model.path} is on this machine"
    model = load_outline(config).model
    parameters, adapter = count_parameters(model), config.lora if config.model.adapter == "lora" else None
    return choose_rates(config, model), parameters, default_rate(parameters, adapter)[1]


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


def load_outline(config: Config) -> Policy:
    """Load the policy as `load_shapes` does, for a forecast: a GGUF file is not converted."""
    return load_shapes(config, convert=False)


def load_shapes(config: Config, *, convert: bool = True) -> Policy:
    """Load the policy without its weights. Raises UsageError for settings that train nothing or contradict the weights'
    type."""
    policy = load_policy(
        config.model.path,
        dtype=config.model.dtype,
        lora=config.lora if config.model.adapter == "lora" else None,
        quantize=config.model.quantize,
        thinking=config.model.thinking,
        chat_template=config.model.chat_template,
        seed=config.train.seed,
        shapes_only=True,
        convert=convert,
    )
    if policy.quantised and policy.lora is None:
        raise UsageError(
            "quantised weights cannot be trained without an adapter",
            hint="--set model.adapter=lora, or a model that is not quantised",
        )
    if any(stage.countdown for stage in config.stages.values()) and not trains_below(policy.model):
        raise UsageError(
            f"the countdown teaches the lower half of the layers: lora.layers = {config.lora.layers} adapts none there",
            hint="--set lora.layers=0 adapts all",
        )
    if config.optimizer.precision == "stochastic" and policy.dtype != "bfloat16":
        raise UsageError(
            f"optimizer.precision = stochastic rounds to bfloat16, but the weights are {policy.dtype}",
            hint="--set model.dtype=bfloat16, or --set optimizer.precision=masters",
        )
    return policy
