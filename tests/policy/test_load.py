"""Models from a directory: what is wrong with one is one sentence, and what is saved comes back bit for bit."""

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.models import CHAT_TEMPLATE, EOS, assert_same_arrays, build, write
from support.refusals import refuses

from smolsum.policy.load import encode_chat, load_policy, locate, rope_settings, snapshot, weights_hash
from smolsum.policy.weights import load_weights, save_policy

# isort: split
import mlx.core as mx
from mlx.utils import tree_unflatten
from mlx_lm.utils import load_model

WEIGHTS = "model.safetensors"


def change_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def with_text(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def with_config(**changes: object) -> Callable[[Path], None]:
    return lambda folder: change_json(folder / "config.json", **changes)


def cut(bytes_kept: int) -> Callable[[Path], None]:
    return lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:bytes_kept]) and None


def drop_shard(folder: Path) -> None:
    """An index that names two shards, of which one did not arrive."""
    weights = list(mx.load(str(folder / WEIGHTS)).items())
    (folder / WEIGHTS).unlink()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    mx.save_safetensors(str(folder / names[0]), dict(weights[:5]))
    index = {name: names[0 if n < 5 else 1] for n, (name, _) in enumerate(weights)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def drop_weight(folder: Path) -> None:
    weights = mx.load(str(folder / WEIGHTS))
    del weights["model.norm.weight"]
    mx.save_safetensors(str(folder / WEIGHTS), weights)


def drop_template(folder: Path) -> None:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


BAD_SIZES = [
    ("num_attention_heads", 0), ("num_key_value_heads", 0), ("hidden_size", -64), ("hidden_size", "64"),
    ("num_hidden_layers", "2"), ("vocab_size", 0.5),
]  # fmt: skip
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (without("config.json"), "config.json"),
    "config not JSON": (with_text("config.json", '{"model_type": "qwen2",\n oops'), "config.json"),
    "config not text": (lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe{}") and None, "config.json"),
    "config a list": (with_text("config.json", "[1, 2]"), "architecture"),
    "config empty": (with_text("config.json", "{}"), "architecture"),
    "unknown architecture": (with_config(model_type="perceptron"), "'perceptron'"),
    "architecture not a name": (with_config(model_type=7), "architecture 7"),
    "architecture a path": (with_config(model_type="../x"), "'../x'"),
    "size missing": (with_config(hidden_size=None), "cannot be loaded"),
    "no weights": (without(WEIGHTS), "model*.safetensors"),
    "shard missing": (drop_shard, "has no model-00002-of-00002.safetensors"),
    "index not JSON": (with_text("model.safetensors.index.json", "{"), "model.safetensors.index.json"),
    "index without a map": (with_text("model.safetensors.index.json", "{}"), "model.safetensors.index.json"),
    "weights empty": (cut(0), "cannot be loaded"),
    "weights header cut": (cut(100), "cannot be loaded"),
    "weights cut": (cut(20_000), "cannot be loaded"),
    "weights not weights": (with_text(WEIGHTS, "<html>not found</html>" * 90), "cannot be loaded"),
    "weights of another shape": (with_config(intermediate_size=64), "cannot be loaded"),
    "weights of another size": (with_config(num_hidden_layers=3), "cannot be loaded"),
    **{
        f"{key} {value!r}": (
            with_config(**{key: value}),
            f"{key} in config.json must be a whole number above 0, got {value!r}",
        )
        for key, value in BAD_SIZES
    },
    "more layers than tensors": (with_config(num_hidden_layers=100_000), "100000 layers"),
    "weight missing": (drop_weight, "cannot be loaded"),
    "no tokenizer": (without("tokenizer.json"), "has no tokenizer.json"),
    "tokenizer not JSON": (with_text("tokenizer.json", "{"), "cannot be loaded"),
    "tokenizer not a tokenizer": (with_text("tokenizer.json", '{"version": "1.0"}'), "cannot be loaded"),
    "tokenizer config not JSON": (with_text("tokenizer_config.json", "{"), "cannot be loaded"),
    "generation config not JSON": (with_text("generation_config.json", "{"), "generation_config.json"),
    "generation config no object": (with_text("generation_config.json", "[]"), "generation_config.json"),
    "no chat template": (drop_template, "chat template"),
}


@pytest.mark.parametrize(("damage", "named"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_model_is_refused(tmp_path: Path, damage: Callable[[Path], None], named: str) -> None:
    """In one line that names the directory and the fault, and with what to do about it."""
    folder = write(tmp_path / "model", "qwen2")
    damage(folder)
    with refuses(folder, named) as raised:
        load_policy(str(folder))
    assert "\n" not in raised.value.message


@pytest.mark.parametrize("damage", [without(WEIGHTS), without("tokenizer.json"), drop_shard])
def test_a_part_of_a_hub_model_is_no_folder_to_complete(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """Without the hub the client returns what an interrupted download has left."""
    folder = write(tmp_path / "hub" / "snapshots" / "0123", "qwen2")
    damage(folder)
    with refuses(folder, "interrupted", "where the hub can be reached"):
        load_policy(str(folder))


@pytest.mark.parametrize(
    ("asked", "remedy"),
    [
        ("./nowhere", "config.json"), ("/nowhere/at/all", "config.json"), ("tiny", "preset"), ("a/b/c", "preset"),
        ("builtin:tny", "tiny"), ("builtin:", "tiny"),
    ],
)  # fmt: skip
def test_a_model_that_is_not_there_is_refused(asked: str, remedy: str) -> None:
    """A path, a hub id or a name that leads nowhere."""
    with refuses(repr(asked.removeprefix("builtin:")), remedy):
        load_policy(asked)


def test_a_file_is_not_a_model(tmp_path: Path) -> None:
    """The weights' own path, given in place of their directory's."""
    folder = write(tmp_path, "llama")
    with refuses(folder / WEIGHTS):
        load_policy(str(folder / WEIGHTS))


def test_a_directory_beats_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """owner/name is local where there is such a directory."""
    write(tmp_path / "ann" / "tiny", "llama")
    monkeypatch.chdir(tmp_path)
    assert locate("ann/tiny") == Path("ann/tiny")


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "lfm2"])
def test_a_model_loads_as_it_was_written(tmp_path: Path, family: str) -> None:
    """Weights bit for bit, end-of-text ids and type."""
    policy = load_policy(str(write(tmp_path, family, seed=3)))
    assert_same_arrays(policy.model, build(family, seed=3))
    assert (policy.eos_ids, policy.dtype, policy.path) == ({EOS}, "float32", tmp_path)


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


LINEAR = {"rope_type": "linear", "factor": 8.0}


@pytest.mark.parametrize(
    ("family", "before", "now"),
    [
        ("qwen2", {"rope_theta": 500.0}, {"rope_type": "default", "rope_theta": 500.0}),
        ("llama", {"rope_theta": 500.0, "rope_scaling": LLAMA3}, {**LLAMA3, "rope_theta": 500.0}),
        (
            "gemma3_text",
            {"rope_theta": 500.0, "rope_local_base_freq": 100.0, "rope_scaling": LINEAR},
            {"full_attention": {**LINEAR, "rope_theta": 500.0},
             "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}},
        ),
    ],
)  # fmt: skip
def test_positions_of_transformers_5(
    family: str, before: dict[str, object], now: dict[str, object], tmp_path: Path
) -> None:
    """It has their settings below another name, which most of mlx-lm's architectures do not read; what is saved has
    both."""
    folder = write(tmp_path / "model", family, **before)
    tokens = mx.array([[3, 4, 5, 6, 7, 8, 9, 10] * 4])
    expected = load_policy(str(folder)).model(tokens)
    config = json.loads((folder / "config.json").read_text())
    held = {key: value for key, value in config.items() if not key.startswith("rope")}
    (folder / "config.json").write_text(json.dumps(held))
    assert not mx.allclose(load_policy(str(folder)).model(tokens), expected), "or there is nothing to see"
    (folder / "config.json").write_text(json.dumps(held | {"rope_parameters": now}))
    policy = load_policy(str(folder))
    assert mx.array_equal(policy.model(tokens), expected)
    (tmp_path / "saved").mkdir()
    save_policy(policy, policy.model.parameters(), tmp_path / "saved")
    model, config = load_model(tmp_path / "saved")
    assert mx.array_equal(model(tokens), expected)
    assert config["rope_theta"] == 500.0


def test_positions_of_a_model_that_also_reads_images() -> None:
    """They stand in the part about its texts; a config of before is left as it is."""
    text = {"hidden_size": 32, "rope_parameters": {"full_attention": {**LINEAR, "rope_theta": 500.0}}}
    found = rope_settings({"model_type": "gemma3", "text_config": text})
    assert found["text_config"] == {**text, "rope_theta": 500.0, "rope_scaling": {**LINEAR, "type": "linear"}}
    assert not rope_settings({"rope_theta": 500.0, "text_config": {"rope_theta": 500.0}})
    assert not rope_settings({"rope_theta": 7.0, "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}})


def test_every_end_of_text_counts(tmp_path: Path) -> None:
    """generation_config.json goes before config.json, and may list several; the tokenizer's own is always one."""
    folder = write(tmp_path, "llama")
    change_json(folder / "generation_config.json", eos_token_id=[5, 6])
    assert load_policy(str(folder)).eos_ids >= {5, 6}
    (folder / "generation_config.json").unlink()
    change_json(folder / "config.json", eos_token_id=9)
    assert 9 in load_policy(str(folder)).eos_ids


def test_shards_are_put_together(tmp_path: Path) -> None:
    """A model in several files equals the one in one file."""
    folder = write(tmp_path / "sharded", "llama")
    whole = mx.load(str(folder / WEIGHTS))
    drop_shard(folder)
    mx.save_safetensors(str(folder / "model-00002-of-00002.safetensors"), dict(list(whole.items())[5:]))
    assert_same_arrays(load_policy(str(folder)).model, tree_unflatten(list(whole.items())))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["qwen2", "lfm2"])
def test_what_is_saved_is_loaded_bit_for_bit(tmp_path: Path, family: str, dtype: str) -> None:
    """By `load_policy`, by `load_weights` and by mlx-lm."""
    policy = load_policy(str(write(tmp_path / "start", family, seed=1)), dtype=dtype)
    (tmp_path / "saved").mkdir()
    save_policy(policy, policy.model.parameters(), tmp_path / "saved")
    other = load_policy(str(write(tmp_path / "other", family, seed=2)), dtype=dtype)
    load_weights(other, tmp_path / "saved")
    again, theirs = load_policy(str(tmp_path / "saved"), dtype=dtype), load_model(tmp_path / "saved")[0]
    assert again.dtype == dtype
    assert weights_hash(tmp_path / "saved") != weights_hash(tmp_path / "other")
    for model in (again.model, other.model, theirs):
        assert_same_arrays(model, policy.model)


def test_only_a_models_own_files_go_along(tmp_path: Path) -> None:
    """A folder may have notes or posts in it. One of the hub's cache, given as a folder, is no model from the hub."""
    folder = write(tmp_path / "hub" / "snapshots" / "0123", "qwen2")
    for name in ("notes.txt", "posts.json", "trainer_state.json"):
        (folder / name).write_text("{}")
    (folder / "special_tokens_map.json").write_text("{}")
    policy = load_policy(str(folder))
    (tmp_path / "saved").mkdir()
    save_policy(policy, policy.model.parameters(), tmp_path / "saved")
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [
        "config.json", "generation_config.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    assert not policy.commit


def test_other_weights_than_the_model_s_can_be_saved(tmp_path: Path) -> None:
    """Any parameter tree, in the policy's type: a snapshot outlives the model's updates."""
    policy = load_policy(str(write(tmp_path / "start", "llama")))
    kept = snapshot(policy.model)
    policy.model.update({"model": {"norm": {"weight": mx.zeros(32)}}})
    (tmp_path / "saved").mkdir()
    save_policy(policy, kept, tmp_path / "saved")
    saved = load_policy(str(tmp_path / "saved")).model
    assert mx.array_equal(saved.model.norm.weight, build("llama").model.norm.weight).item()


def test_a_saved_model_is_whole_and_says_its_type(tmp_path: Path) -> None:
    """Every file of the source but its shard index; config.json with the type that was written."""
    source = write(tmp_path / "start", "qwen2")
    (source / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    shutil.copyfile(source / WEIGHTS, source / "model-00001-of-00001.safetensors")
    (source / WEIGHTS).unlink()
    index = dict.fromkeys(mx.load(str(source / "model-00001-of-00001.safetensors")), "model-00001-of-00001.safetensors")
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (tmp_path / "saved").mkdir()
    policy = load_policy(str(source), dtype="bfloat16")
    save_policy(policy, policy.model.parameters(), tmp_path / "saved")
    names = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert {p.name for p in (tmp_path / "saved").iterdir()} == names | {WEIGHTS}
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert (config["dtype"], config["torch_dtype"]) == ("bfloat16", "bfloat16")


NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"


@pytest.mark.parametrize(
    ("template", "turns"),
    [
        (CHAT_TEMPLATE, "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"),
        (NO_SYSTEM + CHAT_TEMPLATE, "<|im_start|>user\nbe brief\n\nhello<|im_end|>\n"),
        ("{{ raise_exception('never') }}", ""),
    ],
    ids=["takes system messages", "refuses them", "refuses all"],
)
def test_a_chat_is_encoded_up_to_the_answer(tmp_path: Path, template: str, turns: str) -> None:
    """System and user turn by the template, then the header of the assistant's. Gemma's template, for one, raises where
    it meets a system message, and gets it in the user's turn; one that always raises is the user's to mend."""
    folder = write(tmp_path, "llama")
    change_json(folder / "tokenizer_config.json", chat_template=template)
    policy = load_policy(str(folder))
    with nullcontext() if turns else refuses("never", "chat_template"):
        ids = encode_chat(policy, [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}])
        assert policy.tokenizer.decode(ids) == f"{turns}<|im_start|>assistant\n"
        assert ids.count(1) == turns.count("<|im_start|>") + 1
