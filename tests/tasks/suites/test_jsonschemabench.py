"""JSONSchemaBench: which schemas can be used, by which draft they are taken, and what an answer is worth."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refuses

from smolsum.config.resolve import resolve
from smolsum.tasks import TASKS
from smolsum.tasks.data import Split
from smolsum.tasks.suites.jsonschemabench import SYSTEM, json_of, measure, read_schema, summarise
from smolsum.types import Prompt, Rollout

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
DRAFT4 = "http://json-schema.org/draft-04/schema#"
ABOVE_ZERO = {"type": "number", "minimum": 0, "exclusiveMinimum": True}
"""of draft 4; in later drafts `exclusiveMinimum` is a number"""


def folder(root: Path, **schemas: Any) -> Path:
    """A data set's folder, with a file for each schema; a text is written as it is."""
    root.mkdir(parents=True)
    for name, schema in schemas.items():
        text = schema if isinstance(schema, str) else json.dumps(schema)
        (root / f"{name}.json").write_text(text, encoding="utf-8")
    return root


def asked(path: Path, *sets: str) -> Split:
    """The prompts of a folder."""
    flags = {"task.name": "jsonschemabench", "data.path": str(path)}
    return TASKS["jsonschemabench"].prompts.load(resolve(TASKS, sets=sets, flags=flags).config, "test")


def measured(text: str, schema: Any, dataset: str = "Snowplow") -> dict[str, Any]:
    """The row of an answer."""
    prompt = Prompt("1", (), (), (), {"schema": json.dumps(schema), "dataset": dataset})
    return measure(prompt, Rollout((1,), (0.0,), "stop", 0, "here", 0, text))


@pytest.mark.parametrize(
    ("text", "parses", "passed", "violated"),
    [
        ('{"name": "Ada"}', 1, 1, []), ('```json\n{"name": "Ada"}\n```', 1, 1, []), ("[" * 100_000, 0, 0, []),
        ('Here: ```json {"name": 3} ``` and ```json {"name": "Ada"} ```', 1, 0, ["type"]),
        ("Here: {}", 0, 0, []), ('```\n{"name": "Ada"}\n```', 0, 0, []), ("", 0, 0, []),
        ("<think>{</think>{}", 1, 0, ["required"]),
    ],
)  # fmt: skip
def test_answers(text: str, parses: int, passed: int, violated: list[str]) -> None:
    """The first block marked as JSON is the answer, or else all of the text, as in the benchmark."""
    row = measured(text, NAME)
    assert (row["parses"], row["passed"], row["violated"]) == (parses, passed, violated)


def test_a_schema_is_taken_by_its_own_draft(tmp_path: Path) -> None:
    """What is a rule of draft 4 breaks those of later drafts; a draft that nobody knows is taken as 2020-12."""
    root = folder(
        tmp_path / "own", old=ABOVE_ZERO | {"$schema": DRAFT4}, new=ABOVE_ZERO, other={"$schema": "x:y"} | NAME
    )
    assert read_schema(root / "old.json")[1] == read_schema(root / "other.json")[1] == ""
    assert read_schema(root / "new.json")[1] == "break the rules of their draft"
    row = measured("0", ABOVE_ZERO | {"$schema": DRAFT4})
    assert (row["parses"], row["passed"]) == (1.0, 0.0)


def test_formats_are_checked() -> None:
    assert measured('"1.2.3"', {"type": "string", "format": "ipv4"})["violated"] == ["format"]
    assert measured('"1.2.3.4"', {"type": "string", "format": "ipv4"})["passed"] == 1.0


def test_a_schema_may_refer_to_itself_and_to_drafts(tmp_path: Path) -> None:
    """What is in the schema, under an `$id` too, or is a draft's own schema, is found without a network."""
    tree = {
        "$id": "http://x.org/tree",
        "type": "object",
        "properties": {"next": {"$ref": "#"}, "meta": {"$ref": DRAFT4}},
    }
    within = {"definitions": {"a": {"$id": "http://x.org/a", "type": "null"}}, "items": {"$ref": "http://x.org/a"}}
    # a definition with the name and the draft of another schema: the validator comes by a reference, and heeds neither
    lemon = {"id": "schema/lemon", "$schema": DRAFT4, "properties": {"size": {"$ref": "#/definitions/size"}}}
    fruit = {"definitions": {"size": {"enum": ["small"]}, "lemon": lemon}, "items": {"$ref": "#/definitions/lemon"}}
    root = folder(tmp_path / "own", fruit=fruit, tree=tree, within=within)
    assert [read_schema(path)[1] for path in sorted(root.iterdir())] == ["", "", ""]
    assert measured('[{"size": "large"}]', fruit)["violated"] == ["enum"]
    assert measured('{"next": {"next": 3}}', tree)["violated"] == ["type"]
    assert measured("[null]", within)["passed"] == 1.0


def test_what_cannot_be_used_is_counted_with_the_reason(tmp_path: Path) -> None:
    far = {"properties": {"a": {"$ref": "http://nowhere.invalid/a.json"}}}
    # behind the reference is an object with the key "id", which draft 4 takes for the name of a schema
    part = {"$schema": DRAFT4, "$ref": "#/parts/a", "parts": {"a": {"items": {"id": {"type": "string"}}}}}
    every = {"good": NAME, "cut": "[1", "list": "[1]", "far": far, "wrong": {"type": "objekt"}, "part": part}
    split = asked(folder(tmp_path / "own", **every))
    assert [example.id for example in split.examples] == ["own/good"]
    assert split.left_out.startswith("5 of 6 schemas cannot be used: ")
    for reason in (
        "1 are not JSON",
        "1 are no JSON objects",
        "1 break the rules",
        "1 have a $ref",
        "1 have a part that",
    ):
        assert reason in split.left_out


def test_folders_are_data_sets(tmp_path: Path) -> None:
    """Ids do not depend on whether one folder is named or the folder of all; a draw depends on the ids alone."""
    for name in ("Snowplow", "Kubernetes"):
        folder(tmp_path / name, **{f"s{number}": NAME for number in range(8)})
    every = [example.id for example in asked(tmp_path).examples]
    assert every == [f"{name}/s{number}" for name in ("Kubernetes", "Snowplow") for number in range(8)]
    one = asked(tmp_path, "task.datasets=Snowplow")
    assert one.examples == asked(tmp_path / "Snowplow").examples
    assert len(asked(tmp_path, "data.test_rows=5").examples) == 5
    few = [example.id for example in asked(tmp_path / "Snowplow", "data.test_rows=3").examples]
    assert few == [example.id for example in asked(tmp_path, "task.datasets=Snowplow", "data.test_rows=3").examples]
    with refuses("Snowplough", "did you mean Snowplow?"):
        asked(tmp_path, "task.datasets=Snowplough")


def test_the_prompt_is_the_benchmarks(tmp_path: Path) -> None:
    """Its system message, then the schema as JSON; no instruction of ours."""
    path = folder(tmp_path / "own", a=NAME)
    config = resolve(TASKS, flags={"task.name": "jsonschemabench", "data.path": str(path)}).config
    (example,) = asked(path).examples
    assert TASKS["jsonschemabench"].prompts.messages(example, config) == (
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": json.dumps(NAME)},
    )


def test_shares_are_of_all_and_of_each_data_set() -> None:
    rows = [measured('{"name": "a"}', NAME), measured("{}", NAME), measured("no", NAME, "Kubernetes")]
    found = summarise(rows)
    assert (found["passed"], found["parses"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert (found["Snowplow/passed"], found["Snowplow/parses"], found["Snowplow/schemas"]) == (0.5, 1.0, 2)
    assert (found["Kubernetes/passed"], found["Kubernetes/passed/low"]) == (0.0, 0.0)


def test_no_folder_with_schemas(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", tmp_path / "IFBench_test.jsonl"):
        with refuses(path, "--suite-path"):
            asked(path)


def test_nothing_that_can_be_used(tmp_path: Path) -> None:
    with refuses("1 of 1 schemas cannot be used: 1 are not JSON", "--suite-path"):
        asked(folder(tmp_path / "own", a="{"))


def test_json_of() -> None:
    assert json_of(" 3 ") == "3"
    assert json_of("a ```json\n3\n``` b") == "3"
