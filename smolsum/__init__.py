"""Train tiny language models to obey a hard output constraint with GRPO.

The names below are the public API, for notebooks and scripts; `docs/python.md` trains a policy with them. A name is
loaded when it is first used, so `import smolsum` is fast and changes nothing in the process. On a Linux CPU, loading a
policy (or `prepare_cpu`) gives MLX a fast BLAS, which works only before MLX itself is imported: use smolsum first.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smolsum.config.sections import Config as Config
    from smolsum.config.sections import GrpoConfig as GrpoConfig
    from smolsum.config.sections import LoraConfig as LoraConfig
    from smolsum.config.sections import OptimizerConfig as OptimizerConfig
    from smolsum.config.sections import SamplingConfig as SamplingConfig
    from smolsum.config.stage import StageConfig as StageConfig
    from smolsum.errors import SmolsumError as SmolsumError
    from smolsum.grpo.advantages import gdpo_advantages as gdpo_advantages
    from smolsum.grpo.advantages import group_advantages as group_advantages
    from smolsum.grpo.batch_gradient import gradients as gradients
    from smolsum.grpo.learning_rate import choose_rates as choose_rates
    from smolsum.grpo.learning_rate import learning_rate as learning_rate
    from smolsum.grpo.loss import policy_loss as policy_loss
    from smolsum.grpo.optimizer import Optimizer as Optimizer
    from smolsum.grpo.python_api import load_prompts as load_prompts
    from smolsum.grpo.python_api import make_config as make_config
    from smolsum.grpo.python_api import make_prompt as make_prompt
    from smolsum.grpo.python_api import train as train
    from smolsum.grpo.python_api import train_run as train_run
    from smolsum.policy.cpu import prepare_cpu as prepare_cpu
    from smolsum.policy.load import Policy as Policy
    from smolsum.policy.load import load_policy as load_policy
    from smolsum.policy.load import snapshot as snapshot
    from smolsum.policy.logprobs import group_logprobs as group_logprobs
    from smolsum.policy.weights import load_trained as load_trained
    from smolsum.policy.weights import save_trained as save_trained
    from smolsum.results.score_columns import load_scores as load_scores
    from smolsum.rewards import REWARDS as REWARDS
    from smolsum.rewards.combine import combine as combine
    from smolsum.rewards.combine import score_all as score_all
    from smolsum.rewards.custom import reward as reward
    from smolsum.rollout.source import sample_groups as sample_groups
    from smolsum.runs.paths import open_run as open_run
    from smolsum.runs.reader import read_run as read_run
    from smolsum.stats.paired import paired_ttest as paired_ttest
    from smolsum.tasks.base import Metric as Metric
    from smolsum.tasks.base import Task as Task
    from smolsum.tasks.base import TaskEvaluation as TaskEvaluation
    from smolsum.tasks.base import TaskPresets as TaskPresets
    from smolsum.tasks.base import TaskPrompts as TaskPrompts
    from smolsum.tasks.base import TaskRewards as TaskRewards
    from smolsum.types import Criterion as Criterion
    from smolsum.types import Prompt as Prompt
    from smolsum.types import Rollout as Rollout
    from smolsum.types import RolloutGroup as RolloutGroup

_NAMES = {
    "config.sections": ("Config", "GrpoConfig", "LoraConfig", "OptimizerConfig", "SamplingConfig"),
    "config.stage": ("StageConfig",),
    "errors": ("SmolsumError",),
    "grpo.advantages": ("gdpo_advantages", "group_advantages"),
    "grpo.loss": ("policy_loss",),
    "grpo.learning_rate": ("choose_rates", "learning_rate"),
    "grpo.optimizer": ("Optimizer",),
    "grpo.batch_gradient": ("gradients",),
    "policy.cpu": ("prepare_cpu",),
    "policy.load": ("Policy", "load_policy", "snapshot"),
    "policy.logprobs": ("group_logprobs",),
    "policy.weights": ("load_trained", "save_trained"),
    "rewards": ("REWARDS",),
    "rewards.combine": ("combine", "score_all"),
    "rewards.custom": ("reward",),
    "rollout.source": ("sample_groups",),
    "runs.paths": ("open_run",),
    "runs.reader": ("read_run",),
    "results.score_columns": ("load_scores",),
    "stats.paired": ("paired_ttest",),
    "tasks.base": ("Metric", "Task", "TaskEvaluation", "TaskPresets", "TaskPrompts", "TaskRewards"),
    "grpo.python_api": ("load_prompts", "make_config", "make_prompt", "train", "train_run"),
    "types": ("Criterion", "Prompt", "Rollout", "RolloutGroup"),
}
"""the public names of each module"""
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'smolsum' has no attribute {name!r}")
        value = getattr(import_module(f"smolsum.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
