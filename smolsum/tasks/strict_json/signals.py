"""The seven signals of strict JSON, each a pure function of a completion (`schema` also of the prompt).

The formulas are those of grpo-strict-generation; where its texts leave one open, the function documents the choice.
"""

import re
from collections.abc import Mapping, Sequence

from smolsum.config.sections import Config, TaskConfig
from smolsum.rewards import REWARDS
from smolsum.rewards.signal import Signal, Values, described, score_each
from smolsum.tasks.strict_json.answer import FENCE, blocks, take_apart
from smolsum.tasks.strict_json.schema import conformance
from smolsum.tasks.strict_json.settings import StrictJsonConfig, settings
from smolsum.types import Prompt, RolloutGroup

PLACEHOLDER = frozenset({"your", "reasoning", "here", "think", "thinking", "thoughts"})
"""words that, alone and in any order, only repeat what was asked for"""
OPEN_QUOTE = '"'
BRACKET = re.compile(r"[{\[]")
QUOTED = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|(?P<open>\\?\Z))', re.DOTALL)
"""a text in quotes, or everything after an open quote; possessive, so that the time is linear"""
LOOP = re.compile(r"(?=\S)(.{2,30}?)\1{4,}")
"""a unit of 2 to 30 characters five times in a row, within a line; indentation does not count"""


def format_reward(text: str) -> float:
    """Return 1 with a closed block marked as JSON, 0.5 with another closed block, else 0."""
    return {"json": 1.0, "other": 0.5, "none": 0.0}[take_apart(text).fence]


def validity_reward(text: str) -> float:
    """Return 1 for JSON that parses; else by where the first error is: beyond 85 % of the block 0.7, beyond 40 % 0.4,
    before 0.2, nowhere in particular 0.1; 0 without a block."""
    answer = take_apart(text)
    if answer.block is None:
        return 0.0
    if answer.parses:
        return 1.0
    if answer.error_at is None:
        return 0.1
    return 0.7 if answer.error_at > 0.85 else 0.4 if answer.error_at > 0.4 else 0.2


def schema_reward(text: str, prompt: Prompt) -> float:
    """Return the mean of the checks of the prompt's schema (`conformance`), in [0, 1]; 0 if it does not parse."""
    answer = take_apart(text)
    if not answer.parses:
        return 0.0
    return conformance(answer.value, prompt.metadata["schema"], prompt.metadata.get("depth"))


def reasoning_reward(text: str) -> float:
    """Return -0.5 without thoughts or with a placeholder for them (dots, or nothing but `PLACEHOLDER`), -0.2 for fewer
    than 10 characters, then (characters - 10) / 70 up to 1."""
    thought = take_apart(text).thought
    if thought is None or (thought and PLACEHOLDER.issuperset(re.findall(r"\w+", thought.lower()))):
        return -0.5
    return -0.2 if len(thought) < 10 else min((len(thought) - 10) / 70, 1.0)


def truncation_reward(text: str) -> float:
    """Return 1 for a closed block or bare JSON that parses; -1 for signs of an end too soon: an open block, or from the
    first bracket on an open bracket, a comma or colon at the end, an open quote; else 0: there is no JSON that could be
    cut, or none that is cut. Prose may stand before it; brackets inside quotes are text."""
    answer = take_apart(text)
    if answer.fence != "none":
        return 1.0
    bare = answer.said.removesuffix(FENCE).rstrip()  # a closing fence after bare JSON cuts nothing off
    if FENCE not in bare and take_apart(bare).parses:
        return 1.0
    if FENCE in answer.said:
        return -1.0
    if not (begun := BRACKET.search(answer.said)):
        return 0.0
    rest = QUOTED.sub(lambda found: "" if found["open"] is None else OPEN_QUOTE, answer.said[begun.start() :])
    is_open = any(rest.count(a) > rest.count(b) for a, b in ("{}", "[]"))
    return -1.0 if is_open or rest.endswith((",", ":", OPEN_QUOTE)) else 0.0


def repetition_reward(text: str) -> float:
    """Return -1 for two blocks or a unit repeated five times in a row; a text under 80 characters is else 1; a longer
    one by the smaller of two shares, of distinct lines (from 6 lines of over 5 characters on) and of distinct trigrams
    of words (from 20 words on): above 0.5 1, above 0.3 0, else -1."""
    text = text.strip()
    if blocks(text) > 1 or LOOP.search(text):
        return -1.0
    if len(text) < 80:
        return 1.0
    lines = [line.strip() for line in text.splitlines() if len(line.strip()) > 5]
    words = text.split()
    trigrams = list(zip(words, words[1:], words[2:], strict=False)) if len(words) >= 20 else []
    shares = [len(set(units)) / len(units) for units in (lines if len(lines) >= 6 else [], trigrams) if units]
    distinct = min(shares, default=1.0)
    return 1.0 if distinct > 0.5 else 0.0 if distinct > 0.3 else -1.0


def strictness_reward(text: str) -> float:
    """Return a value by the characters outside block and thoughts: none 1, up to 10 0.5, under 20 % of the text 0,
    under 50 % -0.5, else -1. Without a closed block 0: signal `format` covers that."""
    answer = take_apart(text)
    if answer.fence == "none":
        return 0.0
    extra = len(answer.outside)
    if extra <= 10:
        return 0.5 if extra else 1.0
    share = extra / len(answer.said)
    return 0.0 if share < 0.2 else -0.5 if share < 0.5 else -1.0


@described("[0, 1]", "share of the schema's checks that hold", by_length=True)
def score_schema(groups: Sequence[RolloutGroup], config: Config) -> Values:
    """Return PxG means of the checks of each prompt's schema."""
    return [[schema_reward(rollout.text, group.prompt) for rollout in group.rollouts] for group in groups]


SIGNALS: dict[str, Signal] = {
    # an answer that was cut has no closed block and does not parse, and a loop ends at the token limit
    "format": described("[0, 1]", "one closed block, marked as JSON", by_length=True)(score_each(format_reward)),
    "validity": described("[0, 1]", "it parses, or how late the first error is", by_length=True)(
        score_each(validity_reward)
    ),
    "schema": score_schema,
    "reasoning": described("[-0.5, 1]", "thoughts of at least 80 characters before the answer")(
        score_each(reasoning_reward)
    ),
    "truncation": described("{-1, 0, 1}", "not cut off", by_length=True)(score_each(truncation_reward)),
    "repetition": described("{-1, 0, 1}", "lines and trigrams that are not said again", by_length=True)(
        score_each(repetition_reward)
    ),
    "strictness": described("[-1, 1]", "no text outside the block")(score_each(strictness_reward)),
    "overlong": REWARDS["overlong"],
}


def redistributed(weights: Mapping[str, float], settings: TaskConfig) -> Mapping[str, float]:
    """Return the weights of a stage where completions do not think: that of `reasoning` goes to the others in
    proportion, w + w / sum of the others x w_reasoning, and is 0 itself."""
    if not isinstance(settings, StrictJsonConfig) or settings.think or not weights.get("reasoning"):
        return weights
    total = sum(weights.values()) - weights["reasoning"]
    share = weights["reasoning"] / total if total else 0.0
    moved = {name: weight + weight * share for name, weight in weights.items()} | {"reasoning": 0.0}
    return moved if total else weights


def check(config: Config) -> Sequence[str]:
    """Return warnings where what is asked for and what is rewarded differ about thinking."""
    task, stages = settings(config), config.stages.items()
    found = []
    if task.think and (silent := [name for name, stage in stages if not stage.rewards.get("reasoning")]):
        found.append(
            f"task.think = true, and no weight on the signal reasoning in {_named(silent)}: thoughts are "
            f"not rewarded; --set stages.{silent[0]}.rewards.reasoning=0.25, or --strategy think-standard"
        )
    if not task.think and (moved := [name for name, stage in stages if "reasoning" in stage.rewards]):
        found.append(
            f"the signal reasoning is in {_named(moved)}, and task.think = false: the prompt asks for no thoughts, "
            "and its weight goes to the other signals in proportion; --set task.think=true"
        )
    if task.think and task.system_prompt and "<think>" not in task.system_prompt:
        found.append(
            "task.think = true, and task.system_prompt, which takes the place of its text, asks for no <think>"
        )
    return tuple(found)


def _named(stages: Sequence[str]) -> str:
    return f"stage{'s' * (len(stages) > 1)} {', '.join(stages)}"
