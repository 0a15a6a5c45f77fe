"""Evaluations as records of Every Eval Ever, the shared schema of the EvalEval Coalition: version 0.3.0 of
`eval.schema.json` in https://github.com/evaleval/every_eval_ever, at the paths of its data store.

A record has the metrics of which smolsum knows whether higher or lower is better, which the schema asks for. It has no
texts: records of examples, which need them, are not written.
"""

from typing import Any
from uuid import UUID

from smolsum.config.hub import hub_name
from smolsum.files import to_json
from smolsum.results.exchange.evaluations import ExchangedEvaluation, safe
from smolsum.runs.evaluation_records import MeasureInfo
from smolsum.types import COMPOSITE

SCHEMA_VERSION = "0.3.0"
FOLDER = "every-eval-ever"
UNKNOWN = "unknown"
"""the schema's word for an organisation that is not named"""
BUILTIN = "builtin:"
"""begins the path of a model that smolsum brings"""
COMMON = {"rouge": "rouge-l", "meteor": "meteor", "bleu": "bleu"}
"""metrics with a name beyond smolsum; all have values from 0 to 1"""


def record_path(one: ExchangedEvaluation, organization: str) -> str:
    """Return the place of a record in the data store: data/COLLECTION/DEVELOPER/MODEL/UUID.json."""
    developer, _, model = _model_id(one, organization).partition("/")
    return "/".join(("data", safe(f"smolsum-{one.task}"), safe(developer), safe(model), f"{_uuid(one)}.json"))


def to_record(one: ExchangedEvaluation, organization: str) -> bytes:
    """Return the record of an evaluation that `organization` made; empty: it is not named. The same evaluation gives
    the same bytes, so the record's own time is the evaluation's."""
    time = str(int(one.time.timestamp()))
    model = _model_id(one, organization)
    return to_json(
        {
            "schema_version": SCHEMA_VERSION,
            "evaluation_id": f"smolsum-{one.task}/{model}/{time}-{one.key[:8]}",
            "evaluation_timestamp": time,
            "retrieved_timestamp": time,
            "source_metadata": {
                "source_name": "smolsum",
                "source_type": "evaluation_run",
                "source_organization_name": organization or UNKNOWN,
                "evaluator_relationship": "first_party" if one.trained else "third_party",
            },
            "eval_library": {"name": "smolsum", "version": one.version},
            "model_info": _model(one, model),
            "evaluation_results": [
                result for measure in one.measures if (result := _result(one, measure, time)) is not None
            ],
        },
        indent=1,
    )


def _uuid(one: ExchangedEvaluation) -> UUID:
    """A UUID of version 4, as the store wants it, of the evaluation's own fingerprint: the same each time."""
    return UUID(hex=one.key, version=4)


def _model_id(one: ExchangedEvaluation, organization: str) -> str:
    """Return DEVELOPER/NAME: the id on the hub, or who trained the model, as far as that is known."""
    if not one.trained and (name := hub_name(one.base)):
        return name.id
    own = "smolsum" if one.base.startswith(BUILTIN) else ""
    developer = organization if one.trained else own
    return f"{safe(developer) if developer else UNKNOWN}/{safe(one.model)}"


def _model(one: ExchangedEvaluation, id: str) -> dict[str, Any]:
    remote = one.result.remote
    details = {
        "deployment_type": UNKNOWN if remote else "self_deployed",
        "model_availability": "open_weights" if one.base_on_hub and not one.trained else UNKNOWN,
        "base_model": one.base,
        "dtype": one.result.summary.model.dtype,
        "step": "" if one.result.step is None else str(one.result.step),
        "weights": str(one.facts.get("weights") or ("" if remote else one.result.summary.model.weights)),
    }
    known = {key: value for key, value in details.items() if value}
    return {"name": one.model, "id": id, "developer": id.partition("/")[0], "additional_details": known}


def _result(one: ExchangedEvaluation, measure: MeasureInfo, time: str) -> dict[str, Any] | None:
    """Return a metric's result; None for one without a value."""
    value = one.result.metric(measure.name)
    if value is None:
        return None
    column = next((found for found in one.columns if found.name == (measure.column or measure.name)), None)
    details: dict[str, Any] = {"score": value}
    if column and column.mean == value and column.error is not None:
        error = {"value": column.error, "method": "analytic"}
        details["uncertainty"] = {"standard_error": error, "num_samples": column.count}
    return {
        "evaluation_result_id": f"{one.key[:8]}.{measure.name}",
        "evaluation_name": f"smolsum.{one.task}",
        "evaluation_timestamp": time,
        "source_data": _data(one),
        "metric_config": _metric(one, measure),
        "score_details": details,
        "generation_config": _generation(one),
    }


def _metric(one: ExchangedEvaluation, measure: MeasureInfo) -> dict[str, Any]:
    found: dict[str, Any] = {
        "metric_id": COMMON.get(measure.name, f"smolsum.{one.task}.{measure.name.replace('/', '.')}"),
        "metric_name": measure.title,
        "lower_is_better": measure.better == "lower",
    }
    criteria = one.result.summary.criteria or []
    if measure.form.endswith("%") or measure.name in (*COMMON, *criteria, "pass_rate"):
        found |= {"metric_unit": "proportion", "score_type": "continuous", "min_score": 0.0, "max_score": 1.0}
    elif measure.name == COMPOSITE:
        found |= {
            "metric_unit": "points",
            "score_type": "continuous",
            "min_score": 0.0,
            "max_score": len(criteria) + 0.0,
        }
    if one.result.judge and measure.name in (*criteria, COMPOSITE, "pass_rate"):
        found["additional_details"] = {"judge": str(one.facts["judge"])}
    return found


def _data(one: ExchangedEvaluation) -> dict[str, Any]:
    info = one.result.summary.data.get(one.split)
    details = {"additional_details": {"split": one.split, "fingerprint": info.fingerprint}} if info else {}
    if not one.data.on_hub:
        return {"dataset_name": one.data.name, "source_type": "other", **details}
    return {
        "dataset_name": one.data.name,
        "source_type": "hf_dataset",
        "hf_repo": name.id if (name := hub_name(one.data.name)) else one.data.name,
        "hf_split": one.data.split,
        "samples_number": one.result.summary.n,
        **details,
    }


def _generation(one: ExchangedEvaluation) -> dict[str, Any]:
    summary = one.result.summary
    arguments: dict[str, Any] = {"max_tokens": summary.max_new_tokens, "prompt_template": _system(one)}
    if summary.sampler == "greedy":
        arguments["temperature"] = 0.0
    return {
        "generation_args": {key: value for key, value in arguments.items() if value is not None},
        "additional_details": {"sampler": summary.sampler or UNKNOWN},
    }


def _system(one: ExchangedEvaluation) -> str | None:
    """Return the system message that asks for every example; None where the task has none."""
    return str((one.result.task or {}).get("system_prompt") or "") or None
