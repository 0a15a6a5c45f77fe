"""The kinds of values that settings have, and the check of a value against its kind.

A kind is a type with its range: `Annotated[type, Rule]`.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from ipaddress import AddressValueError, IPv6Address
from typing import Annotated, Any, Literal, get_args, get_origin

from smolsum.errors import UsageError


@dataclass(frozen=True)
class Rule:
    """A condition on a value: its words in error messages, the test, and the hint, by default to leave it out."""

    words: str
    holds: Callable[[Any], bool]
    hint: str = ""


TRACKERS = ("trackio", "wandb", "tensorboard", "mlflow")
"""Experiment trackers that a run can be mirrored to."""


def names_in(text: str) -> list[str]:
    """The names in a setting that has several, separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def worker_urls(text: str) -> list[str]:
    """The URLs in a value of `workers.urls`."""
    return [url.rstrip("/") for url in names_in(text)]


def _each_once(names: list[str], holds: Callable[[str], bool]) -> bool:
    """Whether there are names, each of which holds, and none twice."""
    return len(names) == len(set(names)) > 0 and all(map(holds, names))


def _is_band(name: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z][\w-]*", name, re.ASCII))


def _is_worker(url: str) -> bool:
    """Whether this is a scheme, a host and perhaps a port, and nothing else."""
    match = re.fullmatch(r"https?://(\[([0-9a-f:.]+)\]|[^\s/:@?#\[\]]+)(:(\d{1,5}))?", url, re.IGNORECASE)
    try:
        if match and match[2]:
            IPv6Address(match[2])
    except AddressValueError:
        return False
    return match is not None and 0 < int(match[4] or 80) < 2**16


Count = Annotated[int, Rule("0 or more", lambda n: n >= 0)]
PositiveCount = Annotated[int, Rule("1 or more", lambda n: n >= 1)]
Positive = Annotated[float, Rule("above 0", lambda x: x > 0)]
NonNegative = Annotated[float, Rule("0 or more", lambda x: x >= 0)]
Share = Annotated[float, Rule("between 0 and 1", lambda x: 0 <= x <= 1)]
Decay = Annotated[float, Rule("at least 0 and below 1", lambda x: 0 <= x < 1)]
Text = Annotated[str, Rule("a text that is not blank", lambda s: bool(s.strip()))]
Seed = Annotated[int, Rule("between 0 and 4294967295", lambda n: 0 <= n < 2**32)]
GroupSize = Annotated[int, Rule("2 or more, as an advantage compares rollouts", lambda n: n >= 2)]
Floor = Annotated[float, Rule("below 0", lambda x: x < 0)]
Bits = Annotated[int, Rule("0 (not quantised), 4 or 8 bits", lambda n: n in (0, 4, 8))]
Rank = Annotated[int, Rule("1 or more (8 fits most models)", lambda n: n >= 1)]
LowerClip = Annotated[float, Rule("above 0 and below 1", lambda x: 0 < x < 1)]
Cap = Annotated[float, Rule("1 or more, as a token drawn by the policy itself weighs 1", lambda x: x >= 1)]
WeightFloor = Annotated[
    float, Rule("at least 0 and below 1, as a token drawn by the policy itself weighs 1", lambda x: 0 <= x < 1)
]
_PLAIN = "a plain name (letters, digits, '.', '_' and '-', starting with a letter or digit)"
StageName = Annotated[
    str,
    Rule(_PLAIN, lambda s: bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*", s, re.ASCII))),
    # also in other letters, as some disks do not tell them apart
    Rule("other than that of the start's evaluation", lambda s: s.lower() != "start", "call it sft, or what it does"),
]
RunName = Annotated[str, Rule(_PLAIN, lambda s: bool(re.fullmatch(r"([A-Za-z0-9][\w.-]*)?", s, re.ASCII)))]
WorkerUrls = Annotated[
    str,
    Rule(
        "URLs of workers, each once",
        lambda s: not s or _each_once(worker_urls(s), _is_worker),
        "--worker http://HOST:PORT, as serve-worker prints it",
    ),
]
Trackers = Annotated[
    str,
    Rule(
        f"names of trackers ({', '.join(TRACKERS)}), each once",
        lambda s: not s or _each_once(names_in(s), TRACKERS.__contains__),
        f"--track {TRACKERS[0]}",
    ),
]
Bands = Annotated[
    str,
    Rule(
        "two names or more, each once",
        lambda s: len(names_in(s)) > 1 and _each_once(names_in(s), _is_band),
        "--set difficulty.bands=easy,medium,hard",
    ),
]
StartPrompts = Annotated[
    str,
    Rule(
        "auto, all or a whole number above 0",
        lambda s: s in ("auto", "all") or bool(re.fullmatch(r"0*[1-9]\d{0,14}", s, re.ASCII)),
        "--set train.start_prompts=32, or all",
    ),
]
Thinking = Literal["template", "off"]
Schedule = Literal["constant", "linear", "cosine"]
Course = Literal["linear", "cosine"]
LossKind = Literal["grpo", "study", "dr_grpo", "dapo", "gspo", "cispo"]
KlEstimate = Literal["k1", "k2", "k3"]
AdvantageScale = Literal["group", "batch", "none", "gdpo"]
LengthCredit = Literal["all", "ends"]
Learning = Literal["rewards", "best", "recombined", "references"]
Hindsight = Literal["ends", "texts"]
Guard = Literal["off", "warn", "stop", "rollback"]
ConstraintMethod = Literal["sum", "gdpo", "lagrange", "pid", "gate"]
AdvantageStd = Literal["sample", "population"]
Masking = Literal["auto", True, False]
Correction = Literal["none", "token_truncate", "sequence_truncate", "token_mask", "sequence_mask"]
_NAMES = {str: "a text in quotes", int: "a whole number", float: "a number", bool: "true or false", dict: "a table"}


def base_type(hint: Any) -> Any:
    """Return a field's plain type: `str` for texts and choices, else `int`, `float`, `bool` or `dict`. For a choice of
    words, true and false it is `bool`, so that `--set` reads the last two as TOML."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) is Literal and bool in map(type, get_args(hint)):
        return bool
    return {Literal: str, dict: dict}.get(get_origin(hint), hint)


def toml_word(choice: str | bool) -> str:
    """Return a choice as it stands in TOML, without quotes."""
    return str(choice).lower() if isinstance(choice, bool) else choice


def check_value(key: str, hint: Any, value: object, source: str) -> Any:
    """Return `value` as the field's type; UsageError names `source` where type, choice or range is wrong."""
    kind, problem, advice = base_type(hint), "", f"leave {key} out to get its default"
    choices = {toml_word(choice): choice for choice in get_args(hint)} if get_origin(hint) is Literal else {}
    listed = f"one of {', '.join(choices)}"
    if kind is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    if kind is str and not choices and type(value) is int:  # a number such as those that --set takes as text
        value = str(value)
    if type(value) is not kind and type(value) not in map(type, choices.values()):
        problem = listed if choices and kind is bool else _NAMES[kind]
    elif isinstance(value, int) and abs(value) >= 2**53:
        problem = "below 2^53 in size"
    elif isinstance(value, float) and not math.isfinite(value):
        problem = "a finite number"
    elif choices and value not in choices.values():
        problem = listed
    elif get_origin(hint) is Annotated:
        broken = next((rule for rule in get_args(hint)[1:] if not rule.holds(value)), Rule("", bool))
        problem, advice = broken.words, broken.hint or advice
    if problem:
        if choices and isinstance(value, str):
            close = get_close_matches(value, choices, n=1)
            advice = f"did you mean {close[0]}?" if close else advice  # the message lists them all
        raise UsageError(f"{source}: {key} must be {problem}, got {value!r}", hint=advice)
    return value
