"""JSONSchemaBench (Geng et al., 2501.10868): real schemas, a file each, in folders that are its data sets.

Asked and measured as by the benchmark's program without examples (`core/messages.py` and `core/evaluator.py` of
epfl-dlab/jsonschemabench, with `num_shots=0`): the schema is the user's turn, and what counts is the share of answers
that satisfy it, formats included, by the library `jsonschema`. That is its empirical coverage; declared coverage and
compliance are about engines that constrain decoding. Two things differ. A schema is taken by the draft that it names,
where the program takes all of them by draft 2020-12. And a schema that no answer can be held against is left out and
counted, where there each answer to it is wrong.
"""

import json
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from smolsum import console
from smolsum.config.sections import Config, TaskConfig
from smolsum.errors import UsageError, nearest
from smolsum.tasks.base import ErrorKind, Metric, MetricRow, MetricTable, Summary
from smolsum.tasks.data import Example, Split, generated_split
from smolsum.tasks.success_rates import share_of
from smolsum.tasks.suites.suite import NO_FILES, answer_of, drawn, no_files, suite
from smolsum.types import Prompt, Rollout

FILES = "the folder data/ of JSONSchemaBench, or a folder of it"
SYSTEM = "You need to generate a JSON object that matches the schema below."
"""the benchmark's own system message"""
DATASETS = (
    "Glaiveai2K", "Github_trivial", "Github_easy", "Snowplow", "Github_medium", "Kubernetes", "WashingtonPost",
    "Github_hard", "JsonSchemaStore", "Github_ultra",
)  # fmt: skip
LABEL, FENCE = "```json", "```"


@dataclass(frozen=True)
class JsonSchemaBenchConfig(TaskConfig):
    """Which of the benchmark's schemas are asked for."""

    datasets: str = ""
    """Data sets, by the names of their folders, separated by commas; empty: all that there are."""

    @property
    def work(self) -> tuple[str, ...]:
        """It decides the prompts, which have a fingerprint, and no measure."""
        return ("datasets",)


def load(config: Config) -> Split:
    """Return the schemas of a data set's folder, or of all folders in a folder. Raises UsageError where no schema
    can be used."""
    if config.data.path == NO_FILES:
        raise no_files("jsonschemabench", FILES)
    root = Path(config.data.path).expanduser()
    found = sorted([*root.glob("*.json"), *root.glob("*/*.json")]) if root.is_dir() else []
    if not found:
        raise UsageError(f"{root} is no folder with schemas in .json files", hint=f"--suite-path PATH: {FILES}")
    folders = {path: path.absolute().parent.name for path in found}
    names = cast(JsonSchemaBenchConfig, config.task).datasets.split(",")
    if wanted := [name.strip() for name in names if name.strip()]:
        if unknown := [name for name in wanted if name not in folders.values()]:
            raise UsageError(f"{root} has no data set {unknown[0]!r}", hint=nearest(unknown[0], set(folders.values())))
        found = [path for path in found if folders[path] in wanted]
    ids = {path: f"{folders[path]}/{path.stem}" for path in found}
    found, said = drawn(found, ids.__getitem__, config.data)
    console.current_hook().progress(f"checking {len(found):,} schemas by the rules of their drafts")
    examples, problems = list[Example](), Counter[str]()
    for path in found:
        schema, problem = read_schema(path)
        if problem:
            problems[problem] += 1
            continue
        metadata = {"schema": json.dumps(schema), "dataset": folders[path]}
        turns = ({"role": "system", "content": SYSTEM},)
        examples.append(Example(ids[path], metadata["schema"], (), metadata, turns))
    why = "; ".join(f"{count} {problem}" for problem, count in problems.most_common())
    left_out = f"{problems.total()} of {len(found)} schemas cannot be used: {why}" if problems else ""
    if not examples:
        raise UsageError(left_out, hint=f"--suite-path PATH: {FILES}")
    return generated_split("test", examples, left_out, f"the schemas of {root}: {said}")


def read_schema(path: Path) -> tuple[Any, str]:
    """Return the schema of a file, and why no answer can be held against it; empty if one can."""
    from jsonschema.exceptions import SchemaError
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012, specification_with

    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(schema, dict):
            return None, "are no JSON objects"
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of patterns that Python may read anew
            _draft(schema).check_schema(schema)
        kind = specification_with(str(schema.get("$schema", "")), default=DRAFT202012)
        resource = kind.create_resource(schema)
        base = resource.id() or ""
        _follow(schema, REGISTRY.with_resource(base, resource).crawl().resolver(base), kind, set())
    except OSError as error:
        return None, f"cannot be read ({error.strerror})"
    except ValueError:
        return None, "are not JSON"
    except SchemaError:
        return None, "break the rules of their draft"
    except Unresolvable:
        return None, "have a $ref to what is not in them"
    except AttributeError:
        return None, "have a part that is no schema"
    except RecursionError:
        return None, "nest too deep"
    return schema, ""


def _draft(schema: Mapping[str, Any]) -> Any:
    """Return the validator of the draft that a schema names; of draft 2020-12 where it names none that is known."""
    from jsonschema.validators import Draft202012Validator, validator_for

    named = isinstance(schema.get("$schema"), str)
    return validator_for(schema, default=Draft202012Validator) if named else Draft202012Validator


def _follow(contents: Any, resolver: Any, kind: Any, seen: set[int]) -> None:
    """Raise Unresolvable where a reference of a schema, or of one that it leads to, leads nowhere: nothing is ever
    fetched. Raises AttributeError for a part that the validator takes for a schema, and that is not one. Goes where the
    validator may go, which looks at definitions only through references."""
    if isinstance(contents, Mapping):
        if isinstance(reference := contents.get("$ref"), str):
            found = resolver.lookup(reference)
            if id(found.contents) not in seen:
                seen.add(id(found.contents))
                _follow(found.contents, found.resolver, kind, seen)
        contents = {key: value for key, value in contents.items() if key not in ("definitions", "$defs")}
    for inner in kind.create_resource(contents).subresources():
        _follow(inner.contents, resolver.in_subresource(inner), kind, seen)


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    from jsonschema import FormatChecker
    from referencing import Registry

    parsed = json.loads(schema)
    return _draft(parsed)(parsed, registry=Registry(), format_checker=FormatChecker())


def formats() -> dict[str, str]:
    """Return the formats that are checked here: some need packages that `jsonschema` does not install."""
    from jsonschema import FormatChecker

    return {"formats": ", ".join(sorted(FormatChecker.checkers))}


def json_of(text: str) -> str:
    """Return the part of an answer that is to be JSON: the first block marked as that, or all of it, as the benchmark's
    `extract_json_text_from_text`."""
    return text.split(LABEL)[1].split(FENCE)[0].strip() if LABEL in text else text.strip()


def measure(prompt: Prompt, rollout: Rollout) -> dict[str, Any]:
    """Measure one answer: whether it parses, by Python's parser as in the benchmark, whether it satisfies the schema,
    and the keywords that it violates."""
    broken = list[str]()
    try:
        value, parses = json.loads(json_of(answer_of(rollout.text))), True
    except (ValueError, RecursionError):
        parses = False
    if parses:
        try:
            errors = _validator(prompt.metadata["schema"]).iter_errors(value)
            broken = sorted({str(error.validator) for error in errors})
        except Exception as error:  # whatever a validator raises is no valid answer, as in the benchmark
            broken = [type(error).__name__]
    return {
        "passed": float(parses and not broken),
        "parses": float(parses),
        "dataset": prompt.metadata["dataset"],
        "violated": broken,
    }


def summarise(rows: Sequence[MetricRow]) -> Summary:
    """Return the share that satisfies its schema and the one that parses, of all and of each data set."""
    summary: Summary = {"schemas": len(rows)}
    for name in ("passed", "parses"):
        summary |= share_of(name, [row[name] for row in rows])
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        own = [row for row in rows if row["dataset"] == dataset]
        summary |= share_of(f"{dataset}/passed", [row["passed"] for row in own])
        summary |= {f"{dataset}/schemas": len(own), f"{dataset}/parses": sum(row["parses"] for row in own) / len(own)}
    return summary


def _table(title: str, prefix: str = "") -> MetricTable:
    names = ("passed", "passed/low", "passed/high", "parses")
    titles = ("satisfies the schema", "from", "to", "parses")
    shares = (Metric(f"{prefix}{name}", title) for name, title in zip(names, titles, strict=True))
    return MetricTable(title, (Metric(f"{prefix}schemas", "schemas", ".0f"), *shares))


def _kind(name: str, meaning: str, *keywords: str) -> ErrorKind:
    return ErrorKind(name, meaning, lambda row: not set(keywords).isdisjoint(row["violated"]))


TASK = suite(
    "jsonschemabench",
    load=load,
    measure=measure,
    summarise=summarise,
    settings=JsonSchemaBenchConfig,
    checked_by=formats,
    headlines=(
        Metric("parses", "parses", better="higher", role="constraint", meaning="answers that are JSON"),
        Metric("passed", "schema", better="higher", role="quality", meaning="answers that satisfy the schema"),
    ),
    tables=(_table("all data sets, 95 % intervals"), *(_table(name, f"{name}/") for name in DATASETS)),
    errors=(
        ErrorKind("no JSON", "the answer does not parse", lambda row: not row["parses"]),
        _kind("wrong type", "a value of another type", "type"),
        _kind("missing keys", "a required key is not there", "required", "minProperties", "dependentRequired"),
        _kind("extra keys", "a key that is not allowed", "additionalProperties", "unevaluatedProperties"),
        _kind("wrong choice", "a value that is not among those allowed", "enum", "const"),
        _kind("wrong text", "a text of another form", "format", "pattern", "minLength", "maxLength"),
    ),
    score="passed",
    max_new_tokens=4096,
    data={"long_prompts": "drop"},
)
