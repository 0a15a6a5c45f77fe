"""The settings of a run: one frozen record for each section of a configuration file, in the order of the file.

The records hold meaning, type, range and default of every setting; `smolsum/config/resolve.py` fills them from presets,
files and flags. `docs/configuration.md` is made from the docstrings here and in
`stage.py` (`scripts/make_config_docs.py`).
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_type_hints

from smolsum.config import fields
from smolsum.config.stage import StageConfig


@dataclass(frozen=True)
class RunConfig:
    """Where the run is kept."""

    name: fields.RunName = ""
    """Folder of the run in `dir`; empty: made from model, strategy, rewards and time."""
    dir: fields.Text = "runs"
    """Folder of all runs."""
    mirror: str = ""
    """URL of a folder, such as s3://BUCKET/FOLDER, that gets a copy of the run while it trains; empty: no copy."""
    plugins: str = ""
    """Python files with rewards, tasks or criteria, separated by commas, relative to the configuration file. A run's
    own config.toml only records them: name them with --plugin to have them executed."""
    track: fields.Trackers = ""
    """Experiment trackers that show the run while it trains, separated by commas (`trackio`, `wandb`, `tensorboard`,
    `mlflow`); empty: none."""
    track_project: str = ""
    """Project, or MLflow's experiment, of the run in these trackers; empty: as their own environment variables say, or
    `smolsum`."""


@dataclass(frozen=True)
class ModelConfig:
    """The policy, which is the model that is trained."""

    path: fields.Text = "builtin:tiny"
    """Built-in model (`builtin:NAME`), local directory, GGUF file or hub id (`OWNER/NAME`, or `OWNER/NAME@REVISION` for
    a branch, tag or commit)."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the weights that sample and compute; `auto` depends on the machine."""
    quantize: fields.Bits = 0
    """Bits of the frozen weights under an adapter; 0: not quantised."""
    thinking: fields.Thinking = "template"
    """Whether a model that can think before it answers does so: `off` (Qwen3, SmolLM3), or as its chat `template` and
    mlx-lm have it, which is on. Thoughts are tokens of the completion."""
    chat_template: str = ""
    """File with a chat template (Jinja) that replaces the model's own; needed where it has none, as most base models;
    empty: the model's own."""
    adapter: Literal["none", "lora"] = "none"
    """`none` trains all weights, `lora` trains small matrices added to frozen weights; any setting of [lora] implies
    `lora`."""


@dataclass(frozen=True)
class DataConfig:
    """Where prompts and references come from."""

    path: fields.Text = "builtin:tldr-mini"
    """Built-in data set (`builtin:NAME`), local file, local directory with a file for each split, `generated` (made by
    the task), or hub id: `OWNER/NAME`, with `:CONFIGURATION` for one of several, and with `@REVISION` for a branch, tag
    or commit (`abisee/cnn_dailymail:3.0.0@main`)."""
    prompt_column: fields.Text = "prompt"
    """Column of the text, or of the chat, that the prompt is made of. Where no row has it, `messages` is taken."""
    completion_column: fields.Text = "completion"
    """Column of the reference, or references; several columns are separated by commas. A chat that ends with a turn of
    the assistant has its reference itself. Data without references serve where no reward compares with them."""
    train_split: fields.Text = "train"
    """Split that training prompts come from."""
    validation_split: fields.Text = "validation"
    """Split that checkpoints are chosen on."""
    test_split: fields.Text = "test"
    """Split that results are reported on."""
    validation_share: fields.Share = 0.1
    """Share of the training posts that become the validation split where the data have none of the name `validation`;
    0: the data must have it."""
    test_share: fields.Share = 0.1
    """Share of the training posts that become the test split where the data have none of the name `test`; 0: the data
    must have it."""
    train_rows: fields.Count = 0
    """Rows of the training split that are used, drawn by the seed; 0: all."""
    validation_rows: fields.Count = 0
    """Rows of the validation split that are used, drawn by the seed; 0: all."""
    test_rows: fields.Count = 0
    """Rows of the test split that are used, drawn by the seed; 0: all."""
    split_seed: fields.Seed = 0
    """Seed of shares and drawn rows. A post's lot depends on the seed and its text alone, not on the other rows."""
    empty_texts: Literal["error", "drop"] = "error"
    """What happens to a row whose post is empty, or which has no reference where others have one: the run stops, or the
    row is left out."""
    max_input_tokens: fields.PositiveCount = 512
    """Longest prompt in tokens, including the chat template."""
    long_prompts: Literal["error", "drop"] = "error"
    """What happens to a longer prompt: the run stops, or the prompt is left out."""


@dataclass(frozen=True)
class TaskConfig:
    """What a completion has to be. Each task adds its own settings in a subclass."""

    name: fields.Text = "tldr"
    """The task, one of `smolsum.tasks.TASKS`."""
    system_prompt: str = ""
    """System message of every prompt."""

    @property
    def work(self) -> tuple[str, ...]:
        """Names of settings about how the work is done, such as deadlines: no measure depends on them."""
        return ()

    @property
    def needed_tokens(self) -> int:
        """Tokens that a completion needs to do what is asked; 0 where the task has no length."""
        return 0

    @property
    def derived(self) -> dict[str, tuple[Any, ...]]:
        """Settings that follow from others where nothing gives them: the value of each, its source in words, and the
        settings that replace it where they are given."""
        return {}

    @property
    def measures(self) -> dict[str, Any]:
        """The settings that measures depend on."""
        return {key: value for key, value in asdict(self).items() if key not in self.work}


@dataclass(frozen=True)
class RewardsConfig:
    """How signals are computed. Their weights are settings of the stages."""

    length_shape: Literal["linear", "clipped", "dead_band", "exponential", "logarithmic"] = "linear"
    """Signal `length` of n tokens: `linear` is -|n - target| / target, `clipped` stops at length_floor, `dead_band` is
    like `clipped`, with the distance counted from the edge of the tolerance, `exponential` is
    exp(-|n - target| / (2 tolerance + 1)) - 1, steep near the target and flat far away, and `logarithmic` is
    -log(1 + |n - target| / (2 tolerance + 1)), as steep there and flat nowhere."""
    length_floor: fields.Floor = -1.0
    """Lowest value of the signal `length` for the shapes `clipped` and `dead_band`."""
    overlong_buffer: fields.PositiveCount = 32
    """Number of tokens before max_new_tokens over which the signal `overlong` falls from 0 to -1."""
    length_counts: Literal["sampled", "retokenized"] = "sampled"
    """Tokens that the signal `length` counts: those that were `sampled`, or those of the decoded text, `retokenized` as
    in the study's code. What an evaluation measures is always sampled."""
    bleu: Literal["smoothed", "study"] = "smoothed"
    """Signal `bleu`: `smoothed` as sacrebleu advises for single sentences, or as in the `study`'s code, 0 unless an
    n-gram of each order from 1 to 4 matches. An evaluation's BLEU is always smoothed."""
    require_wordnet: bool = False
    """Whether METEOR stops the run without WordNet; otherwise it matches words and stems only, with a warning."""
    on_error: Literal["stop", "missing"] = "stop"
    """What happens where a plugin's reward fails on a completion: the run stops, or the value is missing."""
    timeout_s: fields.Positive = 300.0
    """Seconds that the plugins' rewards of a step may take before they are stopped."""


@dataclass(frozen=True)
class SamplingConfig:
    """How rollouts are sampled."""

    rollouts: fields.GroupSize = 8
    """Completions of each prompt (the group size G)."""
    temperature: fields.Positive = 1.0
    """Sampling temperature, which log-probs are computed at too."""
    max_new_tokens: fields.PositiveCount = 512
    """Longest completion in tokens."""


@dataclass(frozen=True)
class GrpoConfig:
    """The objective: what is minimised."""

    loss: fields.LossKind = "grpo"
    """`grpo` clips a ratio for each token and averages over each sequence, `dapo` over all tokens, `dr_grpo` over
    max_new_tokens; `cispo` weights tokens by the ratio without clipping; `gspo` has one ratio for each sequence;
    `study` has one too, as in the study's code."""
    eps_low: fields.LowerClip = 0.2
    """The ratio is clipped below at 1 - eps_low; 3e-4 in GSPO's paper."""
    eps_high: fields.Positive = 0.2
    """The ratio is clipped above at 1 + eps_high; 0.28 in DAPO's paper, 4e-4 in GSPO's."""
    eps_max: fields.Cap = 5.0
    """Largest weight of a token in `cispo`, which uses neither eps_low nor eps_high."""
    beta: fields.NonNegative = 1e-4
    """Weight of the KL divergence to the frozen reference model; 0 keeps no reference."""
    reference: Literal["stage", "start"] = "stage"
    """The reference of the KL divergence: the model that the `stage` starts from, or that which the run's first stage
    starts from, `start` (with an adapter, the base model)."""
    kl: fields.KlEstimate = "k3"
    """Estimator of the KL divergence. `k1` has no gradient on average, unless kl_unbiased is set."""
    kl_unbiased: bool = False
    """Whether each token's KL is weighted by its ratio, which makes its gradient right for off-policy rollouts too."""
    advantage_scale: fields.AdvantageScale = "group"
    """Standard deviation that centred rewards are divided by: of the `group`, the `batch`, or `none`. `gdpo` divides
    each signal by its group's before the weighted sum, and the sum by the batch's, so that all signals count."""
    update_rollouts: fields.Count = 0
    """Rollouts of each group that the update learns from: some of the best and some of the worst, whose advantages vary
    the most (PODS, arXiv:2504.13818); 0: all. An update of fewer takes less time, sampling as long as before."""
    length_credit: fields.LengthCredit = "all"
    """Tokens that have the part of a completion's advantage that its length earned (such signals as `length` and
    `overlong`, and constraints on the length): `all`, or only the `ends`, at which it could have ended: its last token
    and those after the end of a sentence."""
    advantage_std: fields.AdvantageStd = "sample"
    """That deviation: of a `sample`, over n - 1, as in TRL, or of the `population`, over n, as in the study's code."""
    advantage_eps: fields.NonNegative = 1e-4
    """Number added to that deviation."""
    constraints: str = ""
    """What the rollouts of every stage have to obey while the reward is maximised, separated by semicolons:
    `length in 59..69: 0.99` (the share of rollouts in a range), `length within 1: 0.85` (or `within tolerance`: around
    the task's target), `meteor >= 0.3` (without a share: the mean), `meteor >= 0.95 start` (what the stage began with).
    `length` is in the unit of the target; other names are the task's signals and measures. Empty: none."""
    constraint_method: fields.ConstraintMethod = "lagrange"
    """How: `sum` adds each constraint's values to the reward, `gdpo` after dividing both by their group's deviation,
    `lagrange` with multipliers that rise while a constraint is violated, `pid` with multipliers under PID control,
    `gate` multiplies the reward by them."""
    constraint_weight: fields.NonNegative = 1.0
    """Weight of each constraint next to the reward; for `lagrange` and `pid`, the multiplier that a stage begins
    with."""
    constraint_rate: fields.Positive = 0.02
    """Change of a multiplier in a step, as a multiple of the violation: a share of 0.89 violates 0.99 by 0.1, a mean of
    0.02 violates 0.01 by once its bound, which is also the most that counts."""
    constraint_limit: fields.Positive = 5.0
    """Largest multiplier: a constraint that cannot be met would silence the reward."""
    reward_balance: Literal["none", "variance"] = "none"
    """Whether weights adapt: `variance` divides each by its signal's deviation within groups, in the running mean over
    the steps before, so that each signal has the part in the reward that its weight asks for."""
    balance_decay: fields.Decay = 0.9
    """Part of that running mean that stays from step to step."""
    old_logprobs: Literal["sampler", "recomputed"] = "sampler"
    """Log-probs in the ratio's denominator: those of the sampler, or those of a second pass just before the update."""
    correction: fields.Correction = "none"
    """With recomputed log-probs, importance weight of a token or sequence because the sampler's policy differs:
    `truncate` caps the weight, `mask` leaves out weights outside of correction_floor and correction_cap."""
    correction_cap: fields.Cap = 2.0
    """Largest weight of the correction."""
    correction_floor: fields.WeightFloor = 0.5
    """Smallest weight that `mask` keeps."""
    off_policy_delta: fields.NonNegative = 0.0
    """A sequence with negative advantage is dropped if its mean log-prob fell by more than this since it was sampled;
    0: never dropped."""
    mask_truncated: fields.Masking = "auto"
    """Whether the loss leaves out completions that reached max_new_tokens. DAPO (arXiv:2503.14476, section 3.4) leaves
    them out, since a reward of the whole text punishes a sound one that was cut. A signal of length or truncation does
    so on purpose, and would never be learnt: `auto` leaves them out only in stages without such a signal."""
    hindsight: fields.NonNegative = 0.0
    """Weight of what is learnt in hindsight: a text that ends after n tokens answers perfectly the prompt that asks for
    n (`task.targets`). 0: off."""
    hindsight_of: fields.Hindsight = "ends"
    """What is learnt in hindsight: where to end (of the `ends` of a completion's sentences, the nearest to the target
    is right, and one before it is too early), or all tokens of whole `texts` that obey the constraints which are not
    on the length. That needs `task.targets`."""
    countdown: fields.NonNegative = 0.0
    """Weight of what is learnt of counting: before each token of a completion, the lower half of the layers predicts
    how much of the asked length is left. 0: off."""
    train_eos: bool = True
    """Whether the end-of-sequence token is trained, which decides where a text ends; the study's code did not."""


@dataclass(frozen=True)
class OptimizerConfig:
    """How gradients become weights."""

    name: Literal["adam", "adamw"] = "adamw"
    """`adamw` applies weight decay, `adam` none."""
    learning_rate: fields.NonNegative = 0.0
    """Peak learning rate; 0: chosen for the number of parameters and the adapter (`--dry-run` says how)."""
    beta1: fields.Decay = 0.9
    """Decay rate of the first moment."""
    beta2: fields.Decay = 0.999
    """Decay rate of the second moment."""
    eps: fields.Positive = 1e-8
    """Number added to the square root of the second moment."""
    weight_decay: fields.NonNegative = 0.0
    """Decoupled weight decay, multiplied by the learning rate at each update."""
    bias_correction: bool = True
    """Whether the moments are corrected for their start at 0."""
    precision: Literal["masters", "stochastic", "study"] = "masters"
    """`masters`: float32 copies of the weights take the updates; `stochastic`: bfloat16 weights with stochastic
    rounding, half the memory; `study`: everything in the weights' type, which loses small updates."""
    matmul_precision: Literal["highest", "medium"] = "highest"
    """Products with float32 weights in an update: in float32 (`highest`), or with factors rounded to bfloat16
    (`medium`, on Linux CPUs that have such products). The names are those of torch.set_float32_matmul_precision."""
    max_grad_norm: fields.Positive = 1.0
    """Global gradient norm above which gradients are scaled down."""
    schedule: fields.Schedule = "constant"
    """Course of the learning rate after the warm-up."""
    warmup_steps: fields.Count = 0
    """Optimizer steps of linear rise to the learning rate."""
    between_stages: Literal["fresh", "kept"] = "fresh"
    """Whether a stage starts with new moments or keeps those of the stage before."""


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (arXiv:2106.09685), which are trained where `model.adapter` is `lora`."""

    rank: fields.Rank = 8
    """Rank of each adapter; at most the width of the adapted layers."""
    scale: fields.Positive = 20.0
    """Factor of the adapter's output, as in mlx-lm; other libraries set alpha / rank."""
    layers: fields.Count = 0
    """Number of adapted layers, counted from the last; 0: all."""
    keys: str = ""
    """Adapted projections of each layer, separated by commas (`self_attn.q_proj,self_attn.v_proj`); empty: all."""
    fuse: bool = False
    """Whether each checkpoint also has a folder `fused` with the whole model, the adapter merged into it."""


@dataclass(frozen=True)
class EngineConfig:
    """How an update is computed. These settings do not change what is learnt."""

    shared_prefix: bool = True
    """Whether a prompt is computed once for all its completions, where the model allows it."""
    memory_budget_gb: fields.NonNegative = 0.0
    """Memory of the whole process in GB, or on a GPU of its arrays; 0: what this machine has."""


@dataclass(frozen=True)
class TrainConfig:
    """The training loop."""

    seed: fields.Seed = 42
    """Seed of everything random in a run."""
    prompts_per_step: fields.PositiveCount = 2
    """Prompts of one forward and backward pass (P)."""
    accumulation_steps: fields.PositiveCount = 1
    """Passes whose gradients are summed for one optimizer step."""
    refill_rounds: fields.Count = 0
    """Times that a step samples more prompts to replace groups whose rewards are all equal."""
    skip_untaught: fields.Decay = 0.0
    """Probability of skipping a prompt whose last group taught nothing, since its rewards were all equal; the more
    such groups in a row, the higher (GRESO, arXiv:2506.02177). It acts from the second epoch on; 0: none is skipped."""
    guard: fields.Guard = "warn"
    """What happens where a reward is paid for with something that the task measures and the stage does not reward, such
    as wrong facts or repetition: a warning, or the run stops (`stop`), or it goes back to the last checkpoint before
    that and continues from there with half the learning rate (`rollback`); `off`: nothing is watched."""
    validate_every: fields.Count = 25
    """Optimizer steps between validations; 0: no validation."""
    validation_prompts: fields.PositiveCount = 50
    """Prompts of the validation split for each validation."""
    checkpoint_every: fields.PositiveCount = 100
    """Optimizer steps between checkpoints."""
    keep_checkpoints: fields.PositiveCount = 2
    """Latest checkpoints that are kept, besides the best and the last of each stage."""
    eval_batch: fields.PositiveCount = 64
    """Prompts generated at once in validation and evaluation."""
    start_prompts: fields.StartPrompts = "auto"
    """Prompts of the test split that the model is evaluated on before its first step, always the same; the others
    follow once it is trained. `auto`: all for a model below 20 million parameters, 16 for others."""
    fresh_evaluations: bool = False
    """Whether evaluations make every completion themselves, also where another evaluation in the folder of runs has
    those of the same model, prompts and settings."""


@dataclass(frozen=True)
class DifficultyConfig:
    """What makes a training prompt hard, for stages that mix prompts by it: the keys of `stages.NAME.mix` are then the
    names of the bands."""

    by: Literal["none", "length", "column", "scores", "reward"] = "none"
    """`length`: words of its post; `column`: a number in the data; `scores`: those of an evaluation of the training
    split; `reward`: what the model gets for it when a stage begins, measured then. `none`: stages mix by the task's own
    categories, if it has any."""
    column: str = ""
    """The column of the data, or the metric of the scores."""
    scores: str = ""
    """Folder of an evaluation, as `smolsum eval MODEL --split train` prints it, or its scores.jsonl."""
    samples: fields.PositiveCount = 2
    """Completions of each prompt over which a reward is measured."""
    harder: Literal["auto", "high", "low"] = "auto"
    """Which values are hard; `auto`: low scores and rewards, high lengths and columns."""
    bands: fields.Bands = "easy,medium,hard"
    """Names of the bands, from easy to hard, separated by commas. Each has the same number of prompts."""
    adapt: fields.Share = 0.0
    """Above 0 the mix follows what each band or category teaches, as measured in training: kinds whose completions
    differ in reward come more often. How fast: the weight of a step in the running measure, 0.2 for example."""


@dataclass(frozen=True)
class JudgeConfig:
    """The model that the signals `judge` and `preference` ask, at $SMOLSUM_JUDGE_URL (without it, $OPENAI_BASE_URL). An
    evaluation's judge is a flag, `--judge`."""

    model: str = ""
    """Name of the model at that endpoint."""
    criteria: str = ""
    """Those of the task's criteria that count, separated by commas; empty: all."""
    rubric: str = ""
    """What a good completion is, in your words, in place of the task's criteria."""
    concurrency: fields.PositiveCount = 20
    """Questions at a time."""
    deadline_s: fields.Positive = 60.0
    """Seconds that one answer may take."""
    attempts: fields.PositiveCount = 4
    """Times that a question is asked before its answer counts as missing."""
    wait_s: fields.Positive = 600.0
    """Seconds to wait for a judge that does not answer at all; then the run stops, saved."""
    max_calls: fields.Count = 0
    """Requests that one attempt at a run may pay for; 0: any number."""
    max_cost: fields.NonNegative = 0.0
    """US dollars that one command may pay for its questions, by the prices of OpenAI's models; 0: any number."""

    @property
    def measures(self) -> dict[str, Any]:
        """The settings that scores depend on."""
        return {"model": self.model, "criteria": self.criteria, "rubric": self.rubric}


@dataclass(frozen=True)
class WorkersConfig:
    """Machines that sample rollouts. Without workers the trainer samples."""

    urls: fields.WorkerUrls = ""
    """Workers, separated by commas (`http://10.0.0.2:8100,http://10.0.0.3:8100`), as `smolsum serve-worker` prints
    them."""
    sync_every: fields.PositiveCount = 1
    """Optimizer steps between two transfers of weights."""
    max_staleness: fields.Count = 1
    """Updates by which the sampling weights may be older than the trained weights; 0: nothing is sampled ahead."""
    anchor_every: fields.PositiveCount = 50
    """Send all weights once in this many transfers; the others send only what changed."""
    timeout_s: fields.Positive = 300.0
    """Seconds without an answer after which the work of a worker goes to the others."""
    retries: fields.Count = 4
    """Times that a failed rollout is requested again."""
    wait_s: fields.Positive = 600.0
    """Seconds to wait for a worker when none is left; then the run stops with a checkpoint."""


@dataclass(frozen=True)
class Config:
    """All settings of a run; equal settings on equal data repeat it."""

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
    difficulty: DifficultyConfig = field(default_factory=DifficultyConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    workers: WorkersConfig = field(default_factory=WorkersConfig)
    stages: dict[str, StageConfig] = field(default_factory=dict)
    """The stages in their order, each starting from the one before."""


SECTIONS: dict[str, type[Any]] = {name: record for name, record in get_type_hints(Config).items() if name != "stages"}
STAGE_FIELDS: dict[str, Any] = get_type_hints(StageConfig, include_extras=True)
