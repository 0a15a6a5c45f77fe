"""Prompts from a seed: as many of each level as asked for, no two alike, none in two splits.

Twenty-four templates, eight of each level, make a prompt and the JSON Schema that its answer has to satisfy. A template
draws keys, types, counts and allowed values at random. The text asks for exactly what the schema demands.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

from smolsum.config.stages import apportion
from smolsum.errors import UsageError
from smolsum.tasks.data import Example, Split, generated_split
from smolsum.tasks.strict_json.settings import StrictJsonConfig

Schema = dict[str, Any]

STRINGS = ("name", "title", "city", "email", "color", "brand", "street", "country", "team", "code", "note", "author")
INTEGERS = ("age", "year", "count", "rank", "floor", "pages", "stock", "level", "score", "seats")
NUMBERS = ("price", "weight", "height", "rating", "speed", "width")
BOOLEANS = ("active", "paid", "open", "new", "public", "ready")
TYPES = {"string": STRINGS, "integer": INTEGERS, "number": NUMBERS, "boolean": BOOLEANS}
CHOICES = {
    "status": ("todo", "doing", "done", "late"),
    "size": ("small", "medium", "large", "huge"),
    "role": ("admin", "editor", "guest", "owner"),
    "shape": ("circle", "square", "star", "cube"),
    "priority": ("low", "normal", "high", "urgent"),
}
"""keys with the values that a prompt may allow"""
PLURALS = ("items", "users", "books", "tasks", "rooms", "orders", "cars", "songs")
GROUPS = ("info", "owner", "address", "meta", "contact", "limits", "engine", "place")
WORDS = ("cities", "colors", "animals", "names", "tools", "fruits")


@dataclass(frozen=True)
class PromptSpec:
    """One drawing of a template: the prompt, the schema of a right answer, and the least nesting of objects, if any."""

    text: str
    schema: Schema
    depth: int | None = None


@dataclass(frozen=True)
class Template:
    """A kind of prompt of one level."""

    name: str
    level: str
    draw: Callable[[Random], PromptSpec]


def _typed(rng: Random, count: int, taken: Sequence[str] = ()) -> dict[str, Schema]:
    """Return properties of `count` keys with types, the first a text."""
    kinds = ["string", *rng.choices(list(TYPES), weights=(4, 4, 2, 2), k=count - 1)]
    found: dict[str, Schema] = {}
    for kind in kinds:
        key = rng.choice([key for key in TYPES[kind] if key not in found and key not in taken])
        found[key] = {"type": kind}
    return found


def _choice(rng: Random) -> dict[str, Schema]:
    """Return a key that may have one of a few values."""
    key = rng.choice(list(CHOICES))
    return {key: {"type": "string", "enum": rng.sample(CHOICES[key], rng.randint(2, 3))}}


def _object(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _exactly(count: int, items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": count, "maxItems": count}


def _keys(properties: dict[str, Schema]) -> str:
    """Return the keys in words: "name" (string), "size" (small or large)."""
    return ", ".join(
        f'"{key}" ({" or ".join(p["enum"]) if "enum" in p else p["type"]})' for key, p in properties.items()
    )


def _with(properties: dict[str, Schema]) -> str:
    return f"an object with the keys {_keys(properties)}"


def _many(count: int, properties: dict[str, Schema]) -> str:
    return f"array of exactly {count} objects, each with the keys {_keys(properties)}"


def _texts(count: int) -> str:
    return f"an array of exactly {count} strings"


def _strings_of(count: int) -> Schema:
    return _exactly(count, {"type": "string"})


def _flat(rng: Random) -> PromptSpec:
    keys = _typed(rng, rng.randint(2, 4))
    return PromptSpec(f"Write a JSON object with the keys {_keys(keys)}.", _object(keys))


def _strings(rng: Random) -> PromptSpec:
    n, what = rng.randint(2, 6), rng.choice(WORDS)
    return PromptSpec(f"Write a JSON array of exactly {n} strings: {what}.", _strings_of(n))


def _integers(rng: Random) -> PromptSpec:
    n, most = rng.randint(2, 6), rng.randint(10, 99)
    schema = _exactly(n, {"type": "integer", "exclusiveMaximum": most})
    return PromptSpec(f"Write a JSON array of exactly {n} integers below {most}.", schema)


def _one_list(rng: Random) -> PromptSpec:
    n, what = rng.randint(2, 5), rng.choice(WORDS)
    return PromptSpec(f'Write a JSON object with the key "{what}": {_texts(n)}.', _object({what: _strings_of(n)}))


def _flags(rng: Random) -> PromptSpec:
    keys = {key: {"type": "boolean"} for key in rng.sample(BOOLEANS, rng.randint(2, 4))}
    return PromptSpec(f"Write a JSON object with the keys {_keys(keys)}.", _object(keys))


def _enum(rng: Random) -> PromptSpec:
    keys = _typed(rng, 1) | _choice(rng)
    return PromptSpec(f"Write a JSON object with the keys {_keys(keys)}.", _object(keys))


def _at_least_keys(rng: Random) -> PromptSpec:
    n, keys = rng.randint(2, 4), _typed(rng, 1)
    schema = _object(keys) | {"minProperties": n}
    return PromptSpec(f"Write a JSON object with at least {n} keys, one of them {_keys(keys)}.", schema)


def _at_least_numbers(rng: Random) -> PromptSpec:
    n, most = rng.randint(2, 5), rng.randint(10, 99)
    schema = {"type": "array", "items": {"type": "number", "exclusiveMaximum": most}, "minItems": n}
    return PromptSpec(f"Write a JSON array of at least {n} numbers below {most}.", schema)


def _records(rng: Random) -> PromptSpec:
    n, keys = rng.randint(2, 4), _typed(rng, rng.randint(2, 3))
    return PromptSpec(f"Write a JSON {_many(n, keys)}.", _exactly(n, _object(keys)))


def _nested(rng: Random) -> PromptSpec:
    keys, group = _typed(rng, rng.randint(1, 2)), rng.choice(GROUPS)
    inner = _typed(rng, 2, list(keys))
    text = f'Write a JSON object with the keys {_keys(keys)} and "{group}": {_with(inner)}.'
    return PromptSpec(text, _object(keys | {group: _object(inner)}), 2)


def _enum_records(rng: Random) -> PromptSpec:
    n, keys = rng.randint(2, 4), _typed(rng, 1) | _choice(rng)
    return PromptSpec(f"Write a JSON {_many(n, keys)}.", _exactly(n, _object(keys)))


def _named_records(rng: Random) -> PromptSpec:
    n, plural, keys = rng.randint(2, 3), rng.choice(PLURALS), _typed(rng, 2)
    schema = _object({plural: _exactly(n, _object(keys))})
    return PromptSpec(f'Write a JSON object with the key "{plural}": an {_many(n, keys)}.', schema)


def _two_lists(rng: Random) -> PromptSpec:
    (a, b), n, m = rng.sample(WORDS, 2), rng.randint(2, 4), rng.randint(2, 4)
    text = f'Write a JSON object with the keys "{a}": {_texts(n)}, and "{b}": {_texts(m)}.'
    return PromptSpec(text, _object({a: _strings_of(n), b: _strings_of(m)}))


def _wide_records(rng: Random) -> PromptSpec:
    n, m, keys = rng.randint(2, 3), rng.randint(2, 3), _typed(rng, 1)
    schema = {"type": "array", "items": _object(keys) | {"minProperties": m}, "minItems": n}
    text = f"Write a JSON array of at least {n} objects, each with at least {m} keys, one of them {_keys(keys)}."
    return PromptSpec(text, schema)


def _nested_enum(rng: Random) -> PromptSpec:
    keys, group = _choice(rng), rng.choice(GROUPS)
    inner = _typed(rng, rng.randint(2, 3))
    text = f'Write a JSON object with the keys {_keys(keys)} and "{group}": {_with(inner)}.'
    return PromptSpec(text, _object(keys | {group: _object(inner)}), 2)


def _mixed(rng: Random) -> PromptSpec:
    keys, n, what = _typed(rng, rng.randint(2, 3)), rng.randint(2, 4), rng.choice(WORDS)
    text = f'Write a JSON object with the keys {_keys(keys)} and "{what}": {_texts(n)}.'
    return PromptSpec(text, _object(keys | {what: _strings_of(n)}))


def _nested_records(rng: Random) -> PromptSpec:
    n, keys, group = rng.randint(2, 3), _typed(rng, 1), rng.choice(GROUPS)
    inner = _typed(rng, 2, list(keys))
    text = f'Write a JSON {_many(n, keys)} and "{group}": {_with(inner)}.'
    return PromptSpec(text, _exactly(n, _object(keys | {group: _object(inner)})), 2)


def _chain(rng: Random) -> PromptSpec:
    (a, b), inner = rng.sample(GROUPS, 2), _typed(rng, 2)
    text = f'Write a JSON object with the key "{a}": an object with the key "{b}": {_with(inner)}.'
    return PromptSpec(text, _object({a: _object({b: _object(inner)})}), 3)


def _enum_nested_records(rng: Random) -> PromptSpec:
    n, plural, keys, group = 2, rng.choice(PLURALS), _choice(rng), rng.choice(GROUPS)
    inner = _typed(rng, 2)
    text = f'Write a JSON object with the key "{plural}": an {_many(n, keys)} and "{group}": {_with(inner)}.'
    return PromptSpec(text, _object({plural: _exactly(n, _object(keys | {group: _object(inner)}))}), 3)


def _deep(rng: Random) -> PromptSpec:
    (a, b, c), inner = rng.sample(GROUPS, 3), _typed(rng, 2)
    within = f'an object with the key "{b}": an object with the key "{c}": {_with(inner)}'
    schema = _object({a: _object({b: _object({c: _object(inner)})})})
    return PromptSpec(f'Write a JSON object with the key "{a}": {within}.', schema, 4)


def _listed_records(rng: Random) -> PromptSpec:
    n, m, keys, what = rng.randint(2, 3), rng.randint(2, 3), _typed(rng, 1), rng.choice(WORDS)
    listed = {what: {"type": "array", "items": {"type": "string"}, "minItems": m}}
    text = f'Write a JSON {_many(n, keys)} and "{what}": an array of at least {m} strings.'
    return PromptSpec(text, _exactly(n, _object(keys | listed)))


def _two_tables(rng: Random) -> PromptSpec:
    (a, b), n, m = rng.sample(PLURALS, 2), rng.randint(2, 3), rng.randint(2, 3)
    one, two = _typed(rng, 2), _typed(rng, 1)
    other = f"an array of exactly {m} objects, each with the key {_keys(two)}"
    text = f'Write a JSON object with the keys "{a}": an {_many(n, one)}, and "{b}": {other}.'
    return PromptSpec(text, _object({a: _exactly(n, _object(one)), b: _exactly(m, _object(two))}), 2)


def _nested_table(rng: Random) -> PromptSpec:
    group, plural, n, keys = rng.choice(GROUPS), rng.choice(PLURALS), rng.randint(2, 3), _typed(rng, 2)
    text = f'Write a JSON object with the key "{group}": an object with the key "{plural}": an {_many(n, keys)}.'
    return PromptSpec(text, _object({group: _object({plural: _exactly(n, _object(keys))})}), 3)


def _full_records(rng: Random) -> PromptSpec:
    n, chosen = rng.randint(2, 3), _choice(rng)
    keys = _typed(rng, 2) | chosen
    m = len(keys) + 1
    schema = {"type": "array", "items": _object(keys) | {"minProperties": m}, "minItems": n}
    text = f"Write a JSON array of at least {n} objects, each with at least {m} keys, among them {_keys(keys)}."
    return PromptSpec(text, schema)


DRAWS = {
    "simple": (_flat, _strings, _integers, _one_list, _flags, _enum, _at_least_keys, _at_least_numbers),
    "medium": (_records, _nested, _enum_records, _named_records, _two_lists, _wide_records, _nested_enum, _mixed),
    "hard": (
        _nested_records, _chain, _enum_nested_records, _deep,
        _listed_records, _two_tables, _nested_table, _full_records,
    ),
}  # fmt: skip
LEVELS = tuple(DRAWS)
TEMPLATES = tuple(
    Template(draw.__name__.removeprefix("_").replace("_", "-"), level, draw)
    for level, draws in DRAWS.items()
    for draw in draws
)
"""in the order in which they take turns; a template has the name of its function"""
HELD_OUT = ("flags", "at-least-numbers", "nested-enum", "mixed", "nested-table", "full-records")
"""two of each level, for the evaluation splits only, if templates are held out"""
DRAWN = ("test", "validation", "train")
"""the splits in the order of drawing, so that a larger training split leaves the others unchanged"""
BALANCED = dict.fromkeys(LEVELS, 1 / len(LEVELS))
"""the shares of the levels in a balanced test split"""
PATIENCE = 60
"""drawings in a row without a new prompt, for each template, before a level counts as exhausted"""


def _mix(task: StrictJsonConfig) -> dict[str, float]:
    """Return the share of each level. Raises UsageError unless they make 1."""
    mix = {level: getattr(task, level) for level in LEVELS}
    if abs(sum(mix.values()) - 1) > 1e-6:
        shares = ", ".join(f"task.{level} = {share:g}" for level, share in mix.items())
        raise UsageError(
            f"the shares of the levels make {sum(mix.values()):g}, not 1: {shares}",
            hint="--set task.simple=0.2 --set task.medium=0.3 --set task.hard=0.5",
        )
    return mix


def split_of(task: StrictJsonConfig, split: str) -> Split:
    """Return the split of prompts that these settings make. Raises UsageError for shares that do not make 1, and for a
    level with too few different prompts."""
    return _splits(task)[split]


@lru_cache(maxsize=4)
def _splits(task: StrictJsonConfig) -> dict[str, Split]:
    known, made = set[str](), {}
    for name in DRAWN:
        rng, examples = Random(f"{task.data_seed} {name}"), []
        mix = BALANCED if name == "test" and task.balanced_test else _mix(task)
        for level, count in apportion(getattr(task, f"{name}_prompts"), mix).items():
            own = [t for t in TEMPLATES if t.level == level]
            if task.held_out_templates:
                own = [t for t in own if (t.name in HELD_OUT) == (name != "train")]
            examples += [_draw(own, rng, known, level, n) for n in range(count)]
        rng.shuffle(examples)
        made[name] = generated_split(
            name, (Example(f"{name}-{n}", text, (), metadata) for n, (text, metadata) in enumerate(examples, start=1))
        )
    return made


def _draw(own: list[Template], rng: Random, known: set[str], level: str, made: int) -> tuple[str, dict[str, Any]]:
    """Return a new prompt; the templates take turns."""
    for attempt in range(PATIENCE * len(own)):
        template = own[(made + attempt) % len(own)]
        asked = template.draw(rng)
        if asked.text not in known:
            known.add(asked.text)
            depth = {"depth": asked.depth} if asked.depth else {}
            return asked.text, {"level": level, "template": template.name, "schema": asked.schema} | depth
    raise UsageError(
        f"the {len(own)} templates of level {level} make no more than about {made} different prompts a split",
        hint="ask for fewer prompts (task.train_prompts), or for less of that level",
    )
