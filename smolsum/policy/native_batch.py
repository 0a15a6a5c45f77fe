"""Rollouts that are decoded together in C (`policy/cpu/decode.py`), as `DecodeBatch` does it with MLX."""

from collections.abc import Callable, Sequence

import mlx.core as mx
import mlx.nn as nn

from smolsum.policy.cpu.decode import Decoder, Decoding, Draw, can_decode
from smolsum.policy.sampling import ActiveSequence, DecodeBatch, SampledToken, nucleus, sample, top_tokens


def decode_batch(model: nn.Module, eos_ids: frozenset[int]) -> "DecodeBatch | NativeBatch":
    """Return an empty batch, in C where the model and the machine allow it."""
    return NativeBatch(model, eos_ids) if can_decode(model) else DecodeBatch(model, eos_ids)


class NativeBatch:
    """Rollouts under way, with the interface of `DecodeBatch`. What a rollout samples depends on it and the weights
    alone, to the bit."""

    def __init__(self, model: nn.Module, eos_ids: frozenset[int]) -> None:
        self.model, self.eos_ids = model, eos_ids
        self.rows: list[ActiveSequence] = []
        self._running: list[Decoding] = []
        self._decoder: Decoder | None = None

    def can_join(self) -> bool:
        """Return True: rollouts may be added at any time."""
        return True

    def add(self, sequences: Sequence[ActiveSequence], report: Callable[[int], None] = lambda read: None) -> None:
        """Add rollouts; a prompt that several share is read once. `report` gets the tokens of prompts that are read."""
        draws = [Draw(one.prompt_ids, one.uniforms, one.temperature) for one in sequences]
        if self._decoder is None:
            self._decoder = Decoder(self.model, max(draw.positions for draw in draws), self.eos_ids)
        running = self._decoder.add(draws, report)
        for sequence, one in zip(sequences, running, strict=True):
            if sequence.top_p < 1 or sequence.wanted:
                self._decoder.drawn_by_caller(one)
        self.rows += sequences
        self._running += running

    def step(self) -> None:
        """Sample a token, or a few, for every row. Rows that have ended leave; `rows` is empty when all have."""
        assert self._decoder is not None
        self._decoder.step(self._running)
        for sequence, one in zip(self.rows, self._running, strict=True):
            if one.logits is not None:
                _draw(sequence, one, self.eos_ids)
            else:
                for token in one.after(len(sequence.ids)):
                    sequence.accept(SampledToken(*token), self.eos_ids)
        alive = [row for row, sequence in enumerate(self.rows) if not sequence.ended]
        self.rows, self._running = [self.rows[n] for n in alive], [self._running[n] for n in alive]
        if not alive:
            self.clear()

    def clear(self) -> None:
        """Drop all rows."""
        self.rows, self._running, self._decoder = [], [], None

    def weights_changed(self) -> None:
        """Continue with the model's present weights."""
        if self._decoder is not None:
            self._decoder.weights_changed()


def _draw(sequence: ActiveSequence, one: Decoding, eos_ids: frozenset[int]) -> None:
    """Draw the next token of a rollout that takes only the likeliest ones, or keeps them."""
    temperature = float(sequence.temperature > 0)  # the logits are divided by it already
    logits = mx.array(one.logits)[None]
    if sequence.top_p < 1:
        logits = nucleus(logits, [temperature], [sequence.top_p])
    token, logp = sample(logits, [temperature], mx.array(one.uniforms[one.sampled])[None])
    likeliest = top_tokens(logits, sequence.wanted)[0] if sequence.wanted else ()
    one.accept(token.item(), logp.item())
    sequence.accept(SampledToken(token.item(), logp.item(), likeliest), eos_ids)
