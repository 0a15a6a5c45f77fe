"""An evaluation as a log of inspect_ai: JSON of its version 2, as https://inspect.aisi.org.uk/eval-logs.html describes
it and `inspect log schema` prints it. `inspect view`, `read_eval_log` and `samples_df` read it.

Each column of the scores is a scorer with mean and standard error, so that the viewer shows and sorts every example by
it. A value that is missing has no score in its example. Metrics of all examples together, such as the median length,
are those of the scorer `summary`.
"""

from typing import Any

from smolsum.files import to_json
from smolsum.results.exchange.evaluations import ExchangedEvaluation, safe
from smolsum.results.exchange.texts import SampleTexts

VERSION = 2
"""of the log format"""
FOLDER = "inspect"
TOGETHER = "summary"
"""the scorer of metrics that no example has"""
PROVIDER = "smolsum"
"""a model of inspect_ai is named PROVIDER/NAME"""
ENDS = {"stop": "stop", "length": "max_tokens"}
"""finish reasons in inspect_ai's words"""

_NO_USE: dict[str, Any] = {"model_usage": {}, "role_usage": {}}
_NOTHING: dict[str, Any] = {"metadata": {}, "store": {}, "events": [], "attachments": {}}
"""what the schema asks for in every example, and an evaluation of smolsum does not have"""


def log_name(one: ExchangedEvaluation) -> str:
    """Return the name of a log's file, by which inspect_ai knows it: TIME_TASK_ID.json."""
    return f"{one.time:%Y-%m-%dT%H-%M-%S}+00-00_{safe(f'{one.task}-{one.name}')}_{one.key[:22]}.json"


def to_inspect(one: ExchangedEvaluation) -> bytes:
    """Return the log of an evaluation. Its examples have the texts that `one` has, and are empty otherwise."""
    created = f"{one.time:%Y-%m-%dT%H:%M:%S}+00:00"
    ids = list(one.result.scores.lines)
    sampling = _sampling(one)
    log = {
        "version": VERSION,
        "status": "success",
        "invalidated": False,
        "tags": [],
        "metadata": {},
        "eval": {
            "eval_id": one.key[:22],
            "run_id": one.key[:22],
            "task_id": one.key[:22],
            "created": created,
            "task": f"smolsum/{one.task}",
            "task_version": 0,
            "task_display_name": one.name,
            "task_attribs": {},
            "task_args": one.facts.get("task", {}),
            "task_args_passed": {},
            "dataset": {"name": one.data.name, "samples": len(ids), "sample_ids": ids, "shuffled": False},
            "model": f"{PROVIDER}/{one.model}",
            "model_generate_config": sampling,
            "model_args": {"base_model": one.base, "step": one.result.step},
            "config": {"epochs": 1, "log_samples": True},
            "packages": {"smolsum": one.version},
            "metadata": {key: value for key, value in one.facts.items() if key != "task"},
            "scorers": [{"name": column.name, "options": {}} for column in one.columns],
        },
        "plan": {
            "name": "plan",
            "steps": [{"solver": "generate", "params": {}, "params_passed": {}}],
            "config": sampling,
        },
        "results": {"total_samples": len(ids), "completed_samples": len(ids), "scores": _results(one, len(ids))},
        "stats": {"started_at": created, "completed_at": created} | _NO_USE | {"connection_limit_history": []},
        "samples": _samples(one),
    }
    return to_json(log, indent=1)


def _sampling(one: ExchangedEvaluation) -> dict[str, Any]:
    """Return the settings of decoding that inspect_ai has a word for; the sampler's own name is in the metadata."""
    found: dict[str, Any] = {"max_tokens": one.result.summary.max_new_tokens}
    if one.result.summary.sampler == "greedy":
        found["temperature"] = 0.0
    return {key: value for key, value in found.items() if value is not None}


def _results(one: ExchangedEvaluation, examples: int) -> list[dict[str, Any]]:
    found = []
    for column in one.columns:
        metrics = {"mean": column.mean} | ({} if column.error is None else {"stderr": column.error})
        counts = {"scored_samples": column.count, "unscored_samples": examples - column.count}
        found.append(_score(column.name, metrics) | counts)
    return [*found, *([_score(TOGETHER, one.other_metrics)] if one.other_metrics else [])]


def _score(name: str, metrics: dict[str, float]) -> dict[str, Any]:
    numbers = {key: {"name": key, "value": value, "params": {}} for key, value in metrics.items()}
    return {"name": name, "scorer": name, "params": {}, "metrics": numbers}


def _samples(one: ExchangedEvaluation) -> list[dict[str, Any]]:
    scores = one.result.scores
    names = [column.name for column in one.columns]
    return [
        _sample(id, {name: row[name] for name in names if row[name] is not None}, one)
        for id, row in zip(scores.lines, scores.frame.iter_rows(named=True), strict=True)
    ]


def _sample(id: str, values: dict[str, float], one: ExchangedEvaluation) -> dict[str, Any]:
    texts, rounds = one.texts.get(id), one.result.scores.lines[id].rounds
    scores: dict[str, dict[str, Any]] = {name: {"value": value, "history": []} for name, value in values.items()}
    for name, score in scores.items():
        if found := rounds.get(name):
            score["metadata"] = {"rounds": found}
        if texts and (reason := texts.reasons.get(name)):
            score["explanation"] = reason
    # readers expect an answer in every example
    own = _chat(texts or SampleTexts(""), one.model)
    return {"id": id, "epoch": 1, **own, "scores": scores, **_NOTHING, **_NO_USE}


def _chat(texts: SampleTexts, model: str) -> dict[str, Any]:
    answer = {"role": "assistant", "content": texts.answer, "source": "generate", "model": f"{PROVIDER}/{model}"}
    asked = [{"role": message["role"], "content": message["content"]} for message in texts.messages]
    choice = {"message": answer, "stop_reason": ENDS.get(texts.finish_reason, "unknown")}
    return {
        "input": asked or "",
        "target": list(texts.references) or "",
        "messages": [*asked, answer],
        "output": {"model": f"{PROVIDER}/{model}", "choices": [choice], "completion": texts.answer},
    }
