"""G-Eval: DeepEval writes the judge's prompts and reads its answers; our own client asks.

DeepEval writes the prompt around a criterion's steps and scales the answer, a whole number from 0 to 10, to [0, 1].
Requests, deadlines, retries and counting are ours. The only module that imports DeepEval, which takes seconds: import
it late.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
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

from smolsum.errors import SmolsumError
from smolsum.llm.client import Answer, BadAnswer, ChatClient, Declined, NoAnswer, parse_object
from smolsum.types import Criterion, Seen

MAX_SCORE = 10
PARAMS: dict[Seen, SingleTurnParams] = {
    "source": SingleTurnParams.INPUT,
    "completion": SingleTurnParams.ACTUAL_OUTPUT,
    "reference": SingleTurnParams.EXPECTED_OUTPUT,
}
NOTHING = "(no text)"
"""stands for an empty text, which G-Eval refuses"""


@dataclass(frozen=True)
class Verdict:
    """The judge's score in [0, 1] with its reason, and the tokens that it counted."""

    score: float
    reason: str
    input_tokens: int = 0
    output_tokens: int = 0


class Judge:
    """Scores completions by criteria through one client."""

    def __init__(self, client: ChatClient) -> None:
        self.client = client

    async def score(self, criterion: Criterion, texts: Mapping[Seen, str]) -> Verdict:
        """Ask one question. Errors as of `ChatClient.ask`, and BadAnswer for an answer without a number from 0 to
        10."""
        model = _Model(self.client)
        metric = _metric(criterion, model)
        try:
            score = await metric.a_measure(_case(texts), _show_indicator=False)
        except NoAnswer as error:
            error.answer = model.answer
            raise
        except (Declined, SmolsumError):
            raise
        except Exception as error:  # DeepEval's own, which share no base
            raise Declined(f"{type(error).__name__}: {error}") from error
        assert model.answer is not None
        return Verdict(float(score), str(metric.reason), model.answer.input_tokens, model.answer.output_tokens)


async def prompt_of(criterion: Criterion, texts: Mapping[Seen, str]) -> str:
    """Return the prompt that the judge would get."""
    model = _Model(None)
    await _metric(criterion, model).a_measure(_case(texts), _show_indicator=False)
    return model.prompt


async def fingerprint(criterion: Criterion) -> str:
    """Return the XXH3-128 hex of the criterion's prompt, DeepEval's part included, and its threshold: what makes two
    scores of it comparable."""
    prompt = await prompt_of(criterion, {seen: f"<{seen}>" for seen in PARAMS})
    return str(xxhash.xxh3_128_hexdigest(f"{criterion.name}\n{criterion.threshold}\n{prompt}".encode()))


def prices(model: str) -> tuple[float, float] | None:
    """Return the US dollars for a token of input and of output, as DeepEval lists them; None for an unlisted model."""
    listed = OPENAI_MODELS_DATA.get(model)
    return None if listed is None or not listed.input_price else (listed.input_price, listed.output_price or 0.0)


class _Model(DeepEvalBaseLLM):  # type: ignore[misc]  # DeepEval is untyped
    """DeepEval's model for one question; without a client it only keeps the prompt."""

    def __init__(self, client: ChatClient | None) -> None:
        self.client = client
        self.prompt = ""
        self.answer: Answer | None = None
        super().__init__(client.endpoint.model if client else "none")

    def load_model(self) -> None:
        """Nothing to load."""

    def get_model_name(self) -> str:
        """Return the judge's name."""
        return str(self.name)

    def generate(self, prompt: str, schema: Any = None) -> Any:
        """Refuse: DeepEval's abstract class requires the method, but `a_measure` asks through `a_generate`."""
        raise NotImplementedError("the judge is asked through a_generate")

    async def a_generate(self, prompt: str, schema: Any = None) -> Any:
        """Return the answer as DeepEval's object."""
        self.prompt = prompt
        if self.client is None:
            return schema(score=0, reason="")
        self.answer = await self.client.ask(prompt, _json_schema(schema))
        found = parse_object(self.answer.text, "score")
        return schema(score=_check(found.get("score")), reason=str(found.get("reason", "")))


@cache
def _json_schema(schema: Any) -> Any:
    """Return the JSON schema of one of DeepEval's classes."""
    return schema.model_json_schema()


def _check(score: Any) -> float:
    """Return a valid score; a fraction of 1 is on another scale, as G-Eval asks for whole numbers."""
    if isinstance(score, str):
        try:
            score = float(score)
        except ValueError:
            raise BadAnswer(f"the score is not a number: {score[:20]!r}") from None
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise BadAnswer(f"no score in the answer, but {score!r}")
    if not 0 <= score <= MAX_SCORE or 0 < score < 1:  # NaN too; a whole number of many digits is not a float
        raise BadAnswer(f"a score of {str(score)[:20]}, not one from 0 to {MAX_SCORE}")
    return float(score)


def _metric(criterion: Criterion, model: _Model) -> GEval:
    return GEval(
        name=criterion.name,
        evaluation_steps=list(criterion.steps),
        evaluation_params=[PARAMS[seen] for seen in criterion.sees],
        model=model,
        threshold=criterion.threshold,
    )


def _case(texts: Mapping[Seen, str]) -> LLMTestCase:
    shown = {seen: text if text.strip() else NOTHING for seen, text in texts.items()}
    return LLMTestCase(
        input=shown.get("source", NOTHING), actual_output=shown["completion"], expected_output=shown.get("reference")
    )
