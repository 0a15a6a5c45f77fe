"""The files of a run and of an evaluation, one typed record for each.

    run.json                 RunInfo           eval/<name>/generations.jsonl   Generation
    status.json              Status            eval/<name>/judgements.jsonl    Judgement
    events.jsonl             Event             eval/<name>/scores.jsonl        Score
    checkpoints/*/meta.json  CheckpointMeta    eval/<name>/summary.json        Summary
    completions/*.jsonl      SampledRollout    config.toml                     RunSettings (what readers of runs use)
    metrics.jsonl            StepRow (its other keys are metrics, with a number or null)

Two ways to read: `read`, `read_lines` and `parse` are strict, and a damaged file is one SmolsumError with file, line
and field; `salvage` is for views of a run that may be half written: a field that is wrong is as if it were missing.
Keys that a record does not know are accepted. `encode` checks a row against its record before it is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec
import tomli
from msgspec import Meta, Struct

from smolsum.errors import SmolsumError
from smolsum.files import end_of_lines, to_json

SCHEMA_VERSION = 1
SUMMARY = "summary.json"
SCORES = "scores.jsonl"
BEHIND = "behind "
"""Before the address of an endpoint, where a summary has the fingerprint of a model's weights."""

LARGEST = 1e300
"""Beyond it a sum of some values has no float."""
Count = Annotated[int, Meta(ge=0, lt=2**53)]
"""A whole number that a float can hold."""
Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
"""A finite number; whole numbers are accepted, true and false are not."""
Number01 = Annotated[float, Meta(ge=0, le=1)]
State = Literal["starting", "running", "pausing", "paused", "finished", "failed", "interrupted"]


class Record(Struct, frozen=True, omit_defaults=True):
    """A JSON object of a file; fields that older runs lack have defaults."""


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
    headlines: dict[str, str] = {}
    """titles of the metrics that people look at first"""
    corpus: Corpus | None = None
    meteor: str | None = None
    """where METEOR's synonyms come from"""
    settings: dict[str, Any] = {}
    """by dotted key, in JSON"""
    blas: str | None = None
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


class StepRow(Record, frozen=True):
    """The fixed keys of a line of metrics.jsonl; all others are numbers by metric name, null if not finite."""

    step: Count
    stage: str = ""


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
    """the stage's fingerprint, in the checkpoint of its last step"""
    files: dict[str, FileInfo] = {}
    """by path inside the checkpoint"""


class Message(Record, frozen=True):
    """A chat message."""

    content: str
    role: str = ""


class SampledRollout(Record, frozen=True):
    """A line of completions/step-000400.jsonl: a rollout of training, with its rewards."""

    prompt_id: str = ""
    sample: Count = 0
    text: str = ""
    token_ids: list[Count] = []
    """with the end token where it was sampled"""
    finish_reason: str = ""
    rewards: dict[str, Number | None] = {}
    reward: Number | None = None
    advantage: Number | None = None
    worker: str = ""
    policy_version: Count | None = None
    seed: int | None = None
    messages: list[Message] = []
    """empty in runs that did not keep the prompt"""
    references: list[str] = []


class Generation(Record, frozen=True, kw_only=True):
    """A line of generations.jsonl: a completion of an evaluation. Log-probs are not kept."""

    id: str
    sample: int = 0
    """left out for the first sample of an example"""
    text: str
    token_ids: list[Count]
    finish_reason: Literal["stop", "length"]
    seed: int
    worker: str
    policy_version: int


class Judgement(Struct, frozen=True):
    """A line of judgements.jsonl: a score in [0, 1] with the judge's reason, or None with the error."""

    id: str
    round: int
    metric: str
    judge: str
    key: str
    """fingerprint of judge, prompt, texts and round"""
    score: Number01 | None
    reason: str = ""
    error: str = ""
    attempts: int = 0
    """requests, whose tokens all count; 0 for a score from the cache"""
    seconds: float = 0.0
    """of all attempts, with the waits between them"""
    input_tokens: int = 0
    output_tokens: int = 0
    endpoint: str = ""
    """URL of the judge, without credentials"""


class Score(Record, frozen=True):
    """A line of scores.jsonl: an example and its metrics."""

    id: str | int
    split: str | None = None
    data: str | None = None
    """fingerprint of the split's content"""
    text: str | None = None
    judge: str | None = None
    task: str | None = None
    rounds: dict[str, list[Number | None]] = {}
    """values of each round of the judge, by criterion"""
    metrics: dict[str, Any] = {}
    """all other keys, of which a metric has a number, or null for a missing value"""


SCORE_KEYS = frozenset(Score.__struct_fields__) - {"metrics"}


class HeadlineText(Record, frozen=True):
    """A metric as the task shows it."""

    metric: str
    title: str
    text: str


class HeadlineTable(Record, frozen=True):
    """Metrics that belong together."""

    title: str
    headlines: list[HeadlineText]


class SignalInfo(Record, frozen=True):
    """A reward signal in words."""

    range: str = ""
    meaning: str = ""


class Noise(Record, frozen=True):
    """How well a judge agrees with itself, over the rounds of a metric."""

    n: Number | None = None
    round_sd: Number | None = None
    icc: Number | None = None
    icc_mean: Number | None = None


class Judging(Record, frozen=True):
    """Who judged an evaluation, and what it cost."""

    model: str = ""
    endpoint: str | None = None
    rounds: Count = 0
    prompts: dict[str, str] = {}
    """fingerprints by criterion"""
    thresholds: dict[str, Number] = {}
    usage: dict[str, Number | None] = {}
    missing: list[Any] | None = None
    noise: dict[str, Noise] = {}
    second: dict[str, Any] | None = None


class Summary(Record, frozen=True):
    """summary.json of an evaluation."""

    schema_version: int = SCHEMA_VERSION
    n: Count = 0
    label: str | None = None
    step: Count | None = None
    """of the run; None outside of runs"""
    split: str | None = None
    sampler: str | None = None
    weights: str | None = None
    """fingerprint of the model and its training"""
    command: str = ""
    model: ModelInfo = ModelInfo()
    tokenizer: str = ""
    data: dict[str, SplitInfo] = {}
    meteor: str | None = None
    task: dict[str, Any] | None = None
    """the settings that the measures depend on, by key"""
    max_new_tokens: Count | None = None
    score: str | None = None
    prompting: list[str] | None = None
    """settings of the task that change the prompt alone"""
    criteria: list[str] | None = None
    headlines: list[HeadlineText] = []
    panels: list[HeadlineTable] = []
    watched: dict[str, list[str]] = {}
    errors: dict[str, str] = {}
    signals: dict[str, SignalInfo] = {}
    judge: str | None = None
    judging: Judging | None = None
    metrics: dict[str, Number | None] = {}

    def __post_init__(self) -> None:
        if self.task is not None:
            msgspec.convert(self.task, TaskSettings)


class TaskSettings(Record, frozen=True):
    """[task] of config.toml."""

    name: str = ""
    target_tokens: Count | None = None
    tolerance_tokens: Count | None = None


class ModelSettings(Record, frozen=True):
    """[model] of config.toml."""

    path: str = ""


class DataSettings(Record, frozen=True):
    """[data] of config.toml."""

    path: str = ""


class TrainSettings(Record, frozen=True):
    """[train] of config.toml."""

    seed: Count | None = None


class SamplingSettings(Record, frozen=True):
    """[sampling] of config.toml."""

    max_new_tokens: Count | None = None


class OptimizerSettings(Record, frozen=True):
    """[optimizer] of config.toml."""

    max_grad_norm: Number | None = None


class WorkerSettings(Record, frozen=True):
    """[workers] of config.toml."""

    max_staleness: Count | None = None


class GrpoSettings(Record, frozen=True):
    """[grpo] of config.toml."""

    old_logprobs: str = ""


class StageSettings(Record, frozen=True):
    """[stages.<name>] of config.toml."""

    rewards: dict[str, Number] = {}
    mix: dict[str, Number] = {}


class RunSettings(Record, frozen=True):
    """config.toml, as far as readers of runs use it."""

    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    task: TaskSettings = TaskSettings()
    train: TrainSettings = TrainSettings()
    sampling: SamplingSettings = SamplingSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    workers: WorkerSettings = WorkerSettings()
    grpo: GrpoSettings = GrpoSettings()
    stages: dict[str, StageSettings] = {}


R = TypeVar("R", bound=Struct)


def read(path: Path, kind: type[R], *, needs: Sequence[str] = (), hint: str = "") -> R:
    """Returns a JSON or TOML file as a record. SmolsumError for a file that cannot be read, or lacks a key of `needs`;
    `hint` says what helps."""
    return parse(read_object(path, hint=hint), kind, str(path), needs=needs, hint=hint)


def read_object(path: Path, *, hint: str = "") -> dict[str, Any]:
    """Returns the keys of a JSON or TOML file as they are. SmolsumError for a file that holds nothing of the kind."""
    try:
        content = path.read_bytes()
        value = tomli.loads(content.decode()) if path.suffix == ".toml" else json.loads(content)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror or error}"
        raise SmolsumError(message, hint=hint or "check that it is a file and that you may read it") from error
    except (ValueError, RecursionError) as error:
        raise _damaged(str(path), str(error), hint) from error
    if not isinstance(value, dict):
        raise _damaged(str(path), "it is not a JSON object", hint)
    return value


def read_lines(path: Path, kind: type[R], *, hint: str = "") -> list[R]:
    """Returns the whole lines of a JSON Lines file that may still be growing; none if it does not exist yet.
    SmolsumError, with the line, for a file that is damaged."""
    return [parse(row, kind, f"{path}:{number}", hint=hint) for number, row in numbered_lines(path, hint=hint)]


def numbered_lines(path: Path, *, growing: bool = True, hint: str = "") -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the objects of a JSON Lines file, each with its line number; none if it does not exist yet.

    In a `growing` file a last line without its line end is not there yet; otherwise it counts, and empty lines are
    passed over. SmolsumError, with the line, for one that is not an object.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        message = f"cannot read {path}: {error.strerror or error}"
        raise SmolsumError(message, hint="check that it is a file and that you may read it") from error
    lines = content[: end_of_lines(content)].split(b"\n")[:-1] if growing else content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not growing and not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise _damaged(f"{path}:{number}", "it is not a JSON object", hint or "restore it, or remove that line")
        yield number, row


def parse(value: Mapping[str, Any], kind: type[R], where: str, *, needs: Sequence[str] = (), hint: str = "") -> R:
    """Returns an object of a file as a record; `where` is the file, with the line if it has several. SmolsumError, with
    the field, for one that is damaged or lacks a key of `needs`."""
    if lacking := [key for key in needs if key not in value]:
        raise _damaged(where, f"it has no {lacking[0]}", hint)
    try:
        return msgspec.convert(_gathered(value, kind), kind)
    except (msgspec.ValidationError, RecursionError) as error:
        problems: list[str] = []
        salvage(value, kind, problems)
        raise _damaged(where, problems[0] if problems else str(error), hint) from error


def salvage(value: object, kind: type[R], problems: list[str] | None = None) -> R | None:
    """Returns what is right of an object, with defaults for the rest, as a record: a part that is wrong is left out,
    which `problems` gets a line about. None where a field without a default is missing or wrong."""
    found = _right(_gathered(value, kind), kind, "", [] if problems is None else problems)
    return None if found is _WRONG else cast(R, found)


def checked(kind: type[Struct], row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the row; TypeError unless it can be read again as `kind`."""
    try:
        msgspec.convert(_gathered(row, kind), kind)
    except msgspec.ValidationError as error:
        raise TypeError(f"not a {kind.__name__}: {error}") from error
    return row


def encode(kind: type[Struct], row: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """Returns a row of `kind` as JSON in UTF-8 with a line end, its keys in their order. TypeError for a row that could
    not be read again, ValueError for NaN and infinities."""
    return to_json(checked(kind, row), indent=indent)


def to_row(record: Struct) -> dict[str, Any]:
    """Returns a record as the keys and values of its line."""
    return cast(dict[str, Any], msgspec.to_builtins(record))


def has_scores(folder: Path) -> bool:
    """Whether the folder holds a finished evaluation."""
    return (folder / SUMMARY).exists()


def read_summary(folder: Path, needs: Sequence[str] = ()) -> Summary:
    """Returns the summary of an evaluation; errors as of `read`."""
    path = folder / SUMMARY
    return read(path, Summary, needs=needs, hint=f"remove {path} and evaluate again")


def _damaged(where: str, problem: str, hint: str) -> SmolsumError:
    return SmolsumError(f"{where} is damaged: {problem}", hint=hint or "restore it from a copy")


def _gathered(value: Any, kind: type[Struct]) -> Any:
    """The object of a line of scores with its free keys together, under `metrics`; any other as it is. A number is a
    metric, whatever its name: files of users may have a `judge` or a `task` that is one."""
    if kind is not Score or not isinstance(value, Mapping):
        return value
    fixed = {k: v for k, v in value.items() if k in SCORE_KEYS and (k == "id" or not isinstance(v, int | float))}
    return {**fixed, "metrics": {key: free for key, free in value.items() if key not in fixed}}


_WRONG = object()


def _right(value: Any, kind: Any, where: str, problems: list[str]) -> Any:
    """What is right of a value, as `kind`; `_WRONG` if that is nothing."""
    try:
        return msgspec.convert(value, kind)
    except RecursionError:
        problems.append(f"{where} is nested too deeply")
        return _WRONG
    except msgspec.ValidationError as error:
        reason = str(error)
    known = len(problems)
    if get_origin(kind) in (Union, UnionType):
        options = [option for option in get_args(kind) if option is not type(None)]
        kind = options[0] if len(options) == 1 else kind
    if isinstance(kind, type) and issubclass(kind, Struct) and isinstance(value, Mapping):
        found, complete = dict[str, Any](), True
        for one in msgspec.structs.fields(kind):
            part = _WRONG
            if one.encode_name in value:
                part = _right(value[one.encode_name], one.type, _join(where, one.encode_name), problems)
            elif one.required:
                problems.append(f"{where or 'it'} has no {one.encode_name}")
            if part is not _WRONG:
                found[one.name] = part
            complete &= part is not _WRONG or not one.required
        if complete and len(problems) > known:
            try:
                return kind(**found)
            except (TypeError, ValueError) as error:
                reason = str(error)
        elif not complete:
            return _WRONG
    elif get_origin(kind) is dict and isinstance(value, Mapping):
        parts = {k: _right(part, get_args(kind)[1], _join(where, k), problems) for k, part in value.items()}
        return {k: part for k, part in parts.items() if part is not _WRONG}
    elif get_origin(kind) is list and isinstance(value, list):
        items = [_right(item, get_args(kind)[0], f"{where}[{place}]", problems) for place, item in enumerate(value)]
        return [item for item in items if item is not _WRONG]
    problems.append(f"{where or 'it'} is {str(value)[:40]!r}: {reason[:1].lower()}{reason[1:]}".replace("`", ""))
    return _WRONG


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
