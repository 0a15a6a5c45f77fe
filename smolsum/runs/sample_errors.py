"""What is wrong with a sample, as far as its line shows it: for sorting, and in a few words."""

from smolsum.config.targets import GOT, TOKENS, tolerance
from smolsum.runs.records import RunSettings, SampledRollout

LENGTH_MEASURES = ("length", "within_tol")
"""The signal, and the measure of evaluations, that are about the length of the whole completion."""
FARTHEST = 9_999


def sample_errors(sample: SampledRollout, settings: RunSettings, tokens: int | None = None) -> list[str]:
    """Return what is wrong with a sample of `tokens` tokens, by default those of its line: `cut` (the token limit ended
    it), `empty`, a signal without a value, `failed` (a measure `passed` is 0), or how far its length is off a target
    that the run has (`+12 tokens`)."""
    found = ["cut"] if sample.truncated else []
    found += [] if sample.text.strip() else ["empty"]
    found += [f"no {name}" for name, value in sample.rewards.items() if value is None]
    found += ["failed"] if sample.rewards.get("passed") == 0 else []
    off = _off_target(sample, settings, tokens)
    return [*found, f"{off:+d} {settings.unit}"] if off else found


def error_size(sample: SampledRollout, settings: RunSettings, tokens: int | None = None) -> float:
    """Return how much is wrong with a sample: the number of errors, and of as many, the farther from the target
    length the more. 0 for none."""
    off = min(abs(_off_target(sample, settings, tokens)), FARTHEST)
    return len(sample_errors(sample, settings, tokens)) + off / (FARTHEST + 1)


def _off_target(sample: SampledRollout, settings: RunSettings, tokens: int | None) -> int:
    """Tokens above (or below, negative) the target; 0 within the tolerance, or where length is not measured."""
    if not any(name in sample.rewards for name in LENGTH_MEASURES):
        return 0
    target = sample.target if settings.targets else settings.target_tokens
    got = length_of(sample, settings, tokens)
    if target is None or settings.tolerance_tokens is None or got is None:
        return 0
    return (
        got - target
        if abs(got - target) > tolerance(target, settings.tolerance_tokens, settings.tolerance_share)
        else 0
    )


def length_of(sample: SampledRollout, settings: RunSettings, tokens: int | None = None) -> int | None:
    """Return a sample's length in the unit of its target; None where its line does not show it."""
    measured = sample.rewards.get(GOT) if settings.targets else None
    if measured is not None:
        return int(measured)
    if settings.unit != TOKENS:
        return None
    return sample.tokens if tokens is None else tokens


def asked_and_got(sample: SampledRollout, settings: RunSettings, tokens: int | None = None) -> str:
    """Return a sample's length next to what its prompt asks for, `60 of 64 tokens`; only its tokens where the prompt
    asks for no length."""
    got, count = length_of(sample, settings, tokens), sample.tokens if tokens is None else tokens
    if sample.target is None:
        return f"{count} tokens"
    if got is None:
        return f"{count} tokens, asked for {sample.target} {settings.unit}"
    return f"{got} of {sample.target} {settings.unit}"
