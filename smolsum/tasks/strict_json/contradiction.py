"""Schemas that no value satisfies, found before anybody is asked for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RANGES = (
    ("minItems", "maxItems"), ("minProperties", "maxProperties"), ("minLength", "maxLength"), ("minimum", "maximum"),
)  # fmt: skip


def contradiction(schema: Any) -> str:
    """Returns what is wrong with a JSON Schema, and where: it is none, or no value can satisfy it. Empty for a good
    one.

    Found are ranges that are empty, allowed values of another type, more entries asked for than there can be, and
    required keys that are forbidden or impossible themselves; a contradiction between other keywords goes unseen.
    """
    from jsonschema import Draft202012Validator  # not before it is needed
    from jsonschema.exceptions import SchemaError

    if not isinstance(schema, Mapping):
        return "it is no JSON object"
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"{_where(error.json_path[2:])}{error.message}"
    return _inside(schema, "")


def _inside(schema: Any, path: str) -> str:
    if not isinstance(schema, Mapping):
        return "" if schema is not False else f"{_where(path)}false allows nothing"
    for low, high in RANGES:
        if low in schema and high in schema and schema[low] > schema[high]:
            return f"{_where(path)}{low} {schema[low]} is above {high} {schema[high]}"
    least, limit = schema.get("minimum"), schema.get("exclusiveMaximum")
    if least is not None and limit is not None and least >= limit:
        return f"{_where(path)}minimum {least} is not below exclusiveMaximum {limit}"
    if "enum" in schema and not any(_valid(value, schema) for value in schema["enum"]):
        return f"{_where(path)}none of the allowed values {list(schema['enum'])} satisfies the rest"
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if schema.get("additionalProperties") is False:
        if unknown := [key for key in required if key not in properties]:
            return f"{_where(path)}the required key {unknown[0]!r} is not among the only ones allowed"
        if schema.get("minProperties", 0) > len(properties):
            return f"{_where(path)}{schema['minProperties']} keys are asked for, and {len(properties)} allowed"
    if len(required) > schema.get("maxProperties", len(required)):
        return f"{_where(path)}{len(required)} keys are required, and {schema['maxProperties']} allowed"
    for key in required:
        if problem := _inside(properties.get(key, {}), f"{path}.{key}".strip(".")):
            return problem
    return _inside(schema["items"], f"{path}[]") if schema.get("minItems") and "items" in schema else ""


def _valid(value: Any, schema: Mapping[str, Any]) -> bool:
    from jsonschema import Draft202012Validator

    return bool(Draft202012Validator(dict(schema)).is_valid(value))


def _where(path: str) -> str:
    return f"at {path}: " if path else ""
