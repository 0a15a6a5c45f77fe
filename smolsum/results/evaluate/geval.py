"""G-Eval: DeepEval writes the judge's prompts around a criterion's steps, and knows the prices of models.

Requests, deadlines, retries and counting are ours: DeepEval's own client is half as fast, and hides what it asks. The
answer is a whole number from 0 to 10, which is scaled to [0, 1]. The only module that imports DeepEval, which takes
seconds: import it late.
"""

import os
from collections.abc import Mapping
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

from smolsum.llm.client import BadAnswer, Call, Declined
from smolsum.types import Criterion, Seen

MAX_SCORE = 10
PARAMS: dict[Seen, SingleTurnParams] = {
    "source": SingleTurnParams.INPUT,
    "completion": SingleTurnParams.ACTUAL_OUTPUT,
    "reference": SingleTurnParams.EXPECTED_OUTPUT,
}
NOTHING = "(no text)"
"""stands for an empty text, which G-Eval refuses"""


async def judge_call(criterion: Criterion, texts: Mapping[Seen, str]) -> Call:
    """Ask how well a completion meets a criterion; the answer is its score in [0, 1] with the reason. Raises Declined
    for texts that DeepEval refuses."""
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
    return Call(model.prompt, _json_schema(model.schema), _score)


async def fingerprint(criterion: Criterion) -> str:
    """Return the XXH3-128 hex of the criterion's prompt, DeepEval's part included, and its threshold: what makes two
    scores of it comparable."""
    call = await judge_call(criterion, {seen: f"<{seen}>" for seen in PARAMS})
    return str(xxhash.xxh3_128_hexdigest(f"{criterion.name}\n{criterion.threshold}\n{call.prompt}".encode()))


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
