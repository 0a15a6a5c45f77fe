"""How far a value does what a JSON Schema asks.

`satisfies` says whether it does, by the library `jsonschema`. `conformance` is the plain mean over the checks that the
schema makes, each in [0, 1]:

    type        the top level is an object or an array, as asked
    count       exactly n entries: 1; one off 0.7; off by no more than max(1, n // 3) 0.4; else 0.1
    min count   at least n entries: min(k / n, 1)
    keys        share of the required keys that are there
    types       share of the keys there that have the right type; absent ones are missed by `keys` already
    enums       share of the values there that are among those allowed
    depth       min(d / asked, 1), for objects inside one another
    other       1 if nothing else (a limit, a pattern, what stands behind a reference) is violated, else 0

The same below the top, for each key that is an object or an array, where it is there or required, and, as a mean over
them, for the items of an array.

The library's validator of a JSON Schema (draft 2020-12), which never fetches anything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

from smolsum.tasks.strict_json.answer import depth as depth_of


def validator_of(schema: Any) -> Any:
    """A validator; what its references lead to has to be in the schema itself."""
    from jsonschema import Draft202012Validator  # not before it is needed
    from referencing import Registry

    return Draft202012Validator(schema, registry=Registry())


def unreadable(schema: Any) -> str:
    """Why something is no JSON Schema, and where; empty for one."""
    from jsonschema import Draft202012Validator  # not before it is needed
    from jsonschema.exceptions import SchemaError
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    if not isinstance(schema, Mapping):
        return "it is no JSON object"
    resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    try:
        Draft202012Validator.check_schema(schema)
        parts, seen = [schema], set()
        while parts:
            for keyword, value in keywords(parts.pop()):
                if isinstance(value, float) and not math.isfinite(value):
                    return f"{keyword} {value} is no number of JSON"
                if keyword == "$ref" and value not in seen:
                    seen.add(value)
                    parts.append(resolver.lookup(value).contents)
        if circles := [value for value in sorted(seen) if _comes_back(value, resolver)]:
            return f"its $ref {circles[0]!r} asks for itself without end"
    except SchemaError as error:
        return f"at {error.json_path[2:]}: {error.message}" if error.json_path[2:] else error.message
    except Unresolvable:
        return f"its $ref {value!r} leads to nothing in it"
    except RecursionError:
        return "it nests too deep"
    return ""


def _comes_back(reference: str, resolver: Any) -> bool:
    """Whether a reference leads to itself without going into the value, where a validator would never end."""
    queue, seen = [resolver.lookup(reference).contents], set()
    while queue:
        schema = queue.pop()
        if not isinstance(schema, Mapping):
            continue
        if (found := schema.get("$ref")) == reference:
            return True
        if found and found not in seen:
            seen.add(found)
            queue.append(resolver.lookup(found).contents)
        queue += [schema[name] for name in ("not", "if", "then", "else") if name in schema]
        queue += [part for name in ("allOf", "anyOf", "oneOf") for part in schema.get(name, ())]
        queue += schema.get("dependentSchemas", {}).values()
    return False


def keywords(schema: Any) -> Iterator[tuple[str, Any]]:
    """Every keyword of a schema with its value, wherever it stands; a schema that is `false` is one itself."""
    from referencing.jsonschema import DRAFT202012

    if isinstance(schema, Mapping):
        yield from schema.items()
        for part in DRAFT202012.subresources_of(dict(schema)):
            yield from keywords(part)
    elif schema is False:
        yield "false", schema


Schema = Mapping[str, Any]
CHECKED = frozenset(
    {"type", "properties", "required", "items", "enum", "minItems", "maxItems", "minProperties", "maxProperties"}
)
TYPES: dict[str, type] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def satisfies(value: Any, schema: Schema, depth: int | None = None) -> bool:
    """Whether a value is what a schema (and a least depth) asks for."""
    return not _broken(_validator(json.dumps(schema))[0], value) and (depth is None or depth_of(value) >= depth)


def conformance(value: Any, schema: Schema, depth: int | None = None) -> float:
    """The mean over the checks of a schema (and of a least depth), in [0, 1]; 1 where `satisfies` is true, and nowhere
    else."""
    validator, others = _validator(json.dumps(schema))
    broken = _broken(validator, value)
    if not broken and (depth is None or depth_of(value) >= depth):
        return 1.0
    found = [score for _, score in checks(value, schema)]
    if depth is not None:
        found.append(min(depth_of(value) / depth, 1.0))
    if others or all(score == 1 for score in found):
        found.append(float(broken <= CHECKED and min(found, default=1.0) < 1))
    return fmean(found)


def _broken(validator: Any, value: Any) -> set[str]:
    """The keywords that a value violates."""
    try:
        return {str(error.validator) for error in validator.iter_errors(value)}
    except OverflowError:  # a number beyond floats, which is to be a multiple of one
        return {"multipleOf"}


@lru_cache(maxsize=4096)
def _validator(text: str) -> tuple[Any, frozenset[str]]:
    """The library's validator of a schema, and the keywords that only it knows."""
    schema = json.loads(text)
    return validator_of(schema), frozenset(name for name, _ in keywords(schema)) - CHECKED


def checks(value: Any, schema: Schema, place: str = "") -> Iterator[tuple[str, float]]:
    """Yields the name and the result of each check, a place below the top before the name: `users[].keys`."""
    kind = schema.get("type")
    if not place and kind:
        yield "type", float(_is(value, kind))
    entries = len(value) if isinstance(value, list | dict) else 0
    counted = {"array": "Items", "object": "Properties"}.get(kind) if isinstance(kind, str) else None
    low, high = (schema.get(f"{end}{counted}") for end in ("min", "max"))
    if low is not None and low == high:
        yield f"{place}count", _count(entries, low) if _is(value, kind) else 0.0
    elif low:
        yield f"{place}min count", min(entries / low, 1.0) if _is(value, kind) else 0.0
    if kind == "object":
        yield from _object_checks(value, schema, place)
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        yield from _item_checks(value, schema["items"], place)


def _object_checks(value: Any, schema: Schema, place: str) -> Iterator[tuple[str, float]]:
    properties = {key: part for key, part in schema.get("properties", {}).items() if isinstance(part, Mapping)}
    required = schema.get("required", ())
    held = value if isinstance(value, dict) else {}
    if required:
        yield f"{place}keys", fmean(key in held for key in required)
    there = [(held[key], part) for key, part in properties.items() if key in held]
    if typed := [_is(inner, part["type"]) for inner, part in there if "type" in part]:
        yield f"{place}types", fmean(typed)
    if listed := [_among(inner, part["enum"]) for inner, part in there if "enum" in part]:
        yield f"{place}enums", fmean(listed)
    for key, part in properties.items():
        if part.get("type") in ("object", "array") and (key in held or key in required):
            yield from checks(held.get(key), part, f"{place}{key}.")


def _item_checks(value: Any, schema: Schema, place: str) -> Iterator[tuple[str, float]]:
    items = value if isinstance(value, list) else []
    if items and "type" in schema:
        yield f"{place}item types", fmean(_is(item, schema["type"]) for item in items)
    if items and "enum" in schema:
        yield f"{place}item enums", fmean(_among(item, schema["enum"]) for item in items)
    found: dict[str, list[float]] = {}
    for item in items:
        for name, score in checks(item, schema, f"{place}[]."):
            found.setdefault(name, []).append(score)
    yield from ((name, fmean(scores)) for name, scores in found.items())


def _count(entries: int, asked: int) -> float:
    off = abs(entries - asked)
    return 1.0 if off == 0 else 0.7 if off == 1 else 0.4 if off <= max(1, asked // 3) else 0.1


def _among(value: Any, allowed: Sequence[Any]) -> bool:
    """Whether a value is one of those allowed; true is not 1."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed)


def _is(value: Any, kind: str | Sequence[str] | None) -> bool:
    """Whether a value is of a JSON type; true and false are no numbers, and 3.0 is an integer."""
    if not isinstance(kind, str):
        return kind is None or any(_is(value, one) for one in kind)
    if kind in ("integer", "number"):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (kind == "number" or isinstance(value, int) or value.is_integer())
    return isinstance(value, TYPES[kind])
