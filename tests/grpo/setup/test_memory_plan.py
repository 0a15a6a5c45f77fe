"""How a run fits into a limit on memory: what is chosen, refused, recorded and taken again."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.calls import Call
from support.models import NEEDS_C
from support.refusals import assert_refused, refuses
from support.scripted_worker import ScriptedWorker
from support.training import arguments, kill_in_step, learned, make_data, weights

from smolsum.cli import main
from smolsum.config.resolve import resolve
from smolsum.config.sections import Config
from smolsum.errors import MachineError
from smolsum.grpo.setup import memory_plan
from smolsum.grpo.setup.memory_plan import MemoryPlan, _covers, _distinct, _fewer_tokens, _smaller, plan_memory
from smolsum.grpo.setup.prepare import load_shapes
from smolsum.policy.cpu import native
from smolsum.policy.device_memory import GB, MemoryLimit
from smolsum.policy.load import Policy
from smolsum.runs.records import ChunkingInfo, MemoryInfo, RunInfo
from smolsum.tasks import TASKS
from smolsum.types import Prompt

WITHOUT_LIBRARIES = "from smolsum.grpo.setup import memory_plan\nmemory_plan.outside_arrays = lambda: 0.0"
MANY = {"sampling__rollouts": 16, "stages__length__steps": 4, "stages__quality__steps": 1, "train__validate_every": 0}
PROMPTS = (Prompt("p", (), (5,) * 700, (), {}),)


def config(**sets: object) -> Config:
    """The tiny model with long prompts and completions, so that its updates need more than its evaluations."""
    own = {"sampling.max_new_tokens": 300, "train.eval_batch": 1, "sampling.rollouts": 16, "grpo.beta": 0.0}
    flags = own | {key.replace("__", "."): value for key, value in sets.items()}
    return resolve(TASKS, model="tiny", flags=flags).config


def planned(config: Config, begun: RunInfo | None = None, *, here: float | None = 64) -> MemoryPlan:
    """The plan on a machine that says to have so many GB, or nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMOLSUM_MEMORY_GB", str(here))
        if here is None:
            patch.delenv("SMOLSUM_MEMORY_GB")
        return plan_memory(config, load_shapes(config), PROMPTS, begun, load_shapes)


def refusal(config: Config, begun: RunInfo | None = None, *, here: float = 64) -> MachineError:
    """The error that planning ends with; it has a remedy."""
    with refuses(error=MachineError) as caught:
        planned(config, begun, here=here)
    assert isinstance(caught.value, MachineError)
    return caught.value


def number_after(words: str, text: str | None) -> float:
    found = re.search(rf"{re.escape(words)}([\d.]*\d)", text or "")
    assert found, text
    return float(found[1])


def changed(settings: Config, remedy: str) -> Config:
    sets = dict(pair.strip().split("=") for pair in remedy.rsplit(" (", 1)[0].split("--set ")[1:])
    assert sets
    flags: dict[str, object] = {
        "sampling.max_new_tokens": settings.sampling.max_new_tokens, "train.eval_batch": settings.train.eval_batch,
        "sampling.rollouts": settings.sampling.rollouts, "grpo.beta": 0.0,
    }  # fmt: skip
    flags |= {key: int(value) if value.isdigit() else value for key, value in sets.items()}
    return resolve(TASKS, model="tiny", flags=flags).config


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process holds apart from arrays depends on the tests before, and with it what fits."""
    monkeypatch.setattr("smolsum.grpo.setup.memory_plan.outside_arrays", lambda: 0.4 * GB)


@pytest.fixture(scope="module")
def whole() -> float:
    """The peak without chunks, in GB, where there is room for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("smolsum.grpo.setup.memory_plan.outside_arrays", lambda: 0.4 * GB)
        plan = planned(config())
    assert plan.chunking.rows is None
    assert plan.line == f"memory: {plan.peak / GB:.1f} GB at the peak, of 64 GB (SMOLSUM_MEMORY_GB)"
    return plan.whole / GB


def test_without_a_budget_the_machine_decides(whole: float) -> None:
    """Where all at once does not fit, the fastest chunks that do, and a line that says so."""
    limit = 0.8 * whole
    plan = planned(config(), here=limit)
    assert plan.chunking.rows is not None
    assert plan.peak <= limit * GB < plan.whole
    assert "SMOLSUM_MEMORY_GB" in plan.line
    assert "a time" in plan.line


def test_a_budget_goes_before_the_machine(whole: float) -> None:
    """Also one that is larger than the machine, with a warning."""
    plan = planned(config(engine__memory_budget_gb=0.8 * whole))
    assert plan.chunking.rows is not None
    assert plan.limit.source == "engine.memory_budget_gb"
    assert plan.warnings == []
    plan = planned(config(engine__memory_budget_gb=64), here=0.8 * whole)
    assert plan.chunking.rows is None
    assert "but this machine has" in plan.warnings[0]


def test_a_worker_on_the_same_mac_is_subtracted(whole: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as its health says that it takes; the line names it."""
    monkeypatch.setattr(
        "smolsum.policy.device_memory._of_ram", lambda *_: MemoryLimit(2 * whole * GB, "RAM", blind=True)
    )
    monkeypatch.setattr("smolsum.policy.device_memory._of_cgroups", lambda *_: [])
    worker = ScriptedWorker()
    try:
        worker.health_changes = {"reserved_bytes": int(1.2 * whole * GB)}
        alone, beside = (planned(config(workers__urls=urls), here=None) for urls in ("", worker.url))
    finally:
        worker.close()
    assert (alone.limit.size, beside.limit.size) == pytest.approx((2 * whole * GB, 0.8 * whole * GB), rel=1e-6)
    assert alone.chunking.rows is None
    assert beside.chunking.rows is not None
    assert "of workers on this machine" in beside.line


def test_on_a_gpu_a_budget_is_for_arrays(whole: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the RAM of the host is what leaves the least room; a larger budget than that is still a warning."""
    budget, ram = config(engine__memory_budget_gb=64), MemoryLimit(2 * whole * GB, "available RAM")
    monkeypatch.setattr("smolsum.grpo.setup.memory_plan.tightest_limit", lambda environ, **_: ram)
    assert "process" in planned(budget, here=None).parts
    monkeypatch.setattr("smolsum.policy.device_memory.on_cpu", lambda: False)
    plan = planned(budget, here=None)
    assert "process" not in plan.parts
    assert plan.warnings == []
    assert plan.here.of_arrays
    little = replace(ram, size=0.5 * whole * GB)
    monkeypatch.setattr("smolsum.grpo.setup.memory_plan.tightest_limit", lambda environ, **_: little)
    assert "but this machine has" in planned(budget, here=None).warnings[0]


def test_where_nothing_fits_the_remedies_do() -> None:
    """Flags with which the same command is accepted, the smallest change first."""
    settings = config(sampling__rollouts=8, sampling__max_new_tokens=800, train__eval_batch=50)
    error = refusal(settings, here=0.01)
    assert "smaller model" in str(error.hint)
    here = number_after("training needs at least ", error.message) - 0.03
    planned(changed(settings, str(refusal(settings, here=here).hint).split("; or ")[0]), here=here)


def test_remedies_differ_and_leave_a_little_room() -> None:
    """None repeats another with further changes, and available RAM may shrink a little until the next start."""
    settings = config(sampling__rollouts=32, sampling__max_new_tokens=600, train__eval_batch=50)
    limit = 0.93 * number_after("at least ", refusal(settings, here=0.01).message)
    remedies = str(refusal(settings, here=limit).hint).split("; or ")
    sets = [{*re.findall(r"--set (\S+)", remedy)} for remedy in remedies]
    assert len(sets) > 1
    assert not any(first <= later for n, later in enumerate(sets) for first in sets[:n])
    for remedy in remedies:
        planned(changed(settings, remedy), here=0.985 * limit)


@pytest.mark.parametrize(
    ("first", "later", "covered"),
    [
        ({"model.adapter": "lora"}, {"model.adapter": "lora", "model.quantize": 4}, True),
        ({"model.adapter": "lora", "model.quantize": 4}, {"sampling.max_new_tokens": 87}, False),
        ({"sampling.rollouts": 4, "train.eval_batch": 12}, {"sampling.rollouts": 2, "train.eval_batch": 12}, True),
        ({"sampling.rollouts": 2}, {"sampling.rollouts": 4, "model.adapter": "lora"}, False),
        ({"sampling.max_new_tokens": 87}, {"sampling.max_new_tokens": 175, "sampling.rollouts": 4}, False),
    ],
)
def test_a_larger_change_that_offers_nothing(first: dict[str, Any], later: dict[str, Any], covered: bool) -> None:
    """It is left out, so that others are shown."""
    assert _covers(first, later) is covered


def test_where_nothing_would_fit_the_refusal_says_how_to_try() -> None:
    """An estimate may be too high; what the hint names is accepted, with a budget as well."""
    hint = refusal(config(engine__memory_budget_gb=0.02), here=0.01).hint
    budget = config(engine__memory_budget_gb=number_after("engine.memory_budget_gb=", hint))
    assert planned(budget, here=0.01).warnings
    hint = refusal(config(), here=0.01).hint
    assert 0 < number_after("the least that this model takes is ", hint) < 1
    planned(config(), here=number_after("SMOLSUM_MEMORY_GB=", hint))


def test_a_budget_that_is_too_small_names_one_that_is_not() -> None:
    """The machine has room, so a larger budget is the smallest change."""
    budget = number_after("memory_budget_gb=", refusal(config(engine__memory_budget_gb=0.01)).hint)
    assert planned(config(engine__memory_budget_gb=budget)).peak <= budget * GB


def test_a_run_that_began_without_chunks_does_not_claim_any(whole: float) -> None:
    """It may need more than its budget by today's estimate, and still takes all rollouts at once."""
    began = RunInfo(memory=MemoryInfo(chunking=ChunkingInfo()))
    plan = planned(config(engine__memory_budget_gb=0.8 * whole), began)
    assert plan.chunking.rows is None
    assert plan.line.endswith("(engine.memory_budget_gb)")


def test_no_remedy_makes_the_target_unreachable() -> None:
    """For a target of 64 +- 5 a remedy of 40 tokens would train nothing; a task without a length has no such limit."""
    settings = config(sampling__max_new_tokens=160, sampling__rollouts=64, train__eval_batch=50)
    assert _fewer_tokens(settings) == [87]
    assert _fewer_tokens(config(sampling__max_new_tokens=60)) == []
    assert _fewer_tokens(config(sampling__max_new_tokens=350)) == [175, 87]
    json = resolve(TASKS, flags={"task.name": "strict-json", "sampling.max_new_tokens": 160}).config
    assert _fewer_tokens(json) == [80, 40, 20, 16]
    for alternative in _smaller(settings):
        assert all(sets.get("sampling.max_new_tokens", 87) >= 87 for sets in alternative)


def test_far_too_many_tokens_are_answered_with_fewer() -> None:
    """Not with a smaller model: some number of tokens does fit, and the machine takes it."""
    hint = refusal(config(sampling__max_new_tokens=10_000_000)).hint
    fits = int(number_after("--set sampling.max_new_tokens=", hint))
    assert 300 < fits < 10_000_000
    planned(config(sampling__max_new_tokens=fits))
    refusal(config(sampling__max_new_tokens=4 * fits))


def test_sizes_that_differ_never_look_equal() -> None:
    """ "Needs 13 GB, there are 13 GB" would say nothing."""
    assert _distinct(13.3e9, 12.9e9) == ("13.3 GB", "12.9 GB")
    assert _distinct(9.97e9, 10.04e9) == ("9.97 GB", "10.04 GB")
    assert _distinct(32e9, 8.51e9) == ("32 GB", "8.5 GB")
    assert _distinct(8e9, 8e9) == ("8.000 GB", "8.000 GB")


def test_a_dry_run_and_a_start_warn_of_a_target_out_of_reach(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """Both say it once, with settings that go together; those draw no warning."""
    monkeypatch.delenv("SMOLSUM_MEMORY_GB", raising=False)
    steps = {"stages__length__steps": 1, "stages__quality__steps": 1, "train__validate_every": 0}
    asked = arguments(data, tmp_path / "runs", "a", sampling__max_new_tokens=30, **steps)
    for more, times in ((["--dry-run"], 1), (["--quiet"], 1), (["--set=sampling.max_new_tokens=84", "--dry-run"], 0)):
        code, _, err = call(*asked, *more)
        assert (code, err.count("no summary can reach 42 tokens (task.target_tokens)")) == (0, times)
    code, _, err = call(*asked, "--set=task.unit=words", "--dry-run")
    assert (code, err.count("summaries of 42 words (task.target_tokens) may need 84 tokens")) == (0, 1)


def test_a_resumed_run_takes_the_chunks_that_it_began_with(whole: float) -> None:
    """Whatever this machine has. What no longer fits is refused with a remedy."""
    began = ChunkingInfo(rows=4, logits=2_000_000, checkpointing=True)
    plan = planned(config(), RunInfo(memory=MemoryInfo(chunking=began)))
    assert (plan.chunking.rows, plan.chunking.logits, plan.chunking.checkpointing) == (4, 2_000_000, True)
    at_once = RunInfo(memory=MemoryInfo(chunking=ChunkingInfo()))
    assert planned(config(), at_once).chunking.rows is None
    error = refusal(config(), at_once, here=0.8 * whole)
    assert "all rollouts at once" in error.message
    assert planned(config(), at_once, here=number_after("SMOLSUM_MEMORY_GB=", error.hint)).chunking.rows is None


def test_quantised_weights_on_the_cpu_are_slow_and_it_says_so() -> None:
    """Before the run, and in the dry run."""
    assert planned(config()).warnings == []
    plan = planned(config(model__adapter="lora", model__quantize=4))
    assert "takes two to four times as long" in plan.warnings[0]


@NEEDS_C
def test_a_precision_that_products_cannot_have(whole: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library, with another type of weights, with prompts that are not shared, on another processor where
    it was begun elsewhere; else it is recorded. Where memory is short, products in float32 are the first remedy."""
    medium = config(optimizer__matmul_precision="medium")
    with monkeypatch.context() as patch:
        patch.setattr(memory_plan, "why_no_bfloat16", lambda: "")
        assert planned(medium).record()["chunking"]["bfloat16"]
        assert not planned(config()).record()["chunking"]["bfloat16"]
        assert (refusal(medium, here=0.8 * whole).hint or "").startswith("--set optimizer.matmul_precision=highest (")
        halves = config(optimizer__matmul_precision="medium", model__dtype="bfloat16")
        assert "does not compute updates of this model" in refusal(halves).message
        apart = config(optimizer__matmul_precision="medium", engine__shared_prefix=False)
        assert "computes a prompt once for all" in refusal(apart).message
    with monkeypatch.context() as patch:
        patch.setattr(native, "_library", None)
        patch.setattr(native, "_reason", "there is no C compiler")
        error = refusal(medium)
        begun = refusal(medium, RunInfo(memory=MemoryInfo(chunking=ChunkingInfo(bfloat16=True))))
    wanted = "optimizer.matmul_precision = medium: the library in C is not in use: there is no C compiler"
    assert error.message == begun.message == wanted
    assert "in float32" in (error.hint or "")
    assert "--config" in (begun.hint or "")


def test_nothing_is_read_before_the_plan(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """A run that does not fit ends before its weights are read, and leaves no directory behind."""
    monkeypatch.setenv("SMOLSUM_MEMORY_GB", "0.01")
    read: list[Policy] = []
    monkeypatch.setattr("smolsum.grpo.setup.prepare.read_weights", read.append)
    refused = call(*arguments(data, tmp_path / "runs", "a"))
    assert_refused(refused, "training needs at least", error=MachineError)
    assert read == []
    assert not (tmp_path / "runs" / "a").exists()


@pytest.mark.slow
def test_a_killed_run_in_chunks_resumes_bit_for_bit_with_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """kill -9, then a machine with room for everything at once: the same weights as without the interruption."""
    data, runs, other = make_data(tmp_path / "data", test=1), tmp_path / "runs", tmp_path / "other"
    monkeypatch.setattr(
        "smolsum.grpo.setup.memory_plan.outside_arrays", lambda: 0.0
    )  # so that chunks save a large share
    monkeypatch.setenv("SMOLSUM_MEMORY_GB", "64")
    assert main.main([*arguments(data, runs, "chunks", **MANY), "--dry-run"]) == 0
    lines = capsys.readouterr().err.splitlines()
    whole = float(next(line for line in lines if line.startswith("peak without chunks")).split()[-1])
    monkeypatch.setenv("SMOLSUM_MEMORY_GB", str(0.9 * whole))

    assert main.main(arguments(data, runs, "chunks", **MANY)) == 0
    kill_in_step(arguments(data, other, "chunks", **MANY), 4, first=WITHOUT_LIBRARIES)
    began = [json.loads((root / "chunks/run.json").read_text())["memory"]["chunking"] for root in (runs, other)]
    assert began[0] == began[1]
    assert began[0]["rows"]

    monkeypatch.setenv("SMOLSUM_MEMORY_GB", "64")
    assert main.main(["train", "--resume", str(other / "chunks")]) == 0
    assert learned(other / "chunks") == learned(runs / "chunks")
    assert weights(other / "chunks", 5) == weights(runs / "chunks", 5) != {}
    assert json.loads((other / "chunks/run.json").read_text())["memory"]["chunking"] == began[0]
