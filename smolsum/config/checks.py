"""Settings that are valid alone, but not together, or that nothing would use; and what the signals `judge` and
`preference` judge by."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from smolsum.config.constraints import LENGTH, parse_constraints
from smolsum.config.fields import names_in
from smolsum.config.presets import ConfigurableTask
from smolsum.config.sections import Config, DifficultyConfig, GrpoConfig, JudgeConfig
from smolsum.errors import UnusedSetting, UsageError, nearest
from smolsum.types import Criterion

JUDGING = ("judge", "preference")

EARLIER = {"constraint_weight": 2.0, "constraint_rate": 0.4}
"""Defaults that were others once, as config.toml of an older run has them: they do not count as chosen."""
OF_MULTIPLIERS = ("constraint_rate", "constraint_limit")
"""what only multipliers that move have a use for"""


class Problem(NamedTuple):
    """What is wrong: the key whose source the error names, the rest of its sentence, and the hint."""

    key: str
    words: str
    hint: str
    unused: bool = False
    """whether a run of another strategy or reward may have a use for the setting, as a grid has several"""


def check_together(config: Config, sources: Mapping[str, str], task: ConfigurableTask) -> None:
    """Raise UsageError for the first problem of a run's settings; `sources` gives the source of each key."""
    for name, stage in config.stages.items():
        parse_constraints(stage.constraints, sources[f"stages.{name}.constraints"])
    stages = (_of_stage(config, name, sources) for name in config.stages)
    sections = (_of_objective(config, task), _of_data_and_workers(config, task), _of_difficulty(config, task))
    for key, words, hint, unused in chain(*stages, *sections, _of_judge(config, sources, task)):
        sentence = f"{sources[key]}: {key} {words}"
        raise UnusedSetting(sentence, key=key, hint=hint) if unused else UsageError(sentence, hint=hint)


def _of_stage(config: Config, name: str, sources: Mapping[str, str]) -> Iterator[Problem]:
    stage, prefix = config.stages[name], f"stages.{name}"
    weights = {signal: stage.rewards.get(signal, 0.0) for signal in stage.rewards_end}
    unchanged = {
        "temperature": stage.temperature_end == stage.temperature,
        "rewards": bool(weights) and stage.rewards_end == weights,
    }
    for table, nothing in unchanged.items():
        end, course = f"{prefix}.{table}_end", f"{prefix}.{table}_schedule"
        if not getattr(stage, f"{table}_end") and getattr(stage, f"{table}_schedule") != "linear":
            example = "0.7" if table == "temperature" else "{SIGNAL=WEIGHT}"
            what = f"is set, but {end} is not, so that nothing changes"
            yield Problem(course, what, f"--set {end}={example}, or leave {course} out")
        if nothing:
            key = end if end in sources else f"{end}.{next(iter(weights))}"
            what = "is what the stage begins with, so that nothing changes"
            yield Problem(key, what, f"leave {end} out, or give it another value")
    if weights and not any({**stage.rewards, **stage.rewards_end}.values()):
        key = f"{prefix}.rewards_end.{next(iter(weights))}"
        yield Problem(key, "is 0: at its end the stage has no reward of any weight", f"--set {key}=1.0")
    if stage.mix_end and not stage.mix:
        first = next(iter(stage.mix_end))
        what = f"has no {prefix}.mix to start from"
        yield Problem(f"{prefix}.mix_end.{first}", what, f"--set {prefix}.mix={{{first}=1.0}}")
    other = f"--set {prefix}.learn=best"
    if stage.learn in ("references", "recombined") and config.grpo.correction != "none":
        what = f"= {stage.learn!r} has no sampler whose log-probs grpo.correction could compare"
        yield Problem(f"{prefix}.learn", what, f"{other}, or --set grpo.correction=none")
    if stage.learn == "recombined" and not config.task.needed_tokens:
        what = f"makes texts of a set length, and the texts of task {config.task.name} have none"
        yield Problem(f"{prefix}.learn", f"= 'recombined' {what}", other)
    if stage.learn == "recombined" and config.workers.urls:
        what = "= 'recombined' samples with the weights that the stage begins with, and workers have the newest"
        yield Problem(f"{prefix}.learn", what, f"{other}, or leave the workers out")
    limit, buffer = config.sampling.max_new_tokens, config.rewards.overlong_buffer
    if "overlong" in stage.trained_rewards and buffer > limit:
        yield Problem(
            "rewards.overlong_buffer",
            f"= {buffer} is more than sampling.max_new_tokens = {limit}: in stage {name} even an empty completion "
            "would be punished",
            f"--set rewards.overlong_buffer={max(1, limit // 5)}",
        )


def _of_objective(config: Config, task: ConfigurableTask) -> Iterator[Problem]:
    grpo, stages = config.grpo, config.stages.values()
    of_constraints = ("constraint_method", "constraint_weight", *OF_MULTIPLIERS)
    chosen = [one for one in of_constraints if getattr(grpo, one) not in (getattr(GrpoConfig, one), EARLIER.get(one))]
    if not any(stage.constraints for stage in stages):
        for name in chosen:
            hint = f'--constraint "length in 59..69: 0.99", or leave grpo.{name} out'
            yield Problem(f"grpo.{name}", "is set, but no stage has a constraint", hint, unused=True)
    elif grpo.constraint_method not in ("lagrange", "pid"):
        unread = {"constraint_weight", *OF_MULTIPLIERS} if grpo.constraint_method == "gate" else {*OF_MULTIPLIERS}
        for name in (one for one in chosen if one in unread):
            what = f"has no use with grpo.constraint_method = {grpo.constraint_method!r}"
            yield Problem(f"grpo.{name}", what, f"--set grpo.constraint_method=lagrange, or leave grpo.{name} out")
    if grpo.constraint_method in ("lagrange", "pid") and grpo.constraint_weight > grpo.constraint_limit:
        what = f"= {grpo.constraint_weight:g} is above grpo.constraint_limit = {grpo.constraint_limit:g}"
        hint = f"--set grpo.constraint_weight={grpo.constraint_limit:g}, or a higher limit"
        yield Problem("grpo.constraint_weight", f"{what}, which multipliers cannot pass", hint)
    kept, rollouts = grpo.update_rollouts, config.sampling.rollouts
    if kept == 1 or kept > rollouts:
        what = f"= {kept}: a group has {rollouts} rollouts, and an update compares two of them at least"
        yield Problem("grpo.update_rollouts", what, f"--set grpo.update_rollouts={max(2, rollouts // 2)}")
    at_ends = [name for name, stage in config.stages.items() if stage.length_credit == "ends"]
    if at_ends:
        key = "grpo.length_credit" if grpo.length_credit == "ends" else f"stages.{at_ends[0]}.length_credit"
        other = f"--set {key}=all"
        rewarded = any({*task.rewards.end_signals} & {*stage.trained_rewards} for stage in stages)
        if not rewarded and not any(c.measured == LENGTH for s in stages for c in parse_constraints(s.constraints)):
            what = "= 'ends' is for rewards and constraints that the place of the end decides, and no stage has one"
            yield Problem(key, what, other, unused=True)
        if grpo.loss in ("gspo", "study"):
            what = f"= 'ends' needs a ratio for each token, and the loss {grpo.loss!r} has one for a whole completion"
            yield Problem(key, what, f"{other}, or --set grpo.loss=grpo")
        if grpo.constraint_method == "gate" and any(config.stages[name].constraints for name in at_ends):
            what = "= 'ends' needs a sum of what length and quality earn, and a gate multiplies them"
            yield Problem(key, what, f"{other}, or --set grpo.constraint_method=lagrange")
    looks_back = {name: stage for name, stage in config.stages.items() if stage.hindsight}
    of_texts = [name for name, stage in looks_back.items() if stage.hindsight_of == "texts"]
    key = "grpo.hindsight" if grpo.hindsight else f"stages.{next(iter(looks_back), '')}.hindsight"
    if looks_back and not config.task.needed_tokens:
        what = f"teaches where a text of a set length ends, and the texts of task {config.task.name} have none"
        yield Problem(key, what, f"--set {key}=0")
    elif looks_back and not grpo.train_eos:
        what = "teaches where a text ends, but grpo.train_eos = false leaves out the token that ends it"
        yield Problem(key, what, f"--set grpo.train_eos=true, or --set {key}=0")
    elif of_texts and not getattr(config.task, "targets", ""):
        of = "grpo.hindsight_of" if grpo.hindsight_of == "texts" else f"stages.{of_texts[0]}.hindsight_of"
        what = "= 'texts' imitates texts under the prompts that ask for their lengths, and no prompt asks for one"
        yield Problem(of, what, f"--set task.targets=16-128, or --set {of}=ends")
    elif looks_back and not any(stage.learn == "rewards" for stage in looks_back.values()):
        what = "teaches beside rewards, and no stage learns from them (stages.NAME.learn)"
        yield Problem(key, what, f"--set {key}=0")
    counting = [name for name, one in config.stages.items() if one.countdown]
    if counting and not config.task.needed_tokens:
        key = "grpo.countdown" if grpo.countdown else f"stages.{counting[0]}.countdown"
        what = f"teaches how much of a set length is left, and the texts of task {config.task.name} have none"
        yield Problem(key, what, f"--set {key}=0")
    of_nothing = [name for name, one in config.stages.items() if one.hindsight_of == "texts" and not one.hindsight]
    if grpo.hindsight_of == "texts" and not looks_back:
        hint = "--set grpo.hindsight=0.1, or leave grpo.hindsight_of out"
        yield Problem("grpo.hindsight_of", "has no use without grpo.hindsight", hint)
    elif grpo.hindsight_of != "texts" and of_nothing:
        place = f"stages.{of_nothing[0]}.hindsight"
        yield Problem(f"{place}_of", f"has no use without {place}", f"--set {place}=0.1, or leave {place}_of out")
    if grpo.correction != "none" and grpo.old_logprobs == "sampler":
        yield Problem(
            "grpo.correction",
            f"= {grpo.correction!r} needs recomputed log-probs: against the sampler's own, the ratio holds the "
            "correction already",
            "--set grpo.old_logprobs=recomputed, or --set grpo.correction=none",
        )
    key, value = "grpo.reward_balance", f"= {grpo.reward_balance!r}"
    if grpo.reward_balance == "none":
        if grpo.balance_decay != GrpoConfig.balance_decay:
            hint = f"--set {key}=variance, or leave grpo.balance_decay out"
            yield Problem("grpo.balance_decay", f"has no use without {key}", hint)
    elif grpo.advantage_scale == "gdpo":
        what = f"{value} adds nothing to grpo.advantage_scale = 'gdpo', which divides each signal by its deviation"
        yield Problem(key, what, f"--set grpo.advantage_scale=group, or --set {key}=none")
    elif all(sum(map(bool, stage.trained_rewards.values())) < 2 for stage in stages):
        what = f"{value} balances the signals of a stage, and no stage has two of them"
        yield Problem(key, what, f"--strategy included, or --set {key}=none")


def _of_data_and_workers(config: Config, task: ConfigurableTask) -> Iterator[Problem]:
    data, workers, guard = config.data, config.workers, config.train.guard
    if guard in ("stop", "rollback") and task.evaluation.quick_measurer is None:
        what = f"= {guard!r}: task {config.task.name} measures no rollouts in training, so that the guard sees nothing"
        yield Problem("train.guard", what, "--guard off")
    if data.prompt_column == data.completion_column:
        what = f"= {data.completion_column!r} is the column of the posts too: references cannot come from it"
        yield Problem("data.completion_column", what, "--set data.completion_column=NAME")
    if workers.urls and workers.max_staleness < workers.sync_every - 1:
        yield Problem(
            "workers.max_staleness",
            f"= {workers.max_staleness} is too small: with new weights every {workers.sync_every} steps rollouts get "
            f"{workers.sync_every - 1} updates old",
            f"--set workers.max_staleness={workers.sync_every}, or --set workers.sync_every=1",
        )


def _of_difficulty(config: Config, task: ConfigurableTask) -> Iterator[Problem]:
    """Mixes of kinds that do not exist, and a difficulty that nothing uses or that lacks what it is measured by."""
    difficulty, mixed = config.difficulty, {name: stage.mix for name, stage in config.stages.items() if stage.mix}
    first, by, bands = next(iter(config.stages)), difficulty.by, names_in(difficulty.bands)
    if difficulty.adapt and not mixed:
        yield Problem(
            "difficulty.adapt",
            "moves the mix of a stage, and no stage has a mix",
            f"--set 'stages.{first}.mix={{KIND=SHARE, ...}}' is what it begins with"
            + ("" if task.prompts.category or by != "none" else ", and --set difficulty.by=length makes kinds"),
        )
    for name in mixed:
        if difficulty.adapt and config.stages[name].mix_end:
            what = f"moves the mix of stage {name}, and so does its mix_end"
            yield Problem("difficulty.adapt", what, f"--set difficulty.adapt=0, or leave stages.{name}.mix_end out")
    moving = [name for name in mixed if difficulty.adapt or config.stages[name].mix_end]
    if config.train.skip_untaught and moving:
        what = f"skips prompts in their order, and the mix of stage {moving[0]} moves with the steps"
        yield Problem("train.skip_untaught", what, "--set train.skip_untaught=0, or a mix that stays")
    if by == "none":
        for name, mix in mixed.items():
            if not task.prompts.category:
                what = f"mixes prompts, and task {task.name} has no categories to mix"
                hint = "--set difficulty.by=length mixes easy, medium and hard ones"
                yield Problem(f"stages.{name}.mix.{next(iter(mix))}", what, hint)
        for key in ("column", "scores", "harder", "samples", "bands"):
            if getattr(difficulty, key) != getattr(DifficultyConfig, key):
                needed = {"scores": "scores", "samples": "reward", "bands": "length"}.get(key, "column")
                hint = f"--set difficulty.by={needed}"
                yield Problem(f"difficulty.{key}", "has no use without difficulty.by", hint)
        return
    if not mixed:
        what = f"= {by} is for stages that mix prompts, and no stage has a mix"
        yield Problem("difficulty.by", what, f"--set 'stages.{first}.mix={{{bands[0]}=0.5, {bands[-1]}=0.5}}'")
    needs = {"column": ("column",), "scores": ("scores", "column")}.get(by, ())
    if by != "reward" and difficulty.samples != DifficultyConfig.samples:
        what = f"is not read by difficulty.by = {by}, which measures no completions"
        yield Problem("difficulty.samples", what, "--set difficulty.by=reward, or leave difficulty.samples out")
    for key in ("column", "scores"):
        given = getattr(difficulty, key)
        if key in needs and not given:
            hint = f"--set difficulty.{key}={'FOLDER' if key == 'scores' else 'NAME'}"
            yield Problem("difficulty.by", f"= {by} needs difficulty.{key}", hint)
        if given and key not in needs:
            hint = f"--set difficulty.by={key}, or leave difficulty.{key} out"
            yield Problem(f"difficulty.{key}", f"is not read by difficulty.by = {by}", hint)
    for name, stage in config.stages.items():
        for table in ("mix", "mix_end"):
            for kind in getattr(stage, table):
                if kind not in bands:
                    what = f"is a share of {kind!r}, which is not a band of difficulty.bands"
                    yield Problem(f"stages.{name}.{table}.{kind}", what, nearest(kind, bands))


def _of_judge(config: Config, sources: Mapping[str, str], task: ConfigurableTask) -> Iterator[Problem]:
    """A judge that is not named or has nothing to judge by, and one that no stage uses."""
    judge, signals = config.judge, task.rewards.signals
    asked = [(name, one) for name, stage in config.stages.items() for one in asking(signals, stage.used_signals)]
    if not asked:
        for key in ("model", "rubric", "criteria", "max_cost"):
            if getattr(judge, key):
                hint = f"--set stages.{next(iter(config.stages))}.rewards.judge=1.0"
                what = "is set, but no stage uses judge or preference"
                yield Problem(f"judge.{key}", what, f"{hint}; an evaluation's judge is --judge MODEL", unused=True)
        return
    stage, signal = asked[0]
    if not judge.model.strip():
        rewards = f"stages.{stage}.rewards"
        places = (f"{rewards}.{signal}", f"{rewards}_end.{signal}", f"stages.{stage}.constraints")
        yield Problem(
            next(place for place in places if place in sources),
            f"asks a judge ({signal}), and judge.model is empty",
            "--set judge.model=MODEL, with SMOLSUM_JUDGE_URL=http://HOST:PORT/v1 or OPENAI_API_KEY",
        )
    if judge.rubric.strip() and judge.criteria:
        what = "chooses among the task's, and judge.rubric replaces them"
        yield Problem("judge.criteria", what, "--set judge.criteria='', or --set judge.rubric=''")
    judged_by(judge, task.evaluation.criteria)


def asking(signals: Mapping[str, Any], names: Collection[str]) -> list[str]:
    """Return those of the names that ask the judge of `[judge]`; a user's own reward may have such a name."""
    return [one for one in JUDGING if one in names and getattr(signals.get(one), "asks_judge", False)]


def judged_by(settings: JudgeConfig, criteria: Sequence[Criterion]) -> tuple[Criterion, ...]:
    """Return the criteria that count, of those that a task has. Raises UsageError for a task without criteria, and
    for an unknown one."""
    if settings.rubric.strip():
        return (Criterion("rubric", (settings.rubric.strip(),)),)
    if not criteria:
        raise UsageError(
            "the signals judge and preference have nothing to judge by, as the task has no criteria",
            hint='--set judge.rubric="What a good completion is, in a sentence or more."',
        )
    known = {one.name: one for one in criteria}
    names = names_in(settings.criteria) or list(known)
    for name in names:
        if name not in known:
            raise UsageError(f"judge.criteria: the task has no criterion {name!r}", hint=nearest(name, known))
    return tuple(known[name] for name in dict.fromkeys(names))
