"""The library's validator of a JSON Schema (draft 2020-12), which never fetches anything."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any


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
