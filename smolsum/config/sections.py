"""What a run is made of: one frozen record for each section of a configuration file.

The records hold the meaning, the type, the range and the default of every value; `smolsum/config/resolve.py` fills
them from presets, files and flags.

The sections [grpo] and [optimizer] of a configuration: what is minimised, and how gradients become weights.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_type_hints

from smolsum.config.fields import (
    AdvantageScale,
    Bits,
    Cap,
    Correction,
    Count,
    Decay,
    Floor,
    GroupSize,
    KlEstimate,
    LossKind,
    LowerClip,
    NonNegative,
    Positive,
    PositiveCount,
    Rank,
    RunName,
    Schedule,
    Seed,
    Text,
    WeightFloor,
)


@dataclass(frozen=True)
class GrpoConfig:
    """The objective."""

    loss: LossKind = "grpo"
    """`grpo` clips a ratio for each token and averages each sequence, `dapo` all tokens, `dr_grpo` over max_new_tokens;
    `cispo` weights by the ratio and clips nothing; `gspo` has one ratio a sequence, as has the study's own, `study`."""
    eps_low: LowerClip = 0.2
    """The ratio is clipped below at 1 - eps_low; GSPO's paper has 3e-4."""
    eps_high: Positive = 0.2
    """The ratio is clipped above at 1 + eps_high; DAPO's paper has 0.28, GSPO's 4e-4."""
    eps_max: Cap = 5.0
    """Largest ratio that weighs a token in `cispo`, which reads neither eps_low nor eps_high."""
    beta: NonNegative = 1e-4
    """Weight of the KL to the frozen starting model; 0 loads no reference."""
    kl: KlEstimate = "k3"
    """Estimate of that KL. `k1` has no gradient on average, unless kl_unbiased is set."""
    kl_unbiased: bool = False
    """Whether each token's KL is weighted with its ratio, so that its gradient is that of the KL off-policy too."""
    advantage_scale: AdvantageScale = "group"
    """Standard deviation that centred rewards are divided by; `gdpo`: each signal by its group's, before the weighted
    sum, and the sum by the batch's, so that no signal drowns another."""
    old_logprobs: Literal["sampler", "recomputed"] = "sampler"
    """The ratio's denominator: what the sampler reported, or a second pass just before the update."""
    correction: Correction = "none"
    """With recomputed log-probs, how a token or a sequence is weighted for having been drawn by the sampler:
    `truncate` caps the weight, `mask` leaves out what lies outside floor and cap."""
    correction_cap: Cap = 2.0
    """Largest weight of the correction."""
    correction_floor: WeightFloor = 0.5
    """Least weight that a `mask` lets pass."""
    off_policy_delta: NonNegative = 0.0
    """A punished sequence is dropped if its tokens' log-probs fell by more than this in the mean since they were drawn;
    0: never."""
    mask_truncated: bool = True
    """Whether completions cut at max_new_tokens are left out of the loss. Signal `overlong` punishes them instead."""


@dataclass(frozen=True)
class OptimizerConfig:
    """How gradients become weights."""

    name: Literal["adam", "adamw"] = "adamw"
    """`adamw` applies the weight decay, `adam` has none."""
    learning_rate: Positive = 2e-6
    """Peak step size."""
    beta1: Decay = 0.9
    """Decay of the first moment."""
    beta2: Decay = 0.999
    """Decay of the second moment."""
    eps: Positive = 1e-8
    """Added to the root of the second moment."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay, times the learning rate at each update."""
    bias_correction: bool = True
    """Whether the moments are corrected for starting at 0."""
    precision: Literal["masters", "stochastic", "study"] = "masters"
    """`masters`: float32 copies take the updates; `stochastic`: bfloat16 weights rounded at random, half the memory;
    `study`: all in the weights' type, which loses small updates."""
    max_grad_norm: Positive = 1.0
    """Global gradient norm above which gradients are scaled down."""
    schedule: Schedule = "constant"
    """Course of the learning rate after the warm-up."""
    warmup_steps: Count = 0
    """Optimizer steps of linear rise to the learning rate."""
    between_stages: Literal["fresh", "kept"] = "fresh"
    """Whether a stage begins with new moments or with those that the stage before ended with."""


@dataclass(frozen=True)
class RunConfig:
    """Where the run is kept."""

    name: RunName = ""
    """Folder of the run below `dir`; empty: derived from model, strategy, rewards and time."""
    dir: Text = "runs"
    """Folder that holds all runs."""
    mirror: str = ""
    """URL of a folder, such as s3://BUCKET/FOLDER, where the run is kept too while it trains; empty: nowhere."""


@dataclass(frozen=True)
class ModelConfig:
    """The policy that is trained."""

    path: Text = "builtin:tiny"
    """A built-in model (`builtin:NAME`), a local directory or a hub id."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the weights that sample and compute; `auto` chooses by machine."""
    quantize: Bits = 0
    """Bits of the frozen weights under an adapter; 0 leaves them as they are."""
    adapter: Literal["none", "lora"] = "none"
    """`none` trains all weights, `lora` small matrices beside frozen ones; a setting of [lora] implies it."""


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (arXiv:2106.09685): what is trained where `model.adapter` is `lora`."""

    rank: Rank = 8
    """Rank of each adapter; at most the width of the layers that it adapts."""
    scale: Positive = 20.0
    """Factor of the adapter's output, as in mlx-lm; elsewhere it is alpha / rank."""
    layers: Count = 0
    """Layers adapted, counted from the last; 0: all."""
    keys: str = ""
    """Projections adapted in each layer, by comma (`self_attn.q_proj,self_attn.v_proj`); empty: all."""
    fuse: bool = False
    """Whether each checkpoint also has a folder `fused` with the whole model, the adapter merged into it."""


@dataclass(frozen=True)
class DataConfig:
    """Where prompts and references come from."""

    path: Text = "builtin:tldr-mini"
    """A built-in data set (`builtin:NAME`), a local directory with a file for each split, a hub id, or `generated`:
    made by the task."""
    prompt_column: Text = "prompt"
    """Column with what the policy is asked."""
    completion_column: Text = "completion"
    """Column with the reference."""
    train_split: Text = "train"
    """Split that rollouts are drawn from."""
    validation_split: Text = "validation"
    """Split that checkpoints are chosen on."""
    test_split: Text = "test"
    """Split that results are reported on."""
    max_input_tokens: PositiveCount = 512
    """Longest prompt in tokens, chat template included."""
    long_prompts: Literal["error", "drop"] = "error"
    """What to do with a longer prompt."""


@dataclass(frozen=True)
class TaskConfig:
    """What a completion has to be: the settings of every task. Each adds its own in a subclass (`Task.settings`)."""

    name: Text = "tldr"
    """What is trained, one of `smolsum.tasks.TASKS`."""
    system_prompt: str = ""
    """System message of every prompt."""

    @property
    def work(self) -> tuple[str, ...]:
        """Names of settings about how the work is done, such as deadlines: no measure depends on them."""
        return ()

    @property
    def measures(self) -> dict[str, Any]:
        """The settings that measures depend on."""
        return {key: value for key, value in asdict(self).items() if key not in self.work}


@dataclass(frozen=True)
class RewardsConfig:
    """How the signals are computed; their weights belong to the stages."""

    length_shape: Literal["linear", "clipped", "dead_band"] = "linear"
    """`linear` is -|n-target|/target; `clipped` stops at the floor; `dead_band` is 0 within the tolerance."""
    length_floor: Floor = -1.0
    """Lowest length reward of the shapes `clipped` and `dead_band`."""
    overlong_buffer: PositiveCount = 32
    """Last tokens before max_new_tokens over which the signal `overlong` falls from 0 to -1."""
    require_wordnet: bool = False
    """Whether METEOR without WordNet is an error; otherwise it matches words and stems, with a warning."""


@dataclass(frozen=True)
class SamplingConfig:
    """How rollouts are drawn."""

    rollouts: GroupSize = 8
    """Completions sampled for each prompt (G)."""
    temperature: Positive = 1.0
    """Sampling temperature; log-probs are taken at it too."""
    max_new_tokens: PositiveCount = 512
    """Longest completion in tokens."""


@dataclass(frozen=True)
class EngineConfig:
    """How an update goes through the model; none of it changes what is learnt."""

    shared_prefix: bool = True
    """Whether a prompt goes through the model once for all its completions, where the model allows it."""
    memory_budget_gb: NonNegative = 0.0
    """Memory that weights, optimizer and update may take together, in GB; 0: as much as is fastest."""


@dataclass(frozen=True)
class TrainConfig:
    """The loop around the update."""

    seed: Seed = 42
    """Seed of everything random in a run."""
    prompts_per_step: PositiveCount = 2
    """Prompts of one forward and backward pass (P)."""
    accumulation_steps: PositiveCount = 1
    """Passes that one optimizer step sums up."""
    refill_rounds: Count = 0
    """Times that a step samples further prompts to replace groups whose rewards are all the same."""
    validate_every: Count = 25
    """Optimizer steps between validations; 0: never."""
    validation_prompts: PositiveCount = 50
    """Prompts of the validation split used each time."""
    checkpoint_every: PositiveCount = 100
    """Optimizer steps between checkpoints."""
    keep_checkpoints: PositiveCount = 2
    """Latest checkpoints kept beside each stage's best and last one."""
    eval_batch: PositiveCount = 50
    """Prompts generated at once in validation and evaluation."""


@dataclass(frozen=True)
class WorkersConfig:
    """Machines that sample; without any the trainer does."""

    urls: str = ""
    """Workers by comma (`http://10.0.0.2:8100,http://10.0.0.3:8100`), as `smolsum serve-worker` prints them."""
    sync_every: PositiveCount = 1
    """Optimizer steps between two pushes of the weights."""
    max_staleness: Count = 1
    """Updates that the weights which sample may be behind those that learn; 0: nothing is sampled ahead."""
    anchor_every: PositiveCount = 50
    """Pushes of which one holds all weights; the others hold what changed."""
    timeout_s: Positive = 300.0
    """Seconds of silence after which a worker is given up, and its work goes to the others."""
    retries: Count = 4
    """Times that a rollout is asked for again after a failure."""
    wait_s: Positive = 600.0
    """Seconds to wait for a worker when none is left; then the run stops, saved."""


@dataclass(frozen=True)
class StageConfig:
    """One leg of a run. What a configuration leaves out is inherited from the sections above."""

    rewards: dict[str, float]
    """Weight of each signal in the total reward."""
    steps: Count
    """Optimizer steps; 0: derived from the epochs."""
    epochs: Positive
    """Passes over the training split, where steps is 0."""
    temperature: Positive
    """Sampling temperature of this stage."""
    learning_rate: Positive
    """Peak step size of this stage."""
    schedule: Schedule
    """Course of this stage's learning rate."""
    warmup_steps: Count
    """Optimizer steps of this stage's warm-up."""
    beta: NonNegative
    """KL weight of this stage."""
    mix: dict[str, float] = field(default_factory=dict)
    """Share of each kind of prompt, where the task has kinds; empty: prompts as they come."""


@dataclass(frozen=True)
class Config:
    """Everything that decides a run; equal configurations on equal data repeat it."""

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    grpo: GrpoConfig = field(default_factory=GrpoConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    workers: WorkersConfig = field(default_factory=WorkersConfig)
    stages: dict[str, StageConfig] = field(default_factory=dict)
    """The stages in the order in which they run, each starting from the one before."""


SECTIONS: dict[str, type[Any]] = {name: record for name, record in get_type_hints(Config).items() if name != "stages"}
STAGE_FIELDS: dict[str, Any] = get_type_hints(StageConfig, include_extras=True)


def to_toml(config: Config) -> str:
    """Returns the whole configuration as TOML; read back as a configuration file it repeats `config`."""
    import tomli_w

    return tomli_w.dumps(asdict(config))
