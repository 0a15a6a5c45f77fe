"""Settings that are valid alone, but not together."""

from collections.abc import Mapping

from smolsum.config.constraints import parse_from
from smolsum.config.sections import Config, GrpoConfig
from smolsum.errors import UsageError


def check_combinations(config: Config, sources: Mapping[str, str]) -> None:
    """Raise UsageError for settings that are valid alone but not together; `sources` gives the source of each key."""
    grpo = config.grpo
    for name, stage in config.stages.items():
        parse_from(stage.constraints, sources[f"stages.{name}.constraints"])
    if not any(stage.constraints for stage in config.stages.values()):
        for name in ("constraint_method", "constraint_weight", "constraint_rate", "constraint_limit"):
            if getattr(grpo, name) != getattr(GrpoConfig, name):
                raise UsageError(
                    f"{sources[f'grpo.{name}']}: grpo.{name} is set, but no stage has a constraint",
                    hint=f'--constraint "length in 59..69: 0.99", or leave grpo.{name} out',
                )
    if grpo.correction != "none" and grpo.old_logprobs == "sampler":
        raise UsageError(
            f"{sources['grpo.correction']}: grpo.correction = {grpo.correction!r} needs recomputed log-probs: "
            "against the sampler's own, the ratio holds the correction already",
            hint="--set grpo.old_logprobs=recomputed, or --set grpo.correction=none",
        )
    if grpo.reward_balance != "none":
        key = f"{sources['grpo.reward_balance']}: grpo.reward_balance = {grpo.reward_balance!r}"
        if grpo.advantage_scale == "gdpo":
            raise UsageError(
                f"{key} adds nothing to grpo.advantage_scale = 'gdpo', which divides each signal by its deviation",
                hint="--set grpo.advantage_scale=group, or --set grpo.reward_balance=none",
            )
        if all(sum(map(bool, stage.trained_rewards.values())) < 2 for stage in config.stages.values()):
            raise UsageError(
                f"{key} balances the signals of a stage, and no stage has two of them",
                hint="--strategy included, or --set grpo.reward_balance=none",
            )
    elif grpo.balance_decay != GrpoConfig.balance_decay:
        raise UsageError(
            f"{sources['grpo.balance_decay']}: grpo.balance_decay has no use without grpo.reward_balance",
            hint="--set grpo.reward_balance=variance, or leave grpo.balance_decay out",
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
        if "overlong" in stage.trained_rewards and buffer > limit:
            raise UsageError(
                f"{sources['rewards.overlong_buffer']}: the {buffer} tokens of rewards.overlong_buffer are more than "
                f"sampling.max_new_tokens, {limit}: in stage {name} even an empty completion would be punished",
                hint=f"--set rewards.overlong_buffer={max(1, limit // 5)}",
            )
