"""Train tiny language models to obey a hard output constraint with GRPO.

The names below are the public API, for notebooks and scripts; `docs/python.md` trains a policy with them. A name is
loaded when it is first used, so `import smolsum` is fast and changes nothing in the process. On a Linux CPU, loading a
policy (or `prepare_cpu`) gives MLX a fast BLAS, which works only before MLX itself is imported: use smolsum first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smolsum.config.sections import Config as Config
    from smolsum.config.sections import GrpoConfig as GrpoConfig
    from smolsum.config.sections import LoraConfig as LoraConfig
    from smolsum.config.sections import OptimizerConfig as OptimizerConfig
    from smolsum.config.sections import SamplingConfig as SamplingConfig
    from smolsum.config.sections import StageConfig as StageConfig
    from smolsum.errors import SmolsumError as SmolsumError
    from smolsum.grpo.advantages import gdpo_advantages as gdpo_advantages
    from smolsum.grpo.advantages import group_advantages as group_advantages
    from smolsum.grpo.loss import policy_loss as policy_loss
    from smolsum.grpo.optimizer import Optimizer as Optimizer
    from smolsum.grpo.optimizer import learning_rate as learning_rate
    from smolsum.grpo.update import gradients as gradients
    from smolsum.policy.cpu import prepare_cpu as prepare_cpu
    from smolsum.policy.load import Policy as Policy
    from smolsum.policy.load import load_policy as load_policy
    from smolsum.policy.load import snapshot as snapshot
    from smolsum.policy.logprobs import group_logprobs as group_logprobs
    from smolsum.policy.weights import load_trained as load_trained
    from smolsum.policy.weights import save_trained as save_trained
    from smolsum.rewards import REWARDS as REWARDS
    from smolsum.rewards.combine import combine as combine
    from smolsum.rewards.combine import score_all as score_all
    from smolsum.rollout.source import sample_groups as sample_groups
    from smolsum.runs.paths import open_run as open_run
    from smolsum.runs.reader import read_run as read_run
    from smolsum.stats.loading import load_scores as load_scores
    from smolsum.stats.paired import paired_ttest as paired_ttest
    from smolsum.train.api import load_prompts as load_prompts
    from smolsum.train.api import make_config as make_config
    from smolsum.train.api import make_prompt as make_prompt
    from smolsum.train.api import train_run as train_run
    from smolsum.types import Prompt as Prompt
    from smolsum.types import Rollout as Rollout
    from smolsum.types import RolloutGroup as RolloutGroup

_MODULES = {
    "Config": "config.sections",
    "GrpoConfig": "config.sections",
    "LoraConfig": "config.sections",
    "Optimizer": "grpo.optimizer",
    "OptimizerConfig": "config.sections",
    "Policy": "policy.load",
    "Prompt": "types",
    "REWARDS": "rewards",
    "Rollout": "types",
    "RolloutGroup": "types",
    "SamplingConfig": "config.sections",
    "SmolsumError": "errors",
    "StageConfig": "config.sections",
    "combine": "rewards.combine",
    "gdpo_advantages": "grpo.advantages",
    "gradients": "grpo.update",
    "group_advantages": "grpo.advantages",
    "group_logprobs": "policy.logprobs",
    "learning_rate": "grpo.optimizer",
    "load_policy": "policy.load",
    "load_prompts": "train.api",
    "load_scores": "stats.loading",
    "load_trained": "policy.weights",
    "make_config": "train.api",
    "make_prompt": "train.api",
    "open_run": "runs.paths",
    "paired_ttest": "stats.paired",
    "policy_loss": "grpo.loss",
    "prepare_cpu": "policy.cpu",
    "read_run": "runs.reader",
    "sample_groups": "rollout.source",
    "save_trained": "policy.weights",
    "score_all": "rewards.combine",
    "snapshot": "policy.load",
    "train_run": "train.api",
}
"""where each public name is defined"""

__all__ = list(_MODULES)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'smolsum' has no attribute {name!r}")
        value = getattr(import_module(f"smolsum.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
