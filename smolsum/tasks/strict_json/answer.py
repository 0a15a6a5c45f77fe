"""What a completion says: its thoughts, its block of JSON, and what is in the block."""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

OPEN, CLOSE = "<think>", "</think>"
FENCE = "```"
LABEL = re.compile(r"```(\w*)")
JSON_LABEL = re.compile(r"```json\b", re.IGNORECASE)
DEEPEST = 100
"""levels of nested lists and objects; no template asks for a tenth of it"""
Fence = Literal["json", "other", "none"]


@dataclass(frozen=True)
class ParsedAnswer:
    """A completion taken apart. A block inside the thoughts is not an answer."""

    thought: str | None
    """the text in the first pair of think tags, stripped; None without one"""
    said: str
    """the completion without its thoughts, stripped"""
    fence: Fence
    """how the first closed block is marked: as JSON, or otherwise; or no closed block"""
    block: str | None
    """the text to parse: the content of the block; without a closed one what follows an opening fence, or the bare text
    if the completion starts with it; else None"""
    outside: str
    """the text outside the first closed block, stripped; all of it without one"""
    value: Any
    """the parsed block; None where it does not parse"""
    error: str
    """why it does not parse; empty if it does, and without a block"""
    error_at: float | None
    """where in the block parsing failed, in [0, 1]; None if unknown"""

    @property
    def parses(self) -> bool:
        """Whether there is a block, and it is JSON."""
        return self.block is not None and not self.error

    @property
    def answers(self) -> bool:
        """Whether there is a block marked as JSON, and it parses."""
        return self.fence == "json" and self.parses


class _Refused(ValueError):
    """JSON that only a lenient parser accepts."""


@lru_cache(maxsize=4096)
def take_apart(text: str) -> ParsedAnswer:
    """Return the parts of a completion, for any text."""
    thought, said = _split_thoughts(text)
    block: str | None = None
    fence: Fence = "none"
    outside = said
    if found := _first_block(said):
        label_at, start, end, fence = found
        block = said[start:end].strip()
        outside = (said[:label_at] + said[end + len(FENCE) :]).strip()
    elif label := LABEL.match(said):
        block = said[label.end() :].strip()
    elif said[:1] in ("{", "["):
        block = said
    value, error, at = (None, "", None) if block is None else _parse(block)
    return ParsedAnswer(thought, said, fence, block, outside, value, error, at)


def _split_thoughts(text: str) -> tuple[str | None, str]:
    """Return the first thoughts, stripped, or None; and the text without any, stripped. Each search continues where the
    last one ended, here and below: a pattern would start again at every tag or fence that is never closed."""
    thought, kept, place = None, [], 0
    while (start := text.find(OPEN, place)) >= 0 and (end := text.find(CLOSE, start + len(OPEN))) >= 0:
        thought = text[start + len(OPEN) : end].strip() if thought is None else thought
        kept.append(text[place:start])
        place = end + len(CLOSE)
    return thought, "".join([*kept, text[place:]]).strip()


def _first_block(said: str) -> tuple[int, int, int, Fence] | None:
    """Return where the first closed block marked as JSON, or else the first closed one, has its fence, its content's
    ends, and which of the two it is; None without a closed block."""
    kinds: tuple[tuple[re.Pattern[str], Fence], ...] = ((JSON_LABEL, "json"), (LABEL, "other"))
    for label, fence in kinds:
        if (found := label.search(said)) and (end := said.find(FENCE, found.end())) >= 0:
            return found.start(), found.end(), end, fence
    return None


def blocks(text: str) -> int:
    """Return how many closed blocks a text has."""
    count, place = 0, 0
    while (found := LABEL.search(text, place)) and (end := text.find(FENCE, found.end())) >= 0:
        count, place = count + 1, end + len(FENCE)
    return count


def _parse(block: str) -> tuple[Any, str, float | None]:
    """Return the value, or what is wrong and where. Refuses NaN, Infinity and a key given twice, which Python's own
    parser accepts."""
    try:
        value = json.loads(block, parse_constant=_no_constant, object_pairs_hook=_unique)
        return (None, "too deep", None) if _levels(value) > DEEPEST else (value, "", None)
    except json.JSONDecodeError as error:
        return None, error.msg, error.pos / max(len(block), 1)
    except _Refused as error:
        return None, str(error), None
    except (RecursionError, ValueError) as error:  # a number of thousands of digits, brackets without end
        return None, "too deep" if isinstance(error, RecursionError) else "number too long", None


def _levels(value: Any) -> int:
    """Return how many levels a value has; a number, a text and an empty list have one."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_levels, inner), default=0)


def _no_constant(name: str) -> Any:
    raise _Refused(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise _Refused("a key is given twice")
    return made


def depth(value: Any) -> int:
    """Return the nesting depth of objects that are not empty; lists do not count."""
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values())) if value else 0
    return max(map(depth, value), default=0) if isinstance(value, list) else 0
