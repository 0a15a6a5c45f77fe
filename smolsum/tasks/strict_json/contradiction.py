"""Schemas that no value satisfies, found before anybody is asked for one.

What a place has to be is a list of parts that hold together: a schema, what its `$ref` and `allOf` add, and the same of
what surrounds it. A place is impossible where its parts allow no value, no type, or of every type nothing; only places
that must exist are looked at.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any, NamedTuple

from smolsum.tasks.strict_json.schema import unreadable, validator_of

SPEAKS_OF = {
    "object": ("properties", "required", "minProperties", "maxProperties", "additionalProperties", "propertyNames"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"),
    "string": ("minLength", "maxLength", "pattern"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""the type that a schema without `type` means, by its keywords"""
FLATTENED = frozenset({"allOf", "anyOf", "oneOf", "$ref"})


class Part(NamedTuple):
    """A schema that a place has to satisfy, and the references that led to it: met again, they lead on for ever."""

    schema: Any
    passed: frozenset[str] = frozenset()


Parts = Sequence[Part]


def contradiction(schema: Any) -> str:
    """Returns what is wrong with a JSON Schema, and where: it is none, or no value can satisfy it. Empty for a good
    one.

    A schema without `type` means what its keywords speak of: with `minLength` a string. Seen are impossible types,
    values, ranges, counts, keys and items, through `$ref`, `allOf`, `anyOf` and `oneOf`; a contradiction by `not`,
    `if`, `pattern`, `dependentSchemas` or `unevaluated…` goes unseen.
    """
    from referencing import Registry  # not before it is needed
    from referencing.jsonschema import DRAFT202012

    if problem := unreadable(schema):
        return problem
    registry = Registry().with_resource("", DRAFT202012.create_resource(schema))
    search = _Search(validator_of(schema), registry.resolver())
    return search.problem([Part(schema)], "")


@dataclass(frozen=True)
class _Search:
    """A look through a schema, whose validator and references it needs."""

    validator: Any
    resolver: Any

    def problem(self, parts: Parts, path: str) -> str:
        """Why nothing can stand at a place; empty where something may."""
        held, why = self._held(parts, path)
        if why:
            return why
        listed = [p.schema.get("enum", [p.schema.get("const")]) for p in held if p.schema.keys() & {"enum", "const"}]
        if listed:
            validators = [self.validator.evolve(schema=part.schema) for part in held]
            good = any(all(one.is_valid(value) for one in validators) for value in listed[0])
            return "" if good else f"{_where(path)}none of the allowed values {listed[0]} satisfies the rest"
        types, asked = _types(held)
        if asked and not types:
            return f"{_where(path)}it is to be {' and '.join(asked)} at once"
        checks: dict[str, Callable[[Parts, str], str]] = {
            "object": self._object, "array": self._array, "string": _string, "number": _number,
        }  # fmt: skip
        found = [checks[kind](held, path) if kind in checks else "" for kind in sorted(types)]
        return found[0] if found and all(found) else self._branches(held, path)

    def _held(self, parts: Parts, path: str) -> tuple[list[Part], str]:
        """All parts, those behind references and `allOf` among them; or why there is nothing that holds."""
        held: list[Part] = []
        queue = list(parts)
        while queue:
            schema, passed = queue.pop(0)
            if schema is False:
                return [], f"{_where(path)}nothing is allowed"
            if schema is True:
                continue
            held.append(Part(schema, passed))
            if reference := schema.get("$ref"):
                if reference in passed:
                    return [], f"{_where(path)}{reference!r} asks for itself without end"
                queue.append(Part(self.resolver.lookup(reference).contents, passed | {reference}))
            queue += [Part(part, passed) for part in schema.get("allOf", ())]
        return held, ""

    def _branches(self, held: Parts, path: str) -> str:
        bare = [Part({k: v for k, v in p.schema.items() if k not in FLATTENED}, p.passed) for p in held]
        for schema, passed in held:
            for keyword in ("anyOf", "oneOf"):
                found = [self.problem([*bare, Part(branch, passed)], path) for branch in schema.get(keyword, ())]
                if found and all(found):
                    return f"{found[0]} (and so with every other branch of {keyword})" if found[1:] else found[0]
        return ""

    def _object(self, held: Parts, path: str) -> str:
        required = list(dict.fromkeys(key for p in held for key in p.schema.get("required", ())))
        for key in required:  # grows while it is gone through
            for part in held:
                needed = part.schema.get("dependentRequired", {}).get(key, ())
                required += [one for one in needed if one not in required]
        least, most = _limits(held, "minProperties", "maxProperties")
        if len(required) > most:
            return f"{_where(path)}{len(required)} keys are required, and {most} allowed"
        for part in held:
            known = part.schema.get("properties", {})
            if part.schema.get("additionalProperties") is not False or part.schema.get("patternProperties"):
                continue
            if unknown := [key for key in required if key not in known]:
                return f"{_where(path)}the required key {unknown[0]!r} is not among the only ones allowed"
            if least > len(known):
                return f"{_where(path)}{least} keys are asked for, and {len(known)} allowed"
        for key in required:
            names = [Part(p.schema["propertyNames"], p.passed) for p in held if "propertyNames" in p.schema]
            if names and self.problem([*names, Part({"const": key})], path):
                return f"{_where(path)}the required key {key!r} is not what propertyNames allows"
            inner = [Part(schema, p.passed) for p in held for schema in _of_key(p.schema, key)]
            if why := self.problem(inner, f"{path}.{key}".strip(".")):
                return why
        return _range(held, path, "minProperties", "maxProperties")

    def _array(self, held: Parts, path: str) -> str:
        least, _ = _limits(held, "minItems", "maxItems")
        in_front = max((len(p.schema.get("prefixItems", ())) for p in held), default=0)
        for place in range(min(in_front + 1, int(least))):
            name = f"{path}[{place}]" if place < in_front else f"{path}[]"
            if why := self.problem(_items(held, place), name):
                return why
        rest = _items(held, in_front)
        held_in = [p for p in held if "contains" in p.schema and p.schema.get("minContains", 1) and not in_front]
        for schema, passed in held_in:
            if why := self.problem([*rest, Part(schema["contains"], passed)], f"{path}[]"):
                return why
        if any(p.schema.get("uniqueItems") for p in held) and not in_front and least > (few := self._few(rest)):
            return f"{_where(path)}{least} different items are asked for, and there are {few} to choose from"
        return _range(held, path, "minItems", "maxItems")

    def _few(self, parts: Parts) -> float:
        """No fewer than the number of different values that a place can have."""
        held, _ = self._held(parts, "")
        sizes = [len(p.schema["enum"]) for p in held if "enum" in p.schema] + [1 for p in held if "const" in p.schema]
        types, _ = _types(held)
        if types and types <= {"boolean", "null"}:
            sizes.append(2 * ("boolean" in types) + ("null" in types))
        return min(sizes, default=math.inf)


def _of_key(schema: Mapping[str, Any], key: str) -> Iterator[Any]:
    """What a schema says of the value of a key."""
    named = [schema["properties"][key]] if key in schema.get("properties", {}) else []
    named += [part for pattern, part in schema.get("patternProperties", {}).items() if re.search(pattern, key)]
    yield from named or [schema.get("additionalProperties", True)]


def _items(held: Parts, place: int) -> list[Part]:
    """What is said of an array's item at a place."""
    found = []
    for schema, passed in held:
        in_front = schema.get("prefixItems", ())
        found.append(Part(in_front[place] if place < len(in_front) else schema.get("items", True), passed))
    return found


def _string(held: Parts, path: str) -> str:
    return _range(held, path, "minLength", "maxLength")


def _number(held: Parts, path: str) -> str:
    """Whether there is a number above every least one, below every largest, and a multiple of every step."""
    low, high = _ends(held, "minimum", "exclusiveMinimum", 1), _ends(held, "maximum", "exclusiveMaximum", -1)
    if low and high and (low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1]))):
        return f"{_where(path)}no number is between {low[2]} and {high[2]}"
    steps = [Fraction(str(p.schema["multipleOf"])) for p in held if "multipleOf" in p.schema]
    if any("integer" in named and "number" not in named for named in map(_named, held)):
        steps.append(Fraction(1))
    if not (low and high and steps):
        return ""
    step = reduce(_common, steps)
    first = math.ceil(low[0] / step) * step
    first += step if low[1] and first == low[0] else 0
    if first > high[0] or (high[1] and first == high[0]):
        kind = "whole number" if step == 1 else f"multiple of {step}"
        return f"{_where(path)}no {kind} is between {low[2]} and {high[2]}"
    return ""


def _common(a: Fraction, b: Fraction) -> Fraction:
    """The least common multiple."""
    return Fraction(math.lcm(a.numerator, b.numerator), math.gcd(a.denominator, b.denominator))


def _ends(held: Parts, closed: str, open_: str, sign: int) -> tuple[Fraction, bool, str] | None:
    """The narrowest end of a range on one side, whether it is itself outside, and what says so."""
    found = [
        (sign * Fraction(str(p.schema[name])), name == open_, f"{name} {p.schema[name]}")
        for p in held
        for name in (closed, open_)
        if name in p.schema
    ]
    if not found:
        return None
    value, is_open, says = max(found)
    return sign * value, is_open, says


def _limits(held: Parts, low: str, high: str) -> tuple[float, float]:
    return (
        max((p.schema[low] for p in held if low in p.schema), default=0),
        min((p.schema[high] for p in held if high in p.schema), default=math.inf),
    )


def _range(held: Parts, path: str, low: str, high: str) -> str:
    least, most = _limits(held, low, high)
    return f"{_where(path)}{low} {least} is above {high} {most}" if least > most else ""


def _named(part: Part) -> list[str]:
    """The types that a schema lists."""
    named = part.schema.get("type", [])
    return [named] if isinstance(named, str) else list(named)


def _types(held: Parts) -> tuple[set[str], list[str]]:
    """The types that all parts allow, whole numbers counting as numbers, and what was asked for; without any `type`
    those that the keywords speak of."""
    asked = [named for part in held if (named := _named(part))]
    if not asked:
        spoken = {kind for kind, words in SPEAKS_OF.items() if any(p.schema.keys() & set(words) for p in held)}
        return spoken, []
    sets = [{"number" if kind == "integer" else kind for kind in named} for named in asked]
    return set.intersection(*sets), [" or ".join(named) for named in asked]


def _where(path: str) -> str:
    return f"at {path}: " if path else ""
