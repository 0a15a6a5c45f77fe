"""LIFEBench (Zhang et al., 2505.16234): each unit of its files is asked for in each length, under each control method.

    LD = (L - T) / T            for an answer of L words where T are asked for
    LS = 100 exp(5 LD)          for LD < 0
         100 exp(-2 LD)         otherwise
         100                    where "at most" asks and LD < 0, or "at least" asks and LD > 0

These, the words that count and the refusals that do not are those of the benchmark's program
(`evaluate_all_results.py`, `filters.py` and `cache.py`). The first public version of that program puts LD in percent
into the exponential, so that nearly every score is 0; its copy in eric-ai-lab/Length-Value-Model divides by 100, as
here. The paper itself was read only as others report it.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

from smolsum.config.sections import Config, TaskConfig
from smolsum.errors import UsageError, nearest
from smolsum.tasks.base import ErrorKind, Metric, MetricRow, MetricTable, Summary, mean
from smolsum.tasks.data import Example, Split, generated_split
from smolsum.tasks.suites.suite import NO_FILES, answer_of, no_files, read_rows, suite
from smolsum.types import Prompt, Rollout

FILES = "data.jsonl, or another file of LIFEBench's folder data/"
FIELDS = {"id": int, "task": str, "lang": str, "category": str}
TYPE, COUNT = "{word_count_type}", "{word_count}"
METHODS = {"equal to": "等于", "at most": "至多有", "at least": "至少有"}
"""how a prompt asks for a length, in English and in Chinese"""
LANGUAGES = ("en", "cn")
SHORTER, LONGER = 5.0, 2.0
"""k1 and k2 of the Length Score"""
HANZI, WORD = re.compile(r"[\u4e00-\u9fff]"), re.compile(r"\b[a-zA-Z0-9'-]+\b")


@dataclass(frozen=True)
class LifeBenchConfig(TaskConfig):
    """Which of the benchmark's prompts are asked."""

    lengths: str = "16,32,64,128,256,512,1024,2048,4096,8192"
    """Lengths in words that each unit is asked for, separated by commas. Those above `sampling.max_new_tokens` are left
    out, as the benchmark does."""
    methods: str = "equal to,at most,at least"
    """Control methods, separated by commas."""
    languages: str = "en,cn"
    """Languages of the units that are asked, separated by commas."""

    @property
    def work(self) -> tuple[str, ...]:
        """They decide the prompts, which have a fingerprint, and no measure."""
        return ("lengths", "methods", "languages")


def load(config: Config) -> Split:
    """Return the units of the file with every length and method. Raises UsageError for rows of another file."""
    settings = cast(LifeBenchConfig, config.task)
    methods = _chosen("methods", settings.methods, METHODS)
    languages = _chosen("languages", settings.languages, LANGUAGES)
    texts = [text.strip() for text in settings.lengths.split(",")]
    if wrong := [text for text in texts if not text.isascii() or not text.isdigit() or not int(text)]:
        raise UsageError(f"task.lengths has {wrong[0]!r}, not a whole number from 1", hint="--set task.lengths=64,128")
    longest = config.sampling.max_new_tokens
    lengths = [int(text) for text in dict.fromkeys(texts) if int(text) <= longest]
    beyond = [text for text in texts if int(text) > longest]
    if not lengths:
        raise UsageError(
            f"each of task.lengths is above sampling.max_new_tokens = {longest}",
            hint=f"--set sampling.max_new_tokens={2 * int(beyond[0])}",
        )
    if config.data.path == NO_FILES:
        raise no_files("lifebench", FILES)
    rows, origin = read_rows(config.data, "LIFEBench", FIELDS, FILES, lambda row: row["lang"] in languages)
    examples = []
    for where, row, _ in rows:
        if TYPE not in row["task"] or COUNT not in row["task"]:
            raise UsageError(f"{where}: the task has no {TYPE} and {COUNT}", hint=f"--suite-path PATH: {FILES}")
        for method, length in product(methods, lengths):
            words = METHODS[method] if row["lang"] == "cn" else method
            # the length as text, since a number would be a metric
            asked = {"method": method, "target": str(length), "lang": row["lang"], "category": row["category"]}
            source = row["task"].replace(TYPE, words).replace(COUNT, str(length))
            examples.append(Example(f"{row['id']} {method} {length}", source, (), {**asked, "unit": str(row["id"])}))
    if not examples:
        raise UsageError(f"no row has the lang {settings.languages}", hint="--set task.languages=en,cn")
    left_out = f"not asked for, as they are above sampling.max_new_tokens = {longest}: {', '.join(beyond)} words"
    return generated_split("test", examples, left_out if beyond else "", origin)


def _chosen(setting: str, text: str, known: Sequence[str] | dict[str, str]) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if wrong := [name for name in names if name not in known]:
        raise UsageError(f"task.{setting} has {wrong[0]!r}", hint=nearest(wrong[0], known))
    return names


def count_words(text: str) -> int:
    """Return the number of Chinese characters and of words in Latin letters, as `count_words` of the benchmark."""
    return len(HANZI.findall(text)) + len(WORD.findall(text))


def length_score(deviation: float, method: str) -> float:
    """Return the Length Score, 0 to 100, for a Length Deviation, which is 0.1 for a tenth too many."""
    if (method == "at most" and deviation < 0) or (method == "at least" and deviation > 0):
        return 100.0
    return 100 * math.exp(SHORTER * deviation if deviation < 0 else -LONGER * deviation)


def measure(prompt: Prompt, rollout: Rollout) -> dict[str, Any]:
    """Measure one answer: its words, `length_score` and `deviation` (|LD| in percent), both missing for a refusal,
    which is an answer of at most one word; and, which the benchmark does not have, whether it obeys."""
    words, asked = count_words(answer_of(rollout.text)), prompt.metadata
    method, target, answered = asked["method"], int(asked["target"]), words > 1
    off = (words - target) / target
    obeys = {"equal to": words == target, "at most": words <= target, "at least": words >= target}[method]
    return {
        "passed": float(obeys and answered),
        "length_score": length_score(off, method) if answered else None,
        "deviation": 100 * abs(off) if answered else None,
        "answered": float(answered),
        "words": words,
        "missed": "" if obeys else "short" if off < 0 else "long",
        **asked,
    }


def summarise(rows: Sequence[MetricRow]) -> Summary:
    """Return the scores and deviations of each method, each the mean of its lengths' means, as the benchmark has them;
    the mean of the methods; and by length and by language the mean of all answers."""
    summary: Summary = {}
    for name in ("length_score", "deviation"):
        for method in METHODS:
            own = [row for row in rows if row["method"] == method]
            summary[f"{method}/{name}"] = _mean_of([mean(part, name) for part in _parts(own, "target")])
        summary[name] = _mean_of([summary[f"{method}/{name}"] for method in METHODS])
    for column in ("target", "lang"):
        for part in _parts(rows, column):
            summary[f"{part[0][column]}/length_score"] = mean(part, "length_score")
    if others := [row for row in rows if int(row["target"]) not in LENGTHS]:
        summary["other/length_score"] = mean(others, "length_score")
    return summary | {name: mean(rows, name) for name in ("passed", "answered")}


def _parts(rows: Sequence[MetricRow], column: str) -> list[list[MetricRow]]:
    """Return the rows by their values in a column."""
    return [[row for row in rows if row[column] == value] for value in dict.fromkeys(row[column] for row in rows)]


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _of_methods(name: str, form: str) -> tuple[Metric, ...]:
    return tuple(Metric(f"{method}/{name}", method, form) for method in METHODS)


HEADLINES = (
    Metric("length_score", "length score", ".1f", better="higher", role="quality"),
    Metric("deviation", "length deviation (%)", ".1f", better="lower"),
    Metric("passed", "obeys", better="higher", role="constraint", meaning="answers that have the length asked for"),
    Metric("answered", "answered", better="higher"),
)
LENGTHS = tuple(2**power for power in range(4, 14))
"""those of the benchmark, which have columns of their own"""
LENGTH_SCORES = (
    *(Metric(f"{length}/length_score", str(length), ".1f") for length in LENGTHS),
    Metric("other/length_score", "others", ".1f"),
)
TASK = suite(
    "lifebench",
    load=load,
    measure=measure,
    summarise=summarise,
    settings=LifeBenchConfig,
    headlines=HEADLINES,
    tables=(
        MetricTable("all answers", HEADLINES),
        MetricTable("Length Score by control method", _of_methods("length_score", ".1f")),
        MetricTable("Length Deviation by control method, %", _of_methods("deviation", ".1f")),
        MetricTable("Length Score by length in words", LENGTH_SCORES),
        MetricTable("Length Score by language", tuple(Metric(f"{n}/length_score", n, ".1f") for n in LANGUAGES)),
    ),
    errors=(
        ErrorKind("no answer", "at most one word, which is in no score", lambda row: not row["answered"]),
        ErrorKind("too short", "fewer words than asked for", lambda row: row["missed"] == "short"),
        ErrorKind("too long", "more words than asked for", lambda row: row["missed"] == "long"),
    ),
    score="length_score",
    max_new_tokens=1024,
    data={},
)
