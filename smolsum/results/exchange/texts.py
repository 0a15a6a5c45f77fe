"""The texts of an evaluation: what was asked, the references, the answers, and the judge's reasons. They are the user's
data, and leave the machine only where the user says so."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_fields

from smolsum.config.resolve import resolve
from smolsum.config.sections import Config
from smolsum.config.targets import TARGET
from smolsum.errors import SmolsumError
from smolsum.results.evaluate.judgements import JUDGEMENTS
from smolsum.results.evaluate.storage import read_generations
from smolsum.results.report.collect import EvaluationResult, TrainedRun
from smolsum.runs.evaluation_records import Judgement
from smolsum.runs.typed_json import read_lines
from smolsum.tasks import TASKS
from smolsum.tasks.data import Split


@dataclass(frozen=True)
class SampleTexts:
    """The texts of an example."""

    answer: str
    finish_reason: str = ""
    """`stop` or `length`; empty where it is not known"""
    messages: Sequence[Mapping[str, str]] = ()
    """the chat that asked for it, each with a `role` and a `content`; empty where the data are not here"""
    references: Sequence[str] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    """those of the judge, by criterion"""


class TextReader:
    """Reads the texts of evaluations; the data that several share once."""

    def __init__(self, runs: Sequence[TrainedRun], warn: Callable[[str], None]) -> None:
        """`runs` say where the data are. `warn` gets a sentence on each evaluation whose texts are not here."""
        self._runs = {info.fingerprint: (run, name) for run in runs for name, info in run.info.data.items()}
        self._warn = warn
        self._data: dict[str, tuple[Config, Split]] = {}

    def read(self, result: EvaluationResult) -> dict[str, SampleTexts]:
        """Return the texts of each example, of several samples those of the first. Raises SmolsumError for a file that
        is damaged."""
        if not result.scores.texts:
            self._warn(f"the texts of {result.folder} are left out: it has no answers")
            return {}
        asked = self._asked(result)
        ends = {row.id: row.finish_reason for row in read_generations(result.folder) if not row.sample}
        reasons = _reasons(result)
        return {
            id: SampleTexts(text, ends.get(id, ""), *asked.get(id, ((), ())), reasons.get(id, {}))
            for id, text in result.scores.texts.items()
        }

    def _asked(self, result: EvaluationResult) -> dict[str, tuple[Sequence[Mapping[str, str]], Sequence[str]]]:
        """Return the chat and the references of each example; of none, with a warning, where they are not here."""
        info = result.summary.data.get(result.summary.split or "test")
        try:
            config, split = self._load(info.fingerprint if info else "")
        except SmolsumError as error:
            self._warn(f"the prompts of {result.folder} are left out: {error.message}")
            return {}
        own = {key: value for key, value in (result.task or {}).items() if hasattr(config.task, key) and key != "name"}
        config = with_fields(config, task=with_fields(config.task, **own))
        task = TASKS[config.task.name]
        targets = task.targets.of(config)
        found: dict[str, tuple[Sequence[Mapping[str, str]], Sequence[str]]] = {}
        for example in split.examples:
            if targets:
                target = targets.evaluated(split.name, example.id)
                example = with_fields(example, metadata={**example.metadata, TARGET: target})
            found[example.id] = (task.prompts.messages(example, config), example.references)
        return found

    def _load(self, fingerprint: str) -> tuple[Config, Split]:
        """Return the settings of a run with these data, and the split. Raises SmolsumError where they are not here."""
        if fingerprint in self._data:
            return self._data[fingerprint]
        if fingerprint not in self._runs:
            raise SmolsumError("no run that is given has its data")
        run, name = self._runs[fingerprint]
        config = resolve(TASKS, config_file=run.paths.config).config
        split = TASKS[config.task.name].prompts.load(config, name)
        if split.fingerprint != fingerprint:
            raise SmolsumError(f"{config.data.path} is not what {run.name} was evaluated on")
        self._data[fingerprint] = config, split
        return config, split


def _reasons(result: EvaluationResult) -> dict[str, dict[str, str]]:
    """Return the reasons of the evaluation's judge, a line a round, by example and criterion."""
    judge = result.summary.judging.model if result.summary.judging else ""
    rounds: dict[str, dict[str, dict[int, str]]] = {}
    for row in read_lines(result.folder / JUDGEMENTS, Judgement) if judge else ():
        if row.reason and result.judge and result.judge.startswith(row.judge):
            rounds.setdefault(row.id, {}).setdefault(row.metric, {})[row.round] = row.reason  # the last line counts
    return {
        id: {metric: "\n".join(texts[n] for n in sorted(texts)) for metric, texts in found.items()}
        for id, found in rounds.items()
    }
