"""The layers of a configuration: which value wins, where it came from, and what is refused."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st
from support.places import ROOT
from support.refusals import refuses

from smolsum.config.presets import TaskPresets, line_numbers
from smolsum.config.resolve import Resolved, render_with_sources, resolve, to_toml
from smolsum.config.sections import SECTIONS, Config
from smolsum.config.stage import StageConfig
from smolsum.config.strategies import parse_reward, strategy_layer
from smolsum.errors import UsageError
from smolsum.rewards import REWARDS
from smolsum.tasks import TASKS
from smolsum.tasks.base import TaskRewards
from smolsum.tasks.tldr.settings import TldrConfig

TINY = tomli.loads((ROOT / "presets" / "models" / "tiny.toml").read_text())


def resolved(**given: Any) -> Resolved:
    return resolve(TASKS, **given)


def config_file(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_layers_win_in_order(tmp_path: Path) -> None:
    """Each layer beats the one below it: profile, model preset, --preset, --config, --set."""
    file = config_file(tmp_path, "[optimizer]\nlearning_rate = 1e-5\n")
    given: list[dict[str, Any]] = [{"model": "tiny"}, {"presets": ["study"]}, {"config_file": file}]
    given.append({"sets": ["optimizer.learning_rate=1e-6"]})
    rates, layers = [resolved(model="qwen").config.optimizer.learning_rate], dict[str, Any]()
    for layer in given:
        layers |= layer
        rates.append(resolved(**layers).config.optimizer.learning_rate)
    assert rates == [2e-6, TINY["optimizer"]["learning_rate"], 2e-6, 1e-5, 1e-6]


def test_sources_name_every_layer(tmp_path: Path) -> None:
    """Each value's source says which layer it came from, a file's with its line."""
    file = config_file(tmp_path, '# mine\n[grpo]\n\nbeta = 0.1\n[run]\ndir = "here"\n')
    result = resolved(
        model="tiny", config_file=file, sets=["train.seed=7"], environ={"SMOLSUM_RUNS_DIR": "/there"},
        flags={"sampling.rollouts": 4, "sampling.temperature": None},
    )  # fmt: skip
    expected = {
        "train.keep_checkpoints": "default",
        "sampling.temperature": "preset profiles/default",
        "train.prompts_per_step": "preset models/tiny",
        "grpo.beta": f"{file}:4",
        "run.dir": "environment SMOLSUM_RUNS_DIR",
        "model.path": "flag --model",
        "sampling.rollouts": "flag",
        "train.seed": "--set",
        "stages.constrained.learning_rate": "stage default from optimizer.learning_rate",
        "stages.constrained.steps": "preset models/tiny",
        "stages.constrained.constraints": "preset strategies/constrained",
        "stages.constrained.rewards.meteor": "default reward meteor",
    }
    assert expected == {key: result.sources[key] for key in expected}
    assert result.config.run.dir == "/there"
    two = resolved(strategy="finetuned", reward="rouge").sources
    assert two["stages.length.rewards.length"] == "preset strategies/finetuned"
    assert two["stages.quality.rewards.rouge"] == "flag --reward"


@pytest.mark.parametrize(("target", "tolerance"), [(64, 5), (24, 2), (12, 1), (1, 1), (128, 10)])
def test_the_tolerance_follows_the_target(target: int, tolerance: int, tmp_path: Path) -> None:
    """In proportion to the default, which stays; one that is given stays too, such as that of an older run."""
    found = resolved(sets=[f"task.target_tokens={target}"])
    assert isinstance(found.config.task, TldrConfig)
    assert found.config.task.tolerance_tokens == tolerance
    source = "default" if target == 64 else "derived from task.target_tokens"
    assert found.sources["task.tolerance_tokens"] == source
    file = config_file(tmp_path, f"[task]\ntarget_tokens = {target}\ntolerance_tokens = 5\n")
    both: dict[str, Any] = {"sets": [f"task.target_tokens={target}", "task.tolerance_tokens=5"]}
    for stated in ({"config_file": file}, both):
        assert resolved(**stated).config.task.measures["tolerance_tokens"] == 5


def test_sources_cover_the_config() -> None:
    """Every dotted key of the resolved configuration has a source, and no other key has one."""
    result = resolved(reward="meteor-rouge")
    stages = result.config.stages
    stage_keys = [f"stages.{name}.{f.name}" for name in stages for f in dataclasses.fields(StageConfig)]
    keys = {key for key in stage_keys if not key.endswith((".rewards", ".mix", ".rewards_end", ".mix_end"))}
    keys |= {f"stages.{name}.rewards.{signal}" for name, stage in stages.items() for signal in stage.rewards}
    sections = SECTIONS | {"task": TldrConfig}
    keys |= {f"{name}.{f.name}" for name, record in sections.items() for f in dataclasses.fields(record)}
    assert keys == set(result.sources)


def test_environment_holds_only_folders() -> None:
    """Of the environment the runs folder is read and nothing else; an empty variable is no folder."""
    environ = {"SMOLSUM_LEARNING_RATE": "1", "SMOLSUM_RUNS_DIR": ""}
    assert resolved().config == resolved(environ=environ).config


@pytest.mark.parametrize(
    "urls",
    [
        *(",", " ", "http://a:1,http://a:1/", "a:1", "ftp://a", "http://u:p@a", "http://a b"),
        *("http://[:::]", "http://[a]", "http://a:0", "http://a:65536", "http://a/b"),
    ],
)
def test_workers_that_are_no_urls_are_refused(urls: str) -> None:
    """Before anything is loaded: a run without a single URL would wait for its workers for ever. URLs may end in a
    slash or a comma."""
    with refuses("environment SMOLSUM_WORKERS", "workers.urls", "--worker http://HOST:PORT"):
        resolved(model="tiny", environ={"SMOLSUM_WORKERS": urls})
    resolved(model="tiny", environ={"SMOLSUM_WORKERS": "http://10.0.0.2:8100/, http://[::1]:8100,HTTPS://mac.local,"})


def test_model_takes_ids_and_folders(tmp_path: Path) -> None:
    """--model with a hub id or a folder sets the path and brings no model preset along."""
    for path in ("owner/name", "builtin:other", str(tmp_path)):
        result = resolved(model=path)
        assert path == result.config.model.path
        assert (result.config.optimizer.learning_rate, result.sources["optimizer.learning_rate"]) == (0.0, "default")


def test_default_model_gives_way(tmp_path: Path) -> None:
    """The preset of the default model stays out as soon as any layer names another model; --model beats a file."""
    file = config_file(tmp_path, '[model]\npath = "owner/name"\n')
    other: dict[str, Any] = {"config_file": file, "sets": ["model.path=owner/name"], "flags": {"model.path": "o/n"}}
    for layer, value in other.items():
        assert resolved(**{layer: value}).config.optimizer.learning_rate == 0.0
    assert resolved(presets=["qwen"]).config.optimizer.learning_rate == 2e-6
    assert resolved(model="tiny", config_file=file).config.model.path == "builtin:tiny"


def test_an_adapter_of_ones_own_leaves_the_models_rate_out(tmp_path: Path) -> None:
    """The rate of a model's preset is for what the preset trains: all weights, or its own adapter. One that the user
    gives stays."""
    file = config_file(tmp_path, "[lora]\nrank = 4\n")
    for result in (resolved(model="qwen", sets=["lora.rank=8"]), resolved(model="tiny", config_file=file)):
        assert result.config.optimizer.learning_rate == 0.0
        assert {stage.learning_rate for stage in result.config.stages.values()} == {0.0}
        assert "is for all weights" in result.sources["optimizer.learning_rate"]
    own = resolved(model="qwen", sets=["lora.rank=8", "optimizer.learning_rate=1e-5"])
    assert own.config.optimizer.learning_rate == 1e-5
    for sets in ([], ["lora.rank=8"]):
        shipped = resolved(model="smollm2-135m", flags={"task.name": "strict-json"}, sets=sets)
        assert shipped.config.optimizer.learning_rate == 5e-6


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("run.name=trial", "trial"), ('run.name="trial"', "trial"), ("run.name=2026", "2026"), ("run.name=", ""),
        ("run.name = trial", "trial"), ("model.path=a=b", "a=b"), ("grpo.beta=0", 0.0),
        ("grpo.mask_truncated=false", False), ("train={seed = 3}", 3),
    ],
)  # fmt: skip
def test_set_reads_toml_or_text(text: str, value: object) -> None:
    """The right side of --set is a TOML value, else a bare text; whole numbers fit number fields."""
    config = resolved(sets=[text]).config
    section, _, name = text.split("=")[0].strip().partition(".")
    got = getattr(getattr(config, section), name or "seed")
    assert (value, type(value)) == (got, type(got))


def test_later_sets_win() -> None:
    """Of two --set for one key the later one counts, and it beats a flag. A weight joins the stage's other signals; a
    whole table replaces them."""
    assert resolved(sets=["train.seed=1", "train.seed=2"], flags={"train.seed": 3}).config.train.seed == 2
    two = {"strategy": "finetuned"}
    one = resolved(**two, sets=["stages.quality.rewards.length=0.5"]).config
    table = resolved(**two, sets=["stages.quality.rewards.length=2.0", "stages.quality.rewards={rouge=2}"]).config
    assert one.stages["quality"].rewards == {"meteor": 1.0, "length": 0.5}
    assert table.stages["quality"].rewards == {"rouge": 2.0}


@given(st.text(max_size=30))
def test_set_never_crashes(right: str) -> None:
    """Whatever stands right of the equals sign is a value or a UsageError."""
    for key in ("run.name", "train.seed", "grpo.beta", "stages.length.rewards", "data"):
        with contextlib.suppress(UsageError):
            resolved(strategy="finetuned", sets=[f"{key}={right}"])


@pytest.mark.parametrize(
    ("strategy", "reward", "rewards"),
    [
        (None, None, {"constrained": ["meteor"]}),
        (None, "bleu-rouge", {"constrained": ["bleu", "rouge"]}),
        (None, "length", {"length": ["length"]}),
        ("constrained", "meteor", {"constrained": ["meteor"]}),
        ("finetuned", None, {"length": ["length"], "quality": ["meteor"]}),
        ("finetuned", "meteor-rouge", {"length": ["length"], "quality": ["meteor", "rouge"]}),
        ("finetuned", "length", {"length": ["length"]}),
        ("finetuned", "length-bleu", {"length": ["length"], "quality": ["length", "bleu"]}),
        ("included", "bleu", {"included": ["length", "bleu"]}),
        ("included", "length", {"included": ["length"]}),
        ("included", "rouge-length", {"included": ["length", "rouge"]}),
    ],
)
def test_strategies(strategy: str | None, reward: str | None, rewards: dict[str, list[str]]) -> None:
    """A strategy's stages carry its own signals and those of --reward, each once, with weight 1."""
    stages = resolved(strategy=strategy, reward=reward).config.stages
    assert rewards == {name: list(stage.rewards) for name, stage in stages.items()}
    assert list(rewards) == list(stages)
    assert {1.0} == {weight for stage in stages.values() for weight in stage.rewards.values()}


@pytest.mark.parametrize(
    ("reward", "rewards"),
    [
        ("meteor", {"meteor": 2.0}),
        ("bleu-rouge", {"bleu": 2.0, "rouge": 2.0}),
        ("length", {}),
        # the strategy has a weight of its own for it
        ("length-meteor", {"meteor": 2.0}),
    ],
)
def test_each_quality_signal_has_the_weight_of_quality(reward: str, rewards: dict[str, float]) -> None:
    """In a strategy that gives weights."""
    stages = resolved(strategy="short-sentences", reward=reward).config.stages
    assert stages["length"].rewards == {"length": 6.0, "short_sentences": 1.0, **rewards}


def test_a_signal_may_have_the_name_of_quality() -> None:
    """The word stands for other signals only in tasks that have none of that name."""
    own = TASKS["doc-qa"]
    table = {"stages": {"one": {"rewards": {"quality": 2.0}}}}

    def layer(signals: tuple[str, ...], reward: str) -> dict[str, Any]:
        rewards = TaskRewards(signals=dict.fromkeys(signals, next(iter(own.rewards.signals.values()))))
        presets = TaskPresets(strategies={"own": table}, reward=reward)
        task = dataclasses.replace(own, name="own", rewards=rewards, presets=presets)
        return {key: value for key, value, _ in strategy_layer("own", None, task) if not isinstance(value, dict)}

    assert layer(("quality", "form"), "") == {"stages.one.rewards.quality": 2.0}
    stands = {"stages.one.rewards.form": 2.0, "stages.one.rewards.errors": 2.0}
    assert layer(("form", "errors"), "form-errors") == stands


FILE_STAGES = """
[stages.first]
rewards = { length = 2 }
temperature = 0.7
[stages.second]
rewards = { rouge = 1.0, length = 0.25 }
"""


def test_stages_of_a_file_are_used(tmp_path: Path) -> None:
    """A configuration file's stages stand in for the default strategy, and inherit what they leave out."""
    result = resolved(config_file=config_file(tmp_path, FILE_STAGES))
    assert list(result.config.stages) == ["first", "second"]
    first, second = result.config.stages.values()
    assert (first.rewards, first.temperature, second.temperature) == ({"length": 2.0}, 0.7, 1.0)
    assert (second.steps, second.epochs, second.beta) == (0, 1.0, TINY["grpo"]["beta"])


def test_which_strategy_is_chosen(tmp_path: Path) -> None:
    """--strategy or --reward given by flag replaces the stages of a file wholesale; --preset with a strategy chooses
    it, but gives way to --strategy and to a file's stages."""
    file, chosen = config_file(tmp_path, FILE_STAGES), {"presets": ["included"]}
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"config_file": file, "strategy": "finetuned"}, ["length", "quality"]),
        ({"config_file": file, "reward": "meteor"}, ["constrained"]),
        ({"config_file": file, "reward": "length"}, ["length"]),
        ({"config_file": file}, ["first", "second"]),
        ({}, ["constrained"]),
        (chosen, ["included"]),
        (chosen | {"reward": "bleu"}, ["included"]),
        (chosen | {"strategy": "finetuned"}, ["length", "quality"]),
        (chosen | {"config_file": file}, ["first", "second"]),
    ]
    for layers, stages in cases:
        assert list(resolved(**layers).config.stages) == stages, layers


@pytest.mark.parametrize(
    ("given", "name", "reason"),
    [
        ({"reward": "meteor"}, "constrained", "the default of task tldr (others: --strategy any-length, "),
        ({"strategy": "finetuned"}, "finetuned", "flag --strategy"),
        ({"presets": ["included"]}, "included", "--preset included"),
        ({"reward": "length"}, "finetuned", "--reward length leaves constrained, the default, nothing to reward"),
        ({"presets": ["included"], "reward": "length"}, "included", "--preset included"),
        ({"flags": {"task.name": "ab-judge"}}, "judge", "the default of task ab-judge"),
    ],
)
def test_the_choice_of_a_strategy_has_a_reason(given: dict[str, Any], name: str, reason: str) -> None:
    found = resolved(**given).strategy
    assert found is not None
    assert (found.name, found.reason[: len(reason)]) == (name, reason)


def test_stages_of_a_file_are_of_no_strategy(tmp_path: Path) -> None:
    assert resolved(config_file=config_file(tmp_path, FILE_STAGES)).strategy is None


def test_a_strategy_comes_with_the_profile_of_its_name() -> None:
    """Whether it is named as a strategy or as a preset; over the model's own settings, and below what is typed."""
    found = resolved(model="tiny", strategy="any-length")
    assert found.config.task.targets == "16-128"
    assert found.config.rewards.length_shape == "logarithmic"
    assert found.sources["task.targets"] == "preset profiles/any-length"
    assert found.sources["stages.count.learning_rate"] == "preset models/tiny"
    assert resolved(model="tiny", presets=["any-length"]).config == found.config
    other = resolved(strategy="any-length", reward="rouge", sets=["task.targets=12-60", "task.unit=words"]).config
    assert (other.task.targets, [*other.stages["exact"].rewards]) == ("12-60", ["length", "rouge"])


@pytest.mark.parametrize("chosen", [{"strategy": "constrained"}, {"presets": ["constrained"]}])
def test_a_strategy_that_is_named_is_not_replaced(chosen: dict[str, Any]) -> None:
    """The length alone leaves it nothing to reward, which is said."""
    with refuses("strategy constrained has nothing to reward", "--reward meteor, or another --strategy"):
        resolved(**chosen, reward="length")


@pytest.mark.parametrize(
    "strategy",
    ["any-length", "constrained", "finetuned", "included", "sft-constrained", "sft-included", "short-sentences"],
)
def test_the_settings_of_a_run_keep_its_strategy(strategy: str, tmp_path: Path) -> None:
    """Whatever the default was when it began: a run's config.toml holds its stages, with which it resumes, is repeated
    and is recognised in a grid."""
    first = resolved(model="tiny", strategy=strategy).config
    again = resolved(config_file=config_file(tmp_path, to_toml(first)), environ={"SMOLSUM_RUNS_DIR": "runs"})
    assert again.config == first
    assert again.strategy is None


def test_stage_values_given_in_a_file_beat_stage_defaults(tmp_path: Path) -> None:
    """A model preset's defaults for a stage fill only what the stage does not say itself."""
    text = "[stages.length]\nsteps = 7\nrewards = { length = 1.0 }\n[stages.quality]\nrewards = { bleu = 1.0 }\n"
    stages = resolved(model="tiny", config_file=config_file(tmp_path, text)).config.stages
    assert (stages["length"].steps, stages["quality"].steps) == (7, TINY["stage_defaults"]["quality"]["steps"])


def test_a_number_in_a_file_is_a_text_where_one_is_expected(tmp_path: Path) -> None:
    """As in `--set train.start_prompts=32`; a choice of words is none."""
    text = "[train]\nstart_prompts = 32\n[task]\ntargets = 64\n"
    config = resolved(config_file=config_file(tmp_path, text)).config
    assert (config.train.start_prompts, config.task.targets) == ("32", "64")  # type: ignore[attr-defined]
    with refuses("train.start_prompts must be auto, all or a whole number above 0, got '-1'"):
        resolved(config_file=config_file(tmp_path, "[train]\nstart_prompts = -1\n"))
    with refuses("grpo.loss must be", "got 3"):
        resolved(config_file=config_file(tmp_path, "[grpo]\nloss = 3\n"))


def test_typed_run_value_reaches_the_stages(tmp_path: Path) -> None:
    """A value typed for the whole run also holds in stages that a file gave a value of their own."""
    text = to_toml(resolved(strategy="finetuned").config)
    sets = ["grpo.beta=0.3", "stages.quality.beta=0.4"]
    stages = resolved(config_file=config_file(tmp_path, text), sets=sets).config.stages
    assert (stages["length"].beta, stages["quality"].beta) == (0.3, 0.4)


def test_epochs_displace_inherited_steps(tmp_path: Path) -> None:
    """Epochs given for a stage count, though a layer below gave it steps; given together, steps count."""
    text = "[stages.quality]\nepochs = 2\nrewards = { bleu = 1.0 }\n"
    file = config_file(tmp_path, text)
    by_file = resolved(model="tiny", config_file=file).config
    two: dict[str, Any] = {"model": "tiny", "strategy": "finetuned"}
    by_set = resolved(**two, sets=["stages.quality.epochs=2.0"]).config
    both = resolved(**two, sets=["stages.quality.epochs=2.0", "stages.quality.steps=9"]).config
    found = [(c.stages["quality"].steps, c.stages["quality"].epochs) for c in (by_file, by_set, both)]
    assert found == [(0, 2.0), (0, 2.0), (9, 2.0)]


def test_parse_reward() -> None:
    """A reward names known signals joined by hyphens, each once."""
    assert parse_reward("meteor-rouge", REWARDS) == ("meteor", "rouge")
    assert parse_reward("new", known=("new",)) == ("new",)
    for wrong in ("", "meteor-", "rogue", "meteor-rouge-meteor"):
        with pytest.raises(UsageError):
            parse_reward(wrong, REWARDS)


def test_config_repeats_itself(tmp_path: Path) -> None:
    """A resolved configuration given back as a file repeats it, whatever odd values it holds."""
    sets = ["train.seed=123456789", 'task.system_prompt="a\\n\\"b\\" = # [x] \\u2028 ü"', "grpo.beta=0.1234567890123"]
    first = resolved(strategy="included", reward="meteor-rouge", sets=sets).config
    again = resolved(config_file=config_file(tmp_path, to_toml(first))).config
    assert first == again
    assert list(first.stages) == list(again.stages)


def test_render_is_the_config_with_sources() -> None:
    """The rendering is TOML of the same configuration, and each value's line ends in its source."""
    result = resolved(sets=["train.seed=7"])
    text = render_with_sources(result)
    assert tomli.loads(to_toml(result.config)) == tomli.loads(text)
    assert "seed = 7                                  # --set" in text.splitlines()
    values = [line for line in text.splitlines() if " = " in line]
    assert len(result.sources) == len(values)
    assert all("  # " in line for line in values)


def test_line_numbers_see_through_strings_and_arrays() -> None:
    """A key's line is found past strings and arrays that span lines and look like TOML themselves."""
    text = 'a = """\n[b]\nc = 1\n"""\n\n[b]  # x\n# c = 2\nd = [\n  1,\n]\nc.e = { f = 1 }\n"g" = 2\n'
    lines = {"a": 1, "b": 6, "b.d": 8, "b.c": 11, "b.c.e": 11, "b.c.e.f": 11, "b.g": 12}
    assert lines == line_numbers(text)
    assert lines == line_numbers(text.replace("\n", "\r\n"))


def test_records_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().run.name = "x"  # type: ignore[misc]


FINETUNED = {"strategy": "finetuned"}


@pytest.mark.parametrize(
    ("given", "source", "named", "hint"),
    [
        ({"presets": ["studdy"]}, "", "preset 'studdy'", "did you mean study?"),
        ({"presets": ["repliqa"]}, "", "task doc-qa", "--task doc-qa, or leave --preset repliqa out"),
        ({"presets": ["my.toml"]}, "", "preset 'my.toml'", "a file of your own is given with --config"),
        ({"model": "tinny"}, "flag --model: ", "'tinny'", "did you mean tiny?"),
        ({"strategy": "include"}, "flag --strategy: ", "'include'", "did you mean included?"),
        ({"strategy": "joint"}, "flag --strategy: ", "'joint'", "did you mean included?"),
        ({"strategy": "staged"}, "flag --strategy: ", "'staged'", "did you mean finetuned?"),
        ({"reward": "meteor-rouge-l"}, "flag --reward: ", "'l' in 'meteor-rouge-l'", "--reward meteor-rouge"),
        ({"reward": "rogue"}, "flag --reward: ", "'rogue'", "did you mean rouge?"),
        ({"sets": ["grpo.betta=1"]}, "--set: ", "key 'grpo.betta'", "did you mean grpo.beta?"),
        ({"sets": ["grop={beta=1}"]}, "--set: ", "key 'grop'", "did you mean grpo?"),
        ({"sets": ["seed=1"]}, "--set: ", "key 'seed'", "did you mean train.seed?"),
        (FINETUNED | {"sets": ["stages.qualty.steps=1"]}, "--set: ", "stage 'qualty'", "did you mean quality?"),
        (
            {"sets": ["stages.qualty.steps=1"]},
            "--set: ",
            "stage 'qualty'",
            "did you mean quality, which --strategy finetuned has? Without it, choose from constrained",
        ),
        (
            {"sets": ["stages.quality.steps=1"], "reward": "rouge"},
            "--set: ",
            "stage 'quality'",
            "--strategy finetuned has that stage; without it, choose from constrained",
        ),
        (
            {"flags": {"stages.constrained.steps": 1}, "strategy": "included"},
            "flag: ",
            "stage 'constrained'",
            "--strategy constrained or --strategy sft-constrained has that stage; without it, choose from included",
        ),
        # with the length alone no strategy has a stage for quality
        ({"sets": ["stages.quality.steps=1"], "reward": "length"}, "--set: ", "stage 'quality'", "choose from length"),
        ({"sets": ["stages.zz.steps=1"]}, "--set: ", "stage 'zz'", "choose from constrained"),
        ({"sets": ["stages.constrained.rewards.bleau=1"]}, "--set: ", "signal 'bleau'", "did you mean bleu?"),
        ({"sets": ["grpo.loss=grop"]}, "--set: ", "grpo, study, dr_grpo, dapo, gspo, cispo", "did you mean grpo?"),
        ({"sets": ["grpo.kl=other"]}, "--set: ", "grpo.kl", "leave grpo.kl out to get its default"),
        ({"sets": ["grpo.kl=k33"]}, "--set: ", "k1, k2, k3, got 'k33'", "did you mean k3?"),
        ({"sets": ["grpo.correction=token_clip"]}, "--set: ", "grpo.correction", "did you mean token_mask?"),
        ({"sets": ["grpo.advantage_scale=gpdo"]}, "--set: ", "grpo.advantage_scale", "did you mean gdpo?"),
        ({"sets": ["grpo.beta"]}, "--set grpo.beta: ", "key=value", "--set grpo.beta=0.05"),
    ],
)
def test_unknown_names(given: dict[str, Any], source: str, named: str, hint: str) -> None:
    """An unknown preset, model, strategy, signal, key, stage or choice is refused with the nearest name."""
    with refuses(named) as refused:
        resolved(**given)
    assert (refused.value.message.startswith(source), refused.value.hint) == (True, hint)


@pytest.mark.parametrize(
    "text",
    [
        *("sampling.rollouts=1", "sampling.rollouts=8.0", "sampling.rollouts=true", "sampling.max_new_tokens=0"),
        *("sampling.temperature=0", "sampling.temperature=inf", "sampling.temperature=hot", "data.path=' '"),
        *("task.target_tokens=0", "task.tolerance_tokens=-1", "rewards.length_floor=0", "rewards.overlong_buffer=0"),
        *("grpo.eps_low=1", "grpo.eps_high=0", "grpo.eps_max=0.2", "grpo.beta=nan", "grpo.mask_truncated=1"),
        *("grpo.correction_cap=0.9", "grpo.correction_floor=1", "grpo.off_policy_delta=-1", "optimizer.eps=0"),
        *("optimizer.beta2=1.0", "train.seed=-1", "train.seed=9007199254740992", "run.name=../elsewhere", "run=3"),
        *("stages.quality.steps=-1", "stages.quality.epochs=0", "stages.quality.rewards.meteor=true"),
        "stage_defaults.quality.steps=3",
    ],
)
def test_bad_values_name_their_source(text: str) -> None:
    """A value of the wrong type or out of range is refused, with its source, its key and a remedy."""
    with refuses("--set: ", text.split("=")[0]):
        resolved(strategy="finetuned", sets=[text])
    with refuses("--set: ", "stage quality"):
        resolved(strategy="finetuned", sets=["stages.quality.rewards.meteor=0"])


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    """With the source, the settings and what helps: a post as its own summary, which would train well and mean nothing;
    a correction against the sampler's own log-probs, which would count twice; and a buffer that is longer than what is
    sampled, where a stage reads it."""
    with refuses("data.completion_column", "'prompt'"):
        resolved(sets=["data.completion_column=prompt"])
    file = config_file(tmp_path, '[grpo]\ncorrection = "token_mask"\n')
    with refuses(f"{file}:2: grpo.correction", "--set grpo.old_logprobs=recomputed", "--set grpo.correction=none"):
        resolved(config_file=file)
    chosen = resolved(sets=["grpo.correction=token_mask", "grpo.old_logprobs=recomputed"]).config.grpo
    assert (chosen.correction, chosen.old_logprobs) == ("token_mask", "recomputed")
    sets = ["rewards.overlong_buffer=65", "sampling.max_new_tokens=64"]
    assert resolved(sets=sets).config.rewards.overlong_buffer == 65
    with refuses("--set: ", "rewards.overlong_buffer = 65", "--set rewards.overlong_buffer=12"):
        resolved(sets=[*sets, "stages.constrained.rewards.overlong=0.5"])


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["grpo.loss=gspo"], ["'gspo'", "--set grpo.loss=grpo"]),
        (
            ["grpo.constraint_method=gate", "grpo.constraints=length within 1: 0.9"],
            ["gate", "constraint_method=lagrange"],
        ),
    ],
)
def test_ends_have_a_part_of_what_has_parts(more: list[str], named: list[str]) -> None:
    """A ratio of whole completions gives all tokens the same, and a product of rewards has no parts."""
    for key in ("grpo.length_credit", "stages.constrained.length_credit"):
        with refuses(f"{key} = 'ends'", f"--set {key}=all", *named):
            resolved(sets=[f"{key}=ends", *more])
        resolved(sets=[f"{key}=ends", "grpo.loss=dapo"])
    assert resolved(sets=["grpo.length_credit=ends"]).config.stages["constrained"].length_credit == "ends"
    assert resolved(sets=["stages.constrained.length_credit=ends"]).config.grpo.length_credit == "all"


def test_hindsight_teaches_where_texts_of_a_length_end() -> None:
    """So the task has a length, and the token that ends a text is trained."""
    with refuses("grpo.hindsight", "grpo.train_eos = false", "--set grpo.train_eos=true"):
        resolved(sets=["grpo.hindsight=1", "grpo.train_eos=false"])
    with refuses("grpo.hindsight", "task strict-json", "--set grpo.hindsight=0"):
        resolved(flags={"task.name": "strict-json"}, sets=["grpo.hindsight=1"])
    with refuses("grpo.hindsight", "no stage learns from them", "--set grpo.hindsight=0"):
        resolved(sets=["grpo.hindsight=1", "stages.constrained.learn=best"])
    with refuses("stages.constrained.hindsight", "grpo.train_eos", "--set stages.constrained.hindsight=0"):
        resolved(sets=["stages.constrained.hindsight=1", "grpo.train_eos=false"])
    assert resolved(sets=["grpo.hindsight=1"]).config.stages["constrained"].hindsight == 1


def test_a_countdown_needs_a_length() -> None:
    for key in ("grpo.countdown", "stages.standard.countdown"):
        with refuses(key, "task strict-json", f"--set {key}=0"):
            resolved(flags={"task.name": "strict-json"}, sets=[f"{key}=1"])
    assert resolved(sets=["grpo.countdown=1"]).config.stages["constrained"].countdown == 1


def test_texts_are_imitated_under_the_lengths_that_prompts_ask_for() -> None:
    """So prompts ask for lengths, and something is learnt in hindsight at all."""
    with refuses("grpo.hindsight_of", "no prompt asks", "--set task.targets=16-128", "grpo.hindsight_of=ends"):
        resolved(sets=["grpo.hindsight=1", "grpo.hindsight_of=texts"])
    with refuses("stages.constrained.hindsight_of", "no prompt asks"):
        resolved(sets=["grpo.hindsight=1", "stages.constrained.hindsight_of=texts"])
    with refuses("grpo.hindsight_of", "no use without grpo.hindsight", "--set grpo.hindsight=0.1"):
        resolved(sets=["grpo.hindsight_of=texts", "task.targets=16-128"])
    with refuses("stages.constrained.hindsight_of", "no use without stages.constrained.hindsight"):
        resolved(sets=["stages.constrained.hindsight_of=texts", "task.targets=16-128"])
    sets = ["grpo.hindsight=1", "grpo.hindsight_of=texts", "task.targets=16-128"]
    assert resolved(sets=sets).config.stages["constrained"].hindsight_of == "texts"


@pytest.mark.parametrize(
    ("task", "sets", "named"),
    [
        ("tldr", ["grpo.constraint_weight=9"], ["constraint_weight = 9", "constraint_limit = 5"]),
        ("tldr", ["difficulty.samples=9"], ["difficulty.samples", "--set difficulty.by=reward"]),
        (
            "tldr",
            ["difficulty.samples=9", "difficulty.by=length", "stages.constrained.mix={easy=0.5, hard=0.5}"],
            ["difficulty.samples", "difficulty.by = length", "--set difficulty.by=reward"],
        ),
        ("doc-qa", ["train.guard=stop"], ["train.guard = 'stop'", "doc-qa", "--guard off"]),
    ],
)
def test_what_nothing_would_read_is_refused(task: str, sets: list[str], named: list[str]) -> None:
    """A multiplier cannot begin above its limit either."""
    with refuses("--set: ", *named):
        resolved(sets=[f"task.name={task}", *sets])
    with refuses("grpo.length_credit = 'ends'", "--set grpo.length_credit=all"):
        resolved(sets=["task.name=strict-json", "grpo.length_credit=ends"])
    assert resolved(sets=["grpo.constraint_weight=9", "grpo.constraint_method=sum"]).config.grpo.constraint_weight == 9
    assert resolved(sets=["train.guard=stop"]).config.train.guard == "stop"


@pytest.mark.parametrize("kept", [1, 9])
def test_an_update_keeps_some_of_the_rollouts(kept: int) -> None:
    """A single one has nothing to be compared with, and there are no more than are sampled."""
    with refuses(f"--set: grpo.update_rollouts = {kept}", "8 rollouts", "--set grpo.update_rollouts=4"):
        resolved(sets=[f"grpo.update_rollouts={kept}"])
    assert resolved(sets=["grpo.update_rollouts=8"]).config.grpo.update_rollouts == 8


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[grpo]\n\nbeta = -1\n", ":3: grpo.beta must be 0 or more, got -1.0"),
        ("[grpo]\nbetta = 1\n", ":2: unknown key 'grpo.betta'"),
        ("[grop]\n", ":1: unknown key 'grop'"),
        ("train = 1\n", ":1: train must be a table"),
        ("[stages.quality]\nsteps = 3\n", ":1: stage quality has no reward"),
        ("[stages.quality]\nrewards = ['meteor']\n", ":2: stages.quality.rewards must be a table"),
        ("[stages.'../x']\n", ":1: unknown key 'stages.../x'"),
        ("[stages.'a b']\n", ":1: stages.a b: the name of a stage must be a plain name"),
        ("[stages.Start]\n", ":1: stages.Start: the name of a stage must be other than that of the start's evaluation"),
        ("[grpo]\nloss = study\n", ":2:8: not TOML"),
    ],
)
def test_bad_values_in_a_file_name_its_line(text: str, named: str, tmp_path: Path) -> None:
    """What is wrong in a file is reported with path and line, even where a later layer would win; a syntax error with
    its column too."""
    file = config_file(tmp_path, text)
    with refuses(f"{file}{named}"):
        resolved(config_file=file, sets=["grpo.beta=0.1"])


def test_a_stage_that_learns_otherwise_needs_rewards_too(tmp_path: Path) -> None:
    file = config_file(tmp_path, '[stages.sft]\nlearn = "references"\n')
    with refuses("stage sft has no reward", "below [stages.sft], which choose the best of its checkpoints"):
        resolved(config_file=file)


def test_unreadable_files(tmp_path: Path) -> None:
    """A missing file, a folder and a file that is not a text are refused; a run's folder points to its file."""
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for file, named in (
        (tmp_path / "none.toml", f"{tmp_path}/none.toml: no such file"),
        (tmp_path, f"--config {tmp_path}/config.toml"),
        (tmp_path / "binary", f"{tmp_path}/binary: not UTF-8"),
    ):
        with refuses(named):
            resolved(config_file=file)
