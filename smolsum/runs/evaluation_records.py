"""The files of an evaluation, one typed record for each, read and written by `typed_json`, like those of a run.

generations.jsonl   Generation      scores.jsonl   Score
judgements.jsonl    Judgement       summary.json   Summary
"""

# msgspec copies mutable defaults
# ruff: noqa: RUF012

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from smolsum.runs.records import SCHEMA_VERSION, Count, ModelInfo, Number, Record, RunSettings, SplitInfo

SUMMARY = "summary.json"
GENERATIONS = "generations.jsonl"
SCORES = "scores.jsonl"
BEHIND = "behind "
"""Before the address of an endpoint, where a summary has the fingerprint of a model's weights."""
Number01 = Annotated[float, Meta(ge=0, le=1)]


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


class MeasureInfo(Record, frozen=True):
    """A headline with its direction: the fields of a task's `Metric`."""

    name: str
    title: str
    form: Annotated[str, Meta(pattern=r"^\.\d[%fg]$")] = ".1%"
    better: Literal["higher", "lower", ""] = ""
    role: Literal["constraint", "quality", ""] = ""
    column: str = ""


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
    noise: dict[str, dict[str, Number | None]] = {}
    """how well the judge agrees with itself over the rounds of a metric: n, round_sd, icc and icc_mean"""
    second: dict[str, Any] | None = None
    """another judge, with its agreement with this one"""
    others: list[dict[str, Any]] = []
    """judges from the third on"""
    alpha: dict[str, Number | None] = {}
    """Krippendorff's of all judges, by metric, where there are more than two"""
    until: Number | None = None
    """half the width of the composite's interval at which no more of the `most_rounds` were added"""
    most_rounds: Count = 0
    weighted: bool = False
    """whether scores are weighted by the probabilities of their tokens"""
    corrected: list[dict[str, Any]] = []
    """the share that passes, corrected for the judge's errors as they were found in `source`"""


class Summary(Record, frozen=True):
    """summary.json of an evaluation."""

    schema_version: int = SCHEMA_VERSION
    n: Count = 0
    whole: Count | None = None
    """examples of the split, while only `n` of them are evaluated"""
    left_out: str = ""
    """which of the data were no prompts, and why"""
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
    measures: list[MeasureInfo] = []
    """the headlines of which some values are better; older runs lack them"""
    panels: list[HeadlineTable] = []
    watched: dict[str, list[str]] = {}
    errors: dict[str, str] = {}
    signals: dict[str, dict[str, str]] = {}
    """range and meaning of each reward signal, in words"""
    judge: str | None = None
    judging: Judging | None = None
    metrics: dict[str, Number | None] = {}

    @property
    def so_far(self) -> str:
        """On how many examples these metrics are while others of the split follow, as `32 of 200`; else empty. They do
        not compare with metrics of all."""
        return f"{self.n} of {self.whole}" if self.whole and self.n < self.whole else ""

    def __post_init__(self) -> None:
        if self.task is not None:
            msgspec.convert({f"task.{key}": value for key, value in self.task.items()}, RunSettings)
