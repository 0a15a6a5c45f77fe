"""G-Eval: DeepEval writes the judge's prompts around a criterion's steps, and knows the prices of models.

Requests, deadlines, retries and counting are ours: DeepEval's own client is half as fast, and hides what it asks. The
answer is a whole number from 0 to 10, which is scaled to [0, 1]. The only module that imports DeepEval, which takes
seconds: import it late.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

# DeepEval reads its settings on import: no telemetry, no .env, no key file
os.environ |= {
    "DEEPEVAL_TELEMETRY_OPT_OUT": "1", "DEEPEVAL_DISABLE_DOTENV": "1", "DEEPEVAL_DISABLE_LEGACY_KEYFILE": "1",
}  # fmt: skip

# isort: split
import xxhash
from deepeval.metrics import GEval
from deepeval.models import DeepEvalBaseLLM
from deepeval.models.llms.constants import OPENAI_MODELS_DATA
from deepeval.test_case import LLMTestCase, SingleTurnParams

from smolsum.llm.client import BadAnswer, Call, Declined, TokenChoice
from smolsum.types import Criterion, Seen

MAX_SCORE = 10
PARAMS: dict[Seen, SingleTurnParams] = {
    "source": SingleTurnParams.INPUT,
    "completion": SingleTurnParams.ACTUAL_OUTPUT,
    "reference": SingleTurnParams.EXPECTED_OUTPUT,
}
NOTHING = "(no text)"
"""stands for an empty text, which G-Eval refuses"""


async def judge_call(criterion: Criterion, texts: Mapping[Seen, str], *, weighted: bool = False) -> Call:
    """Ask how well a completion meets a criterion; the answer is its score in [0, 1] with the reason. A `weighted`
    score is the mean of all scores by the probabilities of their tokens. Raises Declined for texts that DeepEval
    refuses."""
    shown = {seen: text if text.strip() else NOTHING for seen, text in texts.items()}
    case = LLMTestCase(
        input=shown.get("source", NOTHING), actual_output=shown["completion"], expected_output=shown.get("reference")
    )
    model = _PromptKeeper("none")
    metric = GEval(
        name=criterion.name,
        evaluation_steps=list(criterion.steps),
        evaluation_params=[PARAMS[seen] for seen in criterion.sees],
        model=model,
        threshold=criterion.threshold,
    )
    try:
        await metric.a_measure(case, _show_indicator=False)
    except Exception as error:  # DeepEval's own, which share no base
        raise Declined(f"{type(error).__name__}: {error}") from error
    return Call(model.prompt, _json_schema(model.schema), _score, weigh=_weighted_score if weighted else None)


async def fingerprint(criterion: Criterion, *, weighted: bool = False) -> str:
    """Return the XXH3-128 hex of the criterion's prompt, DeepEval's part included, its threshold, and whether scores
    are weighted: what makes two scores of it comparable."""
    call = await judge_call(criterion, {seen: f"<{seen}>" for seen in PARAMS})
    parts = [criterion.name, str(criterion.threshold), call.prompt, *(["weighted"] if weighted else [])]
    return str(xxhash.xxh3_128_hexdigest("\n".join(parts).encode()))


def dollars(model: str, input_tokens: int, output_tokens: int) -> float | None:
    """Return what a model's tokens cost in US dollars, as DeepEval lists it; None for an unlisted model."""
    listed = OPENAI_MODELS_DATA.get(model)
    if listed is None or not listed.input_price:
        return None
    return float(input_tokens * listed.input_price + output_tokens * (listed.output_price or 0.0))


class _PromptKeeper(DeepEvalBaseLLM):  # type: ignore[misc]  # DeepEval is untyped
    """Stands in for a model of DeepEval: keeps the prompt and the class of the answer, and asks nothing."""

    prompt = ""
    schema: Any = None

    def load_model(self) -> None:
        """Nothing to load."""

    def get_model_name(self) -> str:
        """Return a name, which DeepEval requires."""
        return str(self.name)

    def generate(self, prompt: str, schema: Any = None) -> Any:
        """Refuse: DeepEval's abstract class requires the method, but `a_measure` asks through `a_generate`."""
        raise NotImplementedError("the prompt is taken through a_generate")

    async def a_generate(self, prompt: str, schema: Any = None) -> Any:
        """Keep the prompt; the answer counts for nothing."""
        self.prompt, self.schema = prompt, schema
        return schema(score=0, reason="")


@cache
def _json_schema(schema: Any) -> Any:
    """Return the JSON schema of one of DeepEval's classes."""
    return schema.model_json_schema()


def _score(found: Mapping[str, Any]) -> tuple[float, str]:
    """Return a valid score with its reason; a fraction of 1 is on another scale, as G-Eval asks for whole numbers."""
    score: Any = found.get("score")
    if isinstance(score, str):
        try:
            score = float(score)
        except ValueError:
            raise BadAnswer(f"the score is not a number: {score[:20]!r}") from None
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise BadAnswer(f"no score in the answer, but {score!r}")
    if not 0 <= score <= MAX_SCORE or 0 < score < 1:  # NaN too; a whole number of many digits is not a float
        raise BadAnswer(f"a score of {str(score)[:20]}, not one from 0 to {MAX_SCORE}")
    return score / MAX_SCORE, str(found.get("reason", ""))


def _weighted_score(found: Mapping[str, Any], tokens: Sequence[TokenChoice]) -> tuple[float, str]:
    """Return the score, as the sum of p(s) s over the scores s from 0 to 10 with the probabilities of their tokens (Liu
    et al. 2023, "G-Eval", eq. 1), with the reason.

    The probabilities are those where the answer has its score, and are scaled to a sum of 1, as an endpoint lists the
    likeliest tokens only. Raises BadAnswer where no token of the answer is its score.
    """
    score, reason = _score(found)
    chances = _chances(tokens, round(score * MAX_SCORE))
    total = math.fsum(chances.values())
    if not total > 0:
        raise BadAnswer("no probability of any score")
    return math.fsum(chance * value for value, chance in chances.items()) / total / MAX_SCORE, reason


def _chances(tokens: Sequence[TokenChoice], score: int) -> dict[int, float]:
    """Return the probability of each score where the answer has its own.

    Some models write a 10 in two tokens, so that a 1 may begin one. How much of its probability is that of a 10 is
    known where the answer took it; elsewhere all of it goes to the one of the two that is nearer to the answer.
    """
    place, before = None, ""
    for n, choice in enumerate(tokens):
        begins = choice.token.strip() in (str(score), str(score)[0])
        if begins and re.search(r'score"?\s*:?\s*"?\s*$', before):
            place = n
        before = before[-40:] + choice.token
    if place is None:
        raise BadAnswer(f"no token is the score {score}, so that it has no probability")
    chances = _numbers(tokens[place])
    if MAX_SCORE in chances or tokens[place].token.strip() == str(MAX_SCORE):
        return chances
    one = chances.pop(1, 0.0)
    after = _numbers(tokens[place + 1]) if tokens[place].token.strip() == "1" and place + 1 < len(tokens) else None
    ten = min(1.0, after.get(0, 0.0)) if after is not None else float(MAX_SCORE - score < score - 1)
    return chances | {1: one * (1 - ten), MAX_SCORE: one * ten}


def _numbers(choice: TokenChoice) -> dict[int, float]:
    """Return the probability of each number up to 10 among the tokens of a place."""
    found: dict[int, float] = {}
    for token, logprob in choice.logprobs.items():
        text = token.strip()
        if text.isdecimal() and text.isascii() and len(text) <= 2 and int(text) <= MAX_SCORE:
            found[int(text)] = found.get(int(text), 0.0) + math.exp(logprob)
    return found
