"""Schemas that nothing can satisfy, and what else is refused in data of one's own."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.data_files import lines
from support.refusals import refuses

from smolsum.config.sections import Config, DataConfig
from smolsum.tasks import TASKS
from smolsum.tasks.strict_json.schema import conformance, contradiction, satisfies
from smolsum.tasks.strict_json.settings import StrictJsonConfig


def load(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Read these rows as the task's training data."""
    config = Config(
        task=StrictJsonConfig(name="strict-json"), data=DataConfig(path=str(lines(folder / "a.jsonl", rows)))
    )
    TASKS["strict-json"].prompts.load(config, "train")


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "array", "minItems": 3, "maxItems": 2}, "minItems 3 is above maxItems 2"),
        ({"type": "objekt"}, "objekt"),
        ({"type": "string", "enum": [1, 2]}, "none of the allowed values"),
        ({"required": ["a"], "properties": {"b": {}}, "additionalProperties": False}, "required key 'a'"),
        ({"properties": {"b": {}}, "additionalProperties": False, "minProperties": 2}, "2 keys are asked for"),
        ({"required": ["a", "b"], "maxProperties": 1}, "2 keys are required"),
        ({"required": ["a"], "properties": {"a": {"minimum": 3, "maximum": 1}}}, "at a: no number"),
        ({"required": ["a"], "properties": {"a": {"minimum": 3, "exclusiveMaximum": 3}}}, "at a: no number"),
        ({"type": "array", "minItems": 1, "items": {"minLength": 2, "maxLength": 1}}, "at []: minLength 2"),
        (7, "not a JSON object"),
        ("{", "not JSON"),
        ({"type": "string", "const": 3}, "none of the allowed values [3]"),
        ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4}, "no whole number is between"),
        ({"type": "number", "exclusiveMinimum": 3, "maximum": 3}, "no number is between"),
        ({"allOf": [{"type": "string"}, {"type": ["integer", "null"]}]}, "string and integer or null at once"),
        ({"type": "string", "minLength": 5, "allOf": [{"maxLength": 4}]}, "minLength 5 is above maxLength 4"),
        ({"maximum": 3, "anyOf": [{"minimum": 4}, False]}, "every other branch of anyOf"),
        ({"required": ["a"], "properties": {"a": False}}, "at a: nothing is allowed"),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"minimum": 2, "maximum": 1}}}, "no number is between"),
        ({"required": ["n"], "properties": {"n": {"$ref": "#"}}}, "'#' refers to itself without end"),
        ({"properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"$ref": "#/$defs/n"}}}, "without end"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "without end"),
        ({"properties": {"n": {"$ref": "#/$defs/m"}}}, "'#/$defs/m' points to nothing"),
        ({"properties": {"n": {"$ref": "http://127.0.0.1:9/n.json"}}}, "points to nothing"),
        ('{"minimum": NaN}', "minimum nan is not a JSON number"),
        ("[" * 100_000, "nests too deep"),
    ],
)
def test_a_contradiction_is_found(schema: Any, says: str, tmp_path: Path) -> None:
    """A schema that no value satisfies is refused before anything is generated, with its example and its place."""
    rows = [{"id": n, "prompt": f"Write {n}.", "schema": {"type": "object"} if n else schema} for n in range(2)]
    with refuses("example '0'", says):
        load(tmp_path, rows)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"required": ["a", "b"], "maxProperties": 2}, {"a": 1, "b": 1}),
        ({"type": "array", "contains": {"const": 1}, "items": {"const": 2}, "minContains": 0}, [2]),
        ({"type": "array", "minItems": 2, "uniqueItems": True, "items": {"type": "boolean"}}, [True, False]),
        ({"type": "integer", "minimum": 1, "maximum": 1.0}, 1),
        ({"type": ["string", "null"], "minLength": 5, "maxLength": 1}, None),
        ({"type": "object", "required": ["n"], "properties": {"n": {"anyOf": [{"$ref": "#"}, {}]}}}, {"n": 1}),
        ({"required": ["a"], "$ref": "#/$defs/o", "properties": {"a": {"$ref": "#/$defs/o"}},
          "$defs": {"o": {"type": "object"}}}, {"a": {}}),
        ({"type": "object", "properties": {"a": True, "b": False}}, {"a": 1}),
    ],
)  # fmt: skip
def test_just_possible(schema: Any, value: Any) -> None:
    """At the edge of a contradiction, and with parts met twice, a schema is taken."""
    assert satisfies(value, schema)
    assert contradiction(schema) == ""


@pytest.mark.parametrize(
    ("value", "schema", "score"),
    [
        ([1] * 50, {"type": "array", "maxItems": 2}, 0.5),
        ({"b": 1}, {"required": ["a"]}, 0.0),
        ({"b": 1}, {"type": ["object", "null"], "required": ["a"]}, 0.5),
        (7, {"enum": [1, 2]}, 0.0),
        ({"x": True}, {"type": "object", "properties": {"x": {"enum": [1]}}}, 0.5),
        ({"a": 1}, {"$ref": "#/$defs/p", "$defs": {"p": {"required": ["b"]}}}, 0.0),
        ([1, "x"], {"type": "array", "prefixItems": [{"type": "string"}]}, 0.5),
        (10**400, {"type": "number", "multipleOf": 0.5}, 0.5),
        (float("inf"), {"type": "number", "multipleOf": 0.5}, 0.5),
        ({}, {"type": "object", "properties": {"a": {"type": "object", "required": ["k"]}}}, 1.0),
        ({"a": {}}, {"type": "object", "properties": {"a": {"type": "object", "required": ["k"]}}}, 2 / 3),
    ],
)
def test_conformance_to_schemas_of_ones_own(value: Any, schema: Any, score: float) -> None:
    """What the checks do not see is seen all the same, and what is optional may be absent."""
    assert conformance(value, schema) == pytest.approx(score)
    assert satisfies(value, schema) == (score == 1)


@pytest.mark.parametrize("depth", [0, -1, 1.5, float("nan"), "two", True])
def test_a_depth_that_is_none(depth: Any, tmp_path: Path) -> None:
    row = {"prompt": "Write.", "schema": {"type": "object"}}
    with refuses("depth", "'train-2'"):
        load(tmp_path, [row, row | {"depth": depth}])


LEAVES = [None, True, False, 0, 1, 2, 3, 0.5, 2.5, "", "a", "bb"]
VALUES: list[Any] = [
    *LEAVES, *([leaf] for leaf in LEAVES), *({key: leaf} for key in "ab" for leaf in LEAVES),
    [], [0, 1], [True, False], ["a", "a"], ["a", 1], [{}, []], [1, 2, 3], [None, 0, "a"],
    {}, {"a": 1, "b": "a"}, {"a": {}, "c": []}, {"a": {"a": 1}}, {"a": 0, "b": 1, "c": 2},
]  # fmt: skip
KEYS, SMALL = st.lists(st.sampled_from("abc"), unique=True, max_size=2), st.integers(0, 3)


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas of the keywords that are looked at, those of one type together, over few values, so that they meet."""
    some = st.lists(inner, min_size=1, max_size=2)
    named = st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    number = dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), SMALL)
    number["multipleOf"] = st.sampled_from([1, 2, 0.5])
    own: dict[str, dict[str, st.SearchStrategy[Any]]] = {
        "number": number,
        "integer": number,
        "string": {"minLength": SMALL, "maxLength": SMALL},
        "boolean": {},
        "array": {
            "minItems": SMALL, "maxItems": SMALL, "items": inner, "prefixItems": some, "contains": inner,
            "uniqueItems": st.booleans(), "minContains": st.integers(0, 1),
        },
        "object": {
            "required": KEYS, "properties": named,
            "patternProperties": st.dictionaries(st.just("^a"), inner, max_size=1),
            "minProperties": SMALL, "maxProperties": SMALL, "additionalProperties": inner,
            "dependentRequired": st.dictionaries(st.sampled_from("abc"), KEYS, max_size=1),
            "propertyNames": st.sampled_from([True, {"maxLength": 0}, {"enum": ["a", "b"]}]),
        },
    }  # fmt: skip
    leaves = st.sampled_from(LEAVES)
    every = {"enum": st.lists(leaves, max_size=3), "const": leaves, "allOf": some, "anyOf": some, "oneOf": some}
    every["$ref"] = st.sampled_from(["#", "#/$defs/d"])

    def of(kind: str) -> st.SearchStrategy[Any]:
        typed = st.sampled_from([kind, [kind, "null"]])
        words = st.sets(st.sampled_from([*own[kind], *every]), max_size=3)
        known = own[kind] | every
        return words.flatmap(
            lambda names: st.fixed_dictionaries({"type": typed, **{n: known[n] for n in sorted(names)}})
        )

    return st.sampled_from(sorted(own)).flatmap(of)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(st.recursive(st.booleans(), schemas, max_leaves=6), st.booleans() | schemas(st.booleans()))
def test_no_satisfied_schema_is_refused(schema: Any, inner: Any) -> None:
    """Where some value satisfies a schema no contradiction is found in it, and its conformance is 1 there alone."""
    assume(isinstance(schema, dict))
    schema |= {"$defs": {"d": inner}}
    problem = contradiction(schema)
    assume(not problem.startswith("its $ref"))
    for value in VALUES:
        assert (conformance(value, schema) == 1.0) == satisfies(value, schema)
        assert not (problem and satisfies(value, schema)), problem
