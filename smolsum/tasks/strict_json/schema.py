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

`contradiction` finds schemas that no value satisfies, before a model is asked for one. References to other files are
never fetched. Draft 2020-12.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import Any, NamedTuple

from smolsum.tasks.strict_json.answer import depth as depth_of


def validator_of(schema: Any) -> Any:
    """Return a validator; what its references lead to has to be in the schema itself."""
    from jsonschema import Draft202012Validator  # not before it is needed
    from referencing import Registry

    return Draft202012Validator(schema, registry=Registry())


def resolver_of(schema: Any) -> Any:
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012

    return Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()


def unreadable(schema: Any) -> str:
    """Return why something is not a JSON Schema, and where; empty for one."""
    from jsonschema import Draft202012Validator  # not before it is needed
    from jsonschema.exceptions import SchemaError
    from referencing.exceptions import Unresolvable

    if not isinstance(schema, Mapping):
        return "it is not a JSON object"
    resolver = resolver_of(schema)
    try:
        Draft202012Validator.check_schema(schema)
        parts, seen = [schema], set()
        while parts:
            for keyword, value in keywords(parts.pop()):
                if isinstance(value, float) and not math.isfinite(value):
                    return f"{keyword} {value} is not a JSON number"
                if keyword == "$ref" and value not in seen:
                    seen.add(value)
                    parts.append(resolver.lookup(value).contents)
        if circles := [value for value in sorted(seen) if _comes_back(value, resolver)]:
            return f"its $ref {circles[0]!r} refers to itself without end"
    except SchemaError as error:
        return f"at {error.json_path[2:]}: {error.message}" if error.json_path[2:] else error.message
    except Unresolvable:
        return f"its $ref {value!r} points to nothing in the schema"
    except RecursionError:
        return "it nests too deep"
    return ""


def _comes_back(reference: str, resolver: Any) -> bool:
    """Return whether a reference leads to itself without going into the value, where a validator would never end."""
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
    """Yield every keyword of a schema with its value, wherever it stands; a schema that is `false` is one itself."""
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
    """Return whether a value is what a schema (and a least depth) asks for."""
    return not _broken(_validator(json.dumps(schema))[0], value) and (depth is None or depth_of(value) >= depth)


def conformance(value: Any, schema: Schema, depth: int | None = None) -> float:
    """Return the mean over the checks of a schema (and of a least depth), in [0, 1]; 1 where `satisfies` is true, and
    nowhere else."""
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
    """Return the keywords that a value violates."""
    try:
        return {str(error.validator) for error in validator.iter_errors(value)}
    except OverflowError:  # a number beyond floats, which is to be a multiple of one
        return {"multipleOf"}


@lru_cache(maxsize=4096)
def _validator(text: str) -> tuple[Any, frozenset[str]]:
    """Return the library's validator of a schema, and the keywords that only it knows."""
    schema = json.loads(text)
    return validator_of(schema), frozenset(name for name, _ in keywords(schema)) - CHECKED


def checks(value: Any, schema: Schema, place: str = "") -> Iterator[tuple[str, float]]:
    """Yield the name and the result of each check, a place below the top before the name: `users[].keys`."""
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
    """Return whether a value is one of those allowed; true is not 1."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed)


def _is(value: Any, kind: str | Sequence[str] | None) -> bool:
    """Return whether a value is of a JSON type; true and false are not numbers, and 3.0 is an integer."""
    if not isinstance(kind, str):
        return kind is None or any(_is(value, one) for one in kind)
    if kind in ("integer", "number"):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (kind == "number" or isinstance(value, int) or value.is_integer())
    return isinstance(value, TYPES[kind])


SPEAKS_OF = {
    "object": ("properties", "required", "minProperties", "maxProperties", "additionalProperties", "propertyNames"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"),
    "string": ("minLength", "maxLength", "pattern"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""the type that a schema without `type` means, by its keywords"""
COMBINING = frozenset({"allOf", "anyOf", "oneOf", "$ref"})


class SchemaPart(NamedTuple):
    """One of the schemas that a place has to satisfy together, and the references that led to it: one that comes again
    never ends."""

    schema: Any
    passed: frozenset[str] = frozenset()


Parts = Sequence[SchemaPart]


def contradiction(schema: Any) -> str:
    """Return why something is not a JSON Schema, or why no value can satisfy it, and where; empty for a good schema.

    A schema without `type` means what its keywords are about: with `minLength` a string. Found are impossible types,
    values, ranges, counts, required keys and items, through `$ref`, `allOf`, `anyOf` and `oneOf`, at places that must
    exist. Contradictions by other keywords are not looked for.
    """
    if problem := unreadable(schema):
        return problem
    return _ContradictionSearch(validator_of(schema), resolver_of(schema)).problem([SchemaPart(schema)], "")


@dataclass(frozen=True)
class _ContradictionSearch:
    validator: Any
    resolver: Any

    def problem(self, parts: Parts, path: str) -> str:
        """Return why no value can stand at a place; empty where one may."""
        held, why = self._collect(parts, path)
        if why:
            return why
        listed = [p.schema.get("enum", [p.schema.get("const")]) for p in held if p.schema.keys() & {"enum", "const"}]
        if listed:
            validators = [self.validator.evolve(schema=part.schema) for part in held]
            good = any(all(one.is_valid(value) for one in validators) for value in listed[0])
            return "" if good else f"{_at(path)}none of the allowed values {listed[0]} satisfies the rest"
        types, named = _types(held)
        if named and not types:
            return f"{_at(path)}it would have to be {' and '.join(named)} at once"
        checks: dict[str, Callable[[Parts, str], str]] = {
            "object": self._object, "array": self._array, "number": _number,
            "string": lambda held, path: _range(held, path, "minLength", "maxLength"),
        }  # fmt: skip
        found = [checks[kind](held, path) if kind in checks else "" for kind in sorted(types)]
        return found[0] if found and all(found) else self._branches(held, path)

    def _collect(self, parts: Parts, path: str) -> tuple[list[SchemaPart], str]:
        """Return all parts, with those behind references and `allOf`; or why nothing satisfies them."""
        held, queue = list[SchemaPart](), list(parts)
        while queue:
            schema, passed = queue.pop(0)
            if schema is False:
                return [], f"{_at(path)}nothing is allowed"
            if schema is True:
                continue
            held.append(SchemaPart(schema, passed))
            if reference := schema.get("$ref"):
                if reference in passed:
                    return [], f"{_at(path)}{reference!r} refers to itself without end"
                queue.append(SchemaPart(self.resolver.lookup(reference).contents, passed | {reference}))
            queue += [SchemaPart(part, passed) for part in schema.get("allOf", ())]
        return held, ""

    def _branches(self, held: Parts, path: str) -> str:
        bare = [SchemaPart({k: v for k, v in p.schema.items() if k not in COMBINING}, p.passed) for p in held]
        for schema, passed in held:
            for keyword in ("anyOf", "oneOf"):
                found = [self.problem([*bare, SchemaPart(one, passed)], path) for one in schema.get(keyword, ())]
                if found and all(found):
                    return f"{found[0]} (and so with every other branch of {keyword})" if found[1:] else found[0]
        return ""

    def _object(self, held: Parts, path: str) -> str:
        required = dict.fromkeys(key for p in held for key in p.schema.get("required", ()))
        least, most = _limits(held, "minProperties", "maxProperties")
        if len(required) > most:
            return f"{_at(path)}{len(required)} keys are required, and {most} allowed"
        for part in held:
            known = part.schema.get("properties", {})
            if part.schema.get("additionalProperties") is not False or part.schema.get("patternProperties"):
                continue
            if unknown := [key for key in required if key not in known]:
                return f"{_at(path)}the required key {unknown[0]!r} is not among the only ones allowed"
            if least > len(known):
                return f"{_at(path)}{least} keys are asked for, and {len(known)} allowed"
        for key in required:
            values = [p.schema.get("properties", {}).get(key, True) for p in held]
            inner = [SchemaPart(value, p.passed) for value, p in zip(values, held, strict=True)]
            if why := self.problem(inner, f"{path}.{key}".strip(".")):
                return why
        return _range(held, path, "minProperties", "maxProperties")

    def _array(self, held: Parts, path: str) -> str:
        least, _ = _limits(held, "minItems", "maxItems")
        if least and not any("prefixItems" in p.schema for p in held):
            items = [SchemaPart(p.schema.get("items", True), p.passed) for p in held]
            if why := self.problem(items, f"{path}[]"):
                return why
        return _range(held, path, "minItems", "maxItems")


def _number(held: Parts, path: str) -> str:
    low, high = _bound(held, "minimum", "exclusiveMinimum", 1), _bound(held, "maximum", "exclusiveMaximum", -1)
    if low is None or high is None:
        return ""
    (least, above, says_low), (most, below, says_high) = low, high
    if least > most or (least == most and (above or below)):
        return f"{_at(path)}no number is between {says_low} and {says_high}"
    whole = any("integer" in names and "number" not in names for names in map(_type_names, held))
    first = math.floor(least) + 1 if above else math.ceil(least)
    if whole and (first > most or (below and first == most)):
        return f"{_at(path)}no whole number is between {says_low} and {says_high}"
    return ""


def _bound(held: Parts, closed: str, exclusive: str, sign: int) -> tuple[float, bool, str] | None:
    """Return the narrowest bound on one side, whether it is itself excluded, and the keyword with its value."""
    found = [
        (sign * p.schema[name], name == exclusive, f"{name} {p.schema[name]}")
        for p in held
        for name in (closed, exclusive)
        if name in p.schema
    ]
    value, excluded, says = max(found, default=(None, False, ""))
    return None if value is None else (sign * value, excluded, says)


def _limits(held: Parts, low: str, high: str) -> tuple[float, float]:
    return (
        max((p.schema[low] for p in held if low in p.schema), default=0),
        min((p.schema[high] for p in held if high in p.schema), default=math.inf),
    )


def _range(held: Parts, path: str, low: str, high: str) -> str:
    least, most = _limits(held, low, high)
    return f"{_at(path)}{low} {least} is above {high} {most}" if least > most else ""


def _type_names(part: SchemaPart) -> list[str]:
    names = part.schema.get("type", [])
    return [names] if isinstance(names, str) else list(names)


def _types(held: Parts) -> tuple[set[str], list[str]]:
    """Return the types that all parts allow, whole numbers counting as numbers, and the types as they are named;
    without any `type` those that the keywords are about."""
    named = [names for part in held if (names := _type_names(part))]
    if not named:
        return {kind for kind, words in SPEAKS_OF.items() if any(p.schema.keys() & set(words) for p in held)}, []
    sets = [{"number" if name == "integer" else name for name in names} for names in named]
    return set.intersection(*sets), [" or ".join(names) for names in named]


def _at(path: str) -> str:
    return f"at {path}: " if path else ""
