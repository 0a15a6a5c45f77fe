"""Decoding alone, by this engine."""

from __future__ import annotations

from shapes import arguments, time_decoding

from smolsum.policy.load import load_policy
from smolsum.policy.sampling import generate


def main() -> None:
    """Sample the rollouts of prompts of random tokens; none ends early."""
    args = arguments()
    policy = load_policy(str(args.model), dtype=args.dtype)

    def sample(prompt: list[int], tokens: int) -> None:
        generate(
            policy.model, [prompt], [range(args.group)], eos_ids=frozenset(), temperature=1.0, max_new_tokens=tokens
        )

    time_decoding(args, policy.config["vocab_size"], sample)


if __name__ == "__main__":
    main()
