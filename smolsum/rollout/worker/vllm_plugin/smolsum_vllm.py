"""Loads and checks new weights inside a running vLLM (`--worker-extension-cls smolsum_vllm.WeightsExtension`), called
through `/collective_rpc`.

The model is vLLM's own (torch: CUDA and CPU) or mlx-lm's (vllm-metal). Files are safetensors in the Hugging Face
layout.

vllm-metal's paged attention, its default since 0.2.0, replaces `self_attn`, and for LFM2 `conv`, by a module that holds
the real one out of MLX's sight (`object.__setattr__(self, "_inner", inner)` in its attention/impls/sdpa_wrapper.py and
shortconv.py): those weights are missing from `model.parameters()`, and are looked for here.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any


class WeightsExtension:
    """Mixed into vLLM's worker class; its names must differ from vLLM's."""

    get_model: Callable[[], Any]
    reload_weights: Callable[..., None]
    model_config: Any
    model_runner: Any

    def smolsum_beat(self) -> None:
        """Do nothing: the answer shows that the engine still takes steps."""

    def smolsum_sampler(self) -> None:
        """Have vllm-metal return log-probs of the distribution that it samples from.

        It makes its sampler without `--logprobs-mode` (`self._sampler = Sampler()` in its v1/model_runner.py, tag
        v0.3.0.dev20260822182524): at a temperature other than 1 the log-probs would be those of temperature 1.
        """
        sampler, mode = getattr(self.model_runner, "_sampler", None), self.model_config.logprobs_mode
        if sampler is not None and getattr(sampler, "logprobs_mode", mode) != mode:
            self.model_runner._sampler = type(sampler)(logprobs_mode=mode)

    def smolsum_misplaced(self, shapes: Mapping[str, Sequence[int]]) -> list[str]:
        """Return what keeps the model from taking weights of these names and shapes, a line for each tensor: one that
        no parameter takes, another shape, a parameter that gets none. Nothing is changed."""
        model = self.get_model()
        return _misplaced_mlx(model, shapes) if _is_mlx(model) else _misplaced_torch(model, shapes)

    def smolsum_load(self, path: str) -> None:
        """Load the weights in the file, which `smolsum_misplaced` has nothing to say about."""
        model = self.get_model()
        if _is_mlx(model):
            _load_mlx(model, path)
            return
        self.reload_weights(weights_iterator=_tensors(path))
        # a head tied to the embedding is not reloaded, and on CPUs it multiplies with a packed copy of the weights
        head = getattr(model, "lm_head", None)
        method = getattr(head, "quant_method", None)
        if method is not None and hasattr(method, "process_weights_after_loading"):
            method.process_weights_after_loading(head)

    def smolsum_check(self, path: str, columns: int = 0) -> dict[str, list[str]]:
        """Return the names of tensors that differ from the file (`wrong`), and that were not found (`unseen`).

        Weights that vLLM stores as they are get compared bit for bit. Packed weights are read back by multiplying with
        unit vectors: all of them, or `columns` random ones.
        """
        model = self.get_model()
        return _check_mlx(model, path) if _is_mlx(model) else _check_torch(model, path, columns)


def _is_mlx(model: Any) -> bool:
    return any(kind.__module__.startswith("mlx.") for kind in type(model).__mro__)


def _tensors(path: str) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118  not a dictionary
            yield name, file.get_tensor(name)


def _check_torch(model: Any, path: str, columns: int) -> dict[str, list[str]]:
    import torch

    expected = dict(_tensors(path))
    shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    if "lm_head.weight" not in expected and "model.embed_tokens.weight" in expected:
        expected["lm_head.weight"] = expected["model.embed_tokens.weight"]
    wrong, unseen = [], []
    with torch.inference_mode():
        for name, tensor in expected.items():
            found = _find(model, name, shapes)
            if found is None:
                unseen.append(name)
            elif not _holds(*found, tensor, columns):
                wrong.append(name)
    return {"wrong": wrong, "unseen": unseen}


def _find(model: Any, name: str, shapes: dict[str, tuple[int, ...]]) -> tuple[Any, str, int] | None:
    """Return the module that has a tensor of the file, the attribute, and the row at which the tensor starts."""
    modules = dict(model.named_modules())
    for known in _names(model, name):
        place, _, leaf = known.rpartition(".")
        if place in modules and hasattr(modules[place], leaf):
            return modules[place], leaf, 0
        parent, _, part = place.rpartition(".")
        for fused, parts in getattr(model, "packed_modules_mapping", {}).items():
            module = modules.get(f"{parent}.{fused}")
            if part in parts and module is not None and hasattr(module, leaf):
                own = name.rpartition(".")[0].rpartition(".")[0]
                before = [shapes[f"{own}.{other}.{leaf}"][0] for other in parts[: parts.index(part)]]
                return module, leaf, sum(before)
    return None


def _names(model: Any, name: str) -> Iterable[str]:
    """Yield the name, and its other names in vLLM's model."""
    yield name
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    for old, new in (getattr(mapper, "orig_to_new_substr", None) or {}).items():
        if old in name and new is not None:
            yield name.replace(old, new)


def _holds(module: Any, leaf: str, start: int, expected: Any, columns: int) -> bool:
    import torch

    held, rows = getattr(module, leaf), expected.shape[0] if expected.ndim else 1
    same = True
    if held.numel():
        part = held.data[start : start + rows].cpu()
        if part.numel() != expected.numel():
            return False
        same = torch.equal(_bits(part), _bits(expected.to(part.dtype)))
    packed = getattr(module, "cpu_linear", None)
    if not same or packed is None or leaf != "weight" or expected.ndim != 2:
        return same
    width = expected.shape[1]
    chosen = sorted(random.sample(range(width), min(columns or width, width)))
    units = torch.zeros(len(chosen), width, dtype=expected.dtype)
    units[torch.arange(len(chosen)), chosen] = 1
    return bool(torch.equal(packed(units, held, None)[:, start : start + rows].T, expected[:, chosen]))


def _bits(tensor: Any) -> Any:
    import torch

    return tensor.contiguous().view(-1).view(torch.uint8)


def _misplaced_torch(model: Any, shapes: Mapping[str, Sequence[int]]) -> list[str]:
    known = {name: tuple(shape) for name, shape in shapes.items()}
    return [f"{name}: no parameter takes it" for name in known if _find(model, name, known) is None]


def _misplaced_mlx(model: Any, shapes: Mapping[str, Sequence[int]]) -> list[str]:
    import mlx.core as mx

    # arrays that are never computed, so they take no memory
    new = _sanitised(model, {name: mx.zeros(tuple(shape)) for name, shape in shapes.items()})
    places, wrong = _places(model), []
    for name, array in new.items():
        if name not in places:
            wrong.append(f"{name}: no parameter takes it")
        elif array.shape != (held := _held(places, name)).shape:
            wrong.append(f"{name}: {list(array.shape)} sent, {list(held.shape)} there")
    return wrong + [f"{name}: not sent" for name in places if name not in new]


def _load_mlx(model: Any, path: str) -> None:
    import mlx.core as mx

    places, new = _places(model), _sanitised(model, mx.load(path))
    if places.keys() != new.keys():  # all or none
        raise ValueError(f"the model has no place for {sorted(places.keys() ^ new.keys())[:3]}")
    for name, array in new.items():
        container, key = places[name]
        container[key] = array
    mx.eval(list(new.values()))  # after the old ones are gone: both together may be too much


def _check_mlx(model: Any, path: str) -> dict[str, list[str]]:
    import mlx.core as mx

    places, wrong, unseen = _places(model), [], []
    for name, expected in _sanitised(model, mx.load(path)).items():
        if name not in places:
            unseen.append(name)
            continue
        held = _held(places, name)
        if held.dtype != expected.dtype or not mx.array_equal(
            held.view(mx.uint8), mx.contiguous(expected).view(mx.uint8)
        ):
            wrong.append(name)
    return {"wrong": wrong, "unseen": unseen}


def _sanitised(model: Any, weights: dict[str, Any]) -> dict[str, Any]:
    return model.sanitize(weights) if hasattr(model, "sanitize") else weights


Places = dict[str, tuple[Any, Any]]
"""by name, what holds a parameter (a module, list or dictionary) and its key there"""


def _held(places: Places, name: str) -> Any:
    container, key = places[name]
    return container[key]


def _places(model: Any) -> Places:
    """Return where each parameter of an MLX model is, also those of modules that another module holds as a plain
    attribute; the name of that attribute is left out."""
    import mlx.core as mx
    from mlx.nn import Module

    registered = {id(module) for _, module in model.named_modules()}
    found: Places = {}

    def walk(node: Any, prefix: str) -> None:
        for key, value in enumerate(node) if isinstance(node, list) else node.items():
            if str(key).startswith("_"):  # no parameter, to MLX
                continue
            if isinstance(value, mx.array):
                found[f"{prefix}{key}"] = (node, key)
            elif isinstance(value, dict | list):  # modules are dictionaries
                walk(value, f"{prefix}{key}.")
        if isinstance(node, Module):
            for inner in vars(node).values():
                if isinstance(inner, Module) and id(inner) not in registered:
                    registered.add(id(inner))
                    registered.update(id(module) for _, module in inner.named_modules())
                    walk(inner, prefix)

    walk(model, "")
    return found
