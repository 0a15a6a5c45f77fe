"""The files of a run, one typed record for each; `evaluation_records` has those of its evaluations.

    run.json                 RunInfo           completions/*.jsonl   SampledRollout
    status.json              Status            config.toml           RunSettings (what readers of runs use)
    events.jsonl             Event             trackers/<name>.json  TrackedRun
    checkpoints/*/meta.json  CheckpointMeta    ../.grid.json         GridRecord
    metrics.jsonl            StepRow (its other keys are metrics, with a number or null)
    digests.jsonl            DigestLine

Unknown keys are accepted; fields that older runs lack have defaults. `typed_json` reads and writes them.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from smolsum.config.targets import TOKENS
from smolsum.files import digest

SCHEMA_VERSION = 1
LARGEST = 1e300
"""Beyond it a sum of some values has no float."""
Count = Annotated[int, Meta(ge=0, lt=2**53)]
"""A whole number that a float can hold."""
Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
"""A finite number; whole numbers are accepted, true and false are not."""
NOTES = (
    "started", "stage", "checkpoint", "evaluated", "finished", "stage_reused", "paused", "resumed", "worker_up",
    "workers_back", "worker_resynced", "kept_completions", "mirror", "mirror_back", "tracker", "tracker_back",
    "reader_back", "grader_back", "reward-judge_back", "memory", "difficulty", "rolled_back",
)  # fmt: skip
"""Kinds of events that are no warnings."""
GRID = ".grid.json"
"""the file of a `GridRecord`, in a directory of runs"""
State = Literal["starting", "running", "pausing", "paused", "finished", "failed", "interrupted"]
RunOfGridState = Literal["to train", "loading", "training", "done", "failed"]


class Record(Struct, frozen=True, omit_defaults=True):
    """A JSON object in a file of a run."""


class ModelInfo(Record, frozen=True):
    """A model and the fingerprint of its weights (or `BEHIND` and an address)."""

    path: str = ""
    weights: str = ""
    dtype: str = ""
    quantize: int = 0


class SplitInfo(Record, frozen=True):
    """Fingerprints of a split: of its content, and of the prompts made from it."""

    split: str = ""
    fingerprint: str = ""
    prompts: str = ""


class Lengths(Record, frozen=True):
    """Lengths of texts in tokens."""

    mean: Number
    std: Number
    min: Number
    p50: Number
    p90: Number
    p95: Number
    p99: Number
    max: Number


class CorpusSplit(Record, frozen=True):
    """The size of a split, and the lengths of its texts in tokens."""

    examples: Number
    posts: Lengths | None = None
    references: Lengths | None = None


class Corpus(Record, frozen=True):
    """The sizes of the three splits."""

    train: CorpusSplit
    validation: CorpusSplit
    test: CorpusSplit


class ChunkingInfo(Record, frozen=True):
    """How much of an update is computed at once (`smolsum.policy.group_gradient.Chunking`)."""

    rows: Count | None = None
    logits: Count | None = None
    checkpointing: bool = False
    shared_prefix: bool = True
    bfloat16: bool = False


class MemoryInfo(Record, frozen=True):
    """The memory that a run was planned with, in GB."""

    chunking: ChunkingInfo = ChunkingInfo()
    estimate_gb: Number = 0.0
    """expected peak of the process, or of the arrays on a GPU"""
    whole_gb: Number = 0.0
    """the same without chunks"""
    limit_gb: Number = 0.0
    source: str = ""
    """of the limit, in words"""
    prompt_tokens: Count = 0
    """of the longest prompt"""
    new_tokens: Count = 0


class PluginInfo(Record, frozen=True):
    """A file of users' code that a run executes; `plugins/` in the run has a copy."""

    path: str = ""
    """and `:FUNCTION` where one was chosen"""
    version: str = ""
    sha256: str = ""
    modules: dict[str, str] = {}
    """digests of the files of its folder that it imports, by relative path"""
    rewards: list[str] = []
    """the signals that it adds"""
    tasks: list[str] = []

    @property
    def digest(self) -> str:
        """The digest of the file and of the modules next to it, that of the file without any."""
        return digest([self.sha256, self.modules]) if self.modules else self.sha256


class RunInfo(Record, frozen=True):
    """run.json: what the run was made from."""

    schema_version: int = SCHEMA_VERSION
    argv: list[str] = []
    created: str = ""
    """ISO 8601"""
    steps: dict[str, Count] = {}
    """planned optimizer steps by stage, in order"""
    fingerprints: dict[str, str] = {}
    """by stage, over everything that decides its result"""
    model: ModelInfo = ModelInfo()
    tokenizer: str = ""
    """fingerprint"""
    data: dict[str, SplitInfo] = {}
    """by split"""
    revisions: dict[str, str] = {}
    """the commits of model and data set, where they are from the hub, by their names in the settings"""
    headlines: dict[str, str] = {}
    """titles of the metrics that people look at first"""
    corpus: Corpus | None = None
    meteor: str | None = None
    """where METEOR's synonyms come from"""
    settings: dict[str, Any] = {}
    """by dotted key, in JSON"""
    plugins: list[PluginInfo] = []
    memory: MemoryInfo | None = None
    blas: str | None = None
    native: bool | None = None
    """whether smolsum's own library in C sampled and computed gradients"""
    versions: dict[str, str] = {}
    machine: dict[str, str] = {}


class Status(Record, frozen=True):
    """status.json: what the run is doing now."""

    schema_version: int = SCHEMA_VERSION
    state: str = ""
    """a `State`; empty where it is not known"""
    step: Count = 0
    phase: str = ""
    stage: str = ""
    attempt: Count = 0
    pid: int | None = None
    host: str = ""
    steps: Count = 0
    """planned steps of the run; 0 where they are not known"""
    completions: Count = 0
    """needed by the evaluation, the validation or the step under way; 0 where none are being sampled"""
    done: Count = 0
    """those of them that are there"""
    tok_s: Number | None = None
    """tokens that are sampled a second"""
    left_s: Number | None = None
    """seconds until they are all there"""
    error: str = ""
    hint: str | None = None
    heartbeat: str = ""
    """ISO 8601, UTC"""


class Event(Record, frozen=True):
    """A line of events.jsonl."""

    time: str = ""
    """ISO 8601, UTC"""
    attempt: Count = 0
    kind: str = ""
    message: str = ""
    step: Count | None = None
    hint: str | None = None
    worker: str | None = None
    keys: list[str] = []
    """metrics that were not finite"""
    seconds: Number | None = None
    """what an evaluation took"""
    share: Number | None = None
    """the part of the split for which it took them"""
    stage: str | None = None
    origin: str | None = None
    """the run that the stage was taken from"""


class StepRow(Record, frozen=True):
    """The fixed keys of a line of metrics.jsonl; all others are numbers by metric name, null if not finite."""

    step: Count
    stage: str = ""


class DigestLine(Record, frozen=True):
    """A line of digests.jsonl (`runs/digests.py`)."""

    of: str
    sha256: str
    chain: str


class FileInfo(Record, frozen=True):
    """A file of a checkpoint."""

    size: Count
    xxh3_128: str


class CheckpointMeta(Record, frozen=True):
    """meta.json of a checkpoint, whose `checksum` was compared before."""

    schema_version: int
    step: Count
    stage: str = ""
    stage_step: Count = 0
    validation: dict[str, int | float] = {}
    """of this step: `reward`, and the task's `score`"""
    best: dict[str, int | float] = {}
    """the stage's best validation so far, with its `step`"""
    model: str = ""
    stage_end: str | None = None
    """what identifies the stage's end and the code that trained it, in the checkpoint of its last step"""
    files: dict[str, FileInfo] = {}
    """by path inside the checkpoint"""


class Message(Record, frozen=True):
    """A chat message."""

    content: str
    role: str = ""


class SampledRollout(Record, frozen=True):
    """A line of completions/step-000400.jsonl: a rollout of training, with its rewards."""

    prompt_id: str = ""
    number: Count = field(name="sample", default=0)
    text: str = ""
    token_ids: list[Count] = []
    """with the end token where it was sampled"""
    finish_reason: str = ""
    target: Count | None = None
    """what the prompt asks for, where each asks for its own length"""
    rewards: dict[str, Number | None] = {}
    reward: Number | None = None
    advantage: Number | None = None
    extra: dict[str, str | int | float | bool | None] = {}
    """columns that users' rewards logged with `log_extra`"""
    worker: str = ""
    version: Count | None = field(name="policy_version", default=None)
    seed: int | None = None
    logprobs: list[Number | None] = []
    """the sampler's, of each token, where a worker sampled"""
    messages: list[Message] = []
    """those of the first rollout of a prompt"""
    references: list[str] = []

    @property
    def truncated(self) -> bool:
        """Whether the token limit, not the policy, ended the text."""
        return self.finish_reason != "stop"

    @property
    def tokens(self) -> int:
        """Sampled tokens without the end token."""
        return max(len(self.token_ids) - (not self.truncated), 0)


class RunOfGrid(Record, frozen=True):
    """A run of a grid. Times are ISO 8601 in UTC, empty before."""

    name: str = ""
    model: str = ""
    state: RunOfGridState = "to train"
    steps: Count | None = None
    """optimizer steps that the grid has to train for it; None where they depend on data that are not here"""
    began: str = ""
    ended: str = ""
    error: str = ""


class GridRecord(Record, frozen=True):
    """.grid.json: what the grid under way, or the last one, is doing."""

    schema_version: int = SCHEMA_VERSION
    pid: int | None = None
    host: str = ""
    command: str = ""
    """continues the grid"""
    state: Literal["training", "ended"] = "ended"
    runs: list[RunOfGrid] = []


class TrackedRun(Record, frozen=True):
    """trackers/<name>.json: the run in an experiment tracker, and how much of it was sent there."""

    schema_version: int = SCHEMA_VERSION
    id: str = ""
    """made for this run and this tracker"""
    project: str = ""
    """where the user chose one"""
    url: str = ""
    """where to look at it; empty before the tracker was reached"""
    open: bool = False
    """whether a process sends, or was killed while it did"""
    step: Count = 0
    """the last step that was sent"""
    events: Count = 0
    """lines of events.jsonl that were sent or passed over"""
    evaluations: dict[str, str] = {}
    """fingerprint of each evaluation that was sent, by its folder"""
    problem: str = ""
    """why the newest could not be sent; empty where it could"""


class StageSettings(Record, frozen=True):
    """[stages.<name>] of config.toml."""

    rewards: dict[str, Number] = {}
    rewards_end: dict[str, Number] = {}
    mix: dict[str, Number] = {}
    constraints: str = ""


class RunSettings(Record, frozen=True):
    """config.toml, as far as readers of runs use it: settings by dotted key, and the stages."""

    model: str = field(name="model.path", default="")
    data: str = field(name="data.path", default="")
    task: str = field(name="task.name", default="")
    target_tokens: Count | None = field(name="task.target_tokens", default=None)
    tolerance_tokens: Count | None = field(name="task.tolerance_tokens", default=None)
    tolerance_share: Number = field(name="task.tolerance_share", default=0.0)
    targets: str = field(name="task.targets", default="")
    """those of the prompts, where each asks for its own length"""
    unit: str = field(name="task.unit", default=TOKENS)
    """what targets count"""
    seed: Count | None = field(name="train.seed", default=None)
    validate_every: Count | None = field(name="train.validate_every", default=None)
    max_new_tokens: Count | None = field(name="sampling.max_new_tokens", default=None)
    max_grad_norm: Number | None = field(name="optimizer.max_grad_norm", default=None)
    max_staleness: Count | None = field(name="workers.max_staleness", default=None)
    old_logprobs: str = field(name="grpo.old_logprobs", default="")
    stages: dict[str, StageSettings] = {}
