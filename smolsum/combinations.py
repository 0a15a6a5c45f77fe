"""Settings that are right one by one and mean nothing together."""

from __future__ import annotations

from collections.abc import Mapping

from smolsum.config import Config
from smolsum.errors import UsageError


def check_combinations(config: Config, sources: Mapping[str, str]) -> None:
    """UsageError for a setting that the others would make void; `sources` has the origin of each dotted key."""
    grpo = config.grpo
    if grpo.correction != "none" and grpo.old_logprobs == "sampler":
        raise UsageError(
            f"{sources['grpo.correction']}: grpo.correction = {grpo.correction!r} needs recomputed log-probs: "
            "against the sampler's own, the ratio holds the correction already",
            hint="--set grpo.old_logprobs=recomputed, or --set grpo.correction=none",
        )
    if config.data.prompt_column == config.data.completion_column:
        raise UsageError(
            f"{sources['data.completion_column']}: posts and references cannot both come from column "
            f"{config.data.prompt_column!r}",
            hint="--set data.completion_column=NAME",
        )
    workers = config.workers
    if workers.urls and workers.max_staleness < workers.sync_every - 1:
        raise UsageError(
            f"{sources['workers.max_staleness']}: with new weights every {workers.sync_every} steps rollouts get "
            f"{workers.sync_every - 1} updates old, more than workers.max_staleness, {workers.max_staleness}",
            hint=f"--set workers.max_staleness={workers.sync_every}, or --set workers.sync_every=1",
        )
    limit, buffer = config.sampling.max_new_tokens, config.rewards.overlong_buffer
    for name, stage in config.stages.items():
        if "overlong" in stage.rewards and buffer > limit:
            raise UsageError(
                f"{sources['rewards.overlong_buffer']}: the {buffer} tokens of rewards.overlong_buffer are more than "
                f"sampling.max_new_tokens, {limit}: in stage {name} even an empty completion would be punished",
                hint=f"--set rewards.overlong_buffer={max(1, limit // 5)}",
            )
