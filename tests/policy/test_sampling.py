"""Sampling: each rollout its own stream, its true log-probs, and an honest end; alone and as records."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.stats import chisquare
from support.models import EOS, build, write

from smolsum.config.sections import SamplingConfig
from smolsum.policy import fast_math
from smolsum.policy.load import Policy, load_policy
from smolsum.policy.logprobs import group_logprobs
from smolsum.policy.sampling import Completion, generate, prefill, rollout_seed
from smolsum.rollout.source import decode, sample_groups
from smolsum.types import Prompt, Rollout, SamplingProgress

# isort: split
import mlx.core as mx
import mlx.nn as nn

PROMPTS = [[5, 9, 33, 4, 60, 12, 8, 41], [7], [3, 3], [11, 12, 13, 14, 15]]
SEEDS = [[rollout_seed(1, p, g) for g in range(4)] for p in range(len(PROMPTS))]


def sample(
    model: nn.Module, prompts: list[list[int]], seeds: list[list[int]], *, temperature: float = 1.0, tokens: int = 24
) -> list[list[Completion]]:
    return generate(model, prompts, seeds, eos_ids=frozenset({EOS}), temperature=temperature, max_new_tokens=tokens)


def eager() -> nn.Module:
    """A model that likes to stop: about one token in ten is EOS."""
    model = build("qwen2", tie_word_embeddings=False)
    bias = mx.zeros(64)
    bias[EOS] = 2.5
    model.lm_head = nn.Linear(32, 64)
    model.lm_head.bias = bias
    return model


def test_it_can_be_replayed_after_others_have_left_the_batch() -> None:
    """Rollouts that end and leave make no difference to those that go on."""
    model = eager()
    together = sample(model, PROMPTS, SEEDS, tokens=40)
    assert len({len(c.token_ids) for row in together for c in row}) > 4
    for prompt, seeds, row in zip(PROMPTS, SEEDS, together, strict=True):
        for seed, completion in zip(seeds, row, strict=True):
            alone = sample(model, [prompt], [[seed]], tokens=40)[0][0]
            assert (alone.token_ids, alone.finish_reason) == (completion.token_ids, completion.finish_reason)


def test_a_longer_limit_goes_on_where_a_shorter_one_cut() -> None:
    """The limit is not part of a rollout's randomness."""
    model = build("qwen2")
    short, long = (sample(model, PROMPTS[:1], SEEDS[:1], tokens=n)[0][0] for n in (3, 12))
    assert long.token_ids[:3] == short.token_ids


def test_a_prompt_is_read_without_the_logits_of_its_tokens() -> None:
    """Those after its last one are the model's own; the others, a vocabulary for each token, are not computed."""
    tokens, vocabulary = 300, 50_000
    model = build("gemma3", vocab_size=vocabulary)  # sampled with MLX
    prompts = [tuple(n % 60 + 1 for n in range(start, start + tokens)) for start in (0, 7)]
    mx.eval(model.parameters())
    mx.reset_peak_memory()
    before, read = mx.get_active_memory(), list[int]()
    _, logits = prefill(model, prompts, read.append)
    assert mx.get_peak_memory() - before < tokens * vocabulary * 4 / 2
    assert read == [tokens, 2 * tokens]
    for row, prompt in zip(logits, prompts, strict=True):
        assert np.allclose(row, model(mx.array([prompt]))[0, -1], atol=1e-4)


def test_every_thread_can_read_prompts() -> None:
    """A worker samples in a thread, and a stream works only in the thread that made it."""
    model = build("gemma3")
    mx.eval(model.parameters())
    here = sample(model, PROMPTS, SEEDS)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(sample, model, PROMPTS, SEEDS).result() == here


def test_the_end_is_told_and_kept() -> None:
    """EOS is the last token of a rollout that stopped, and in no other place; a rollout at the limit says so."""
    completions = [c for row in sample(eager(), PROMPTS, SEEDS, tokens=12) for c in row]
    assert {c.finish_reason for c in completions} == {"stop", "length"}
    for c in completions:
        assert len(c.token_ids) == len(c.logprobs)
        assert EOS not in c.token_ids[:-1]
        if c.finish_reason == "stop":
            assert c.token_ids[-1] == EOS
        else:
            assert c.token_ids[-1] != EOS
            assert len(c.token_ids) == 12


def test_eos_as_the_last_token_allowed_is_a_stop() -> None:
    """A rollout whose EOS comes just in time was not cut."""
    model = eager()
    rows = zip(PROMPTS, SEEDS, sample(model, PROMPTS, SEEDS, tokens=40), strict=True)
    every = ((prompt, seed, c) for prompt, seeds, row in rows for seed, c in zip(seeds, row, strict=True))
    prompt, seed, free = next(one for one in every if 2 < len(one[2].token_ids) < 40)
    for tokens, finish in ((len(free.token_ids), "stop"), (len(free.token_ids) - 1, "length")):
        got = sample(model, [prompt], [[seed]], tokens=tokens)[0][0]
        assert (got.token_ids, got.finish_reason) == (free.token_ids[:tokens], finish)


@pytest.mark.parametrize("family", ["qwen2", "lfm2"])
def test_half_precision_samples_and_trains(family: str) -> None:
    """A bfloat16 model works on every backend, and its two sets of log-probs agree to its rounding."""
    model = build(family)
    model.set_dtype(mx.bfloat16)
    fast_math.install(model)
    for prompt, row in zip(PROMPTS, sample(model, PROMPTS, SEEDS, tokens=6), strict=True):
        logp, _ = group_logprobs(model, prompt, [c.token_ids for c in row])
        for got, c in zip(logp.tolist(), row, strict=True):
            np.testing.assert_allclose(got[: len(c.logprobs)], c.logprobs, atol=0.1)


def test_greedy_takes_the_likeliest_token() -> None:
    """Temperature 0 is argmax at every step, whatever the seed, with log-probs at temperature 1."""
    model = build("lfm2")
    completion, other = sample(model, PROMPTS[:1], [[1, 2]], temperature=0.0, tokens=10)[0]
    assert completion == other
    ids = list(PROMPTS[0])
    for token, logprob in zip(completion.token_ids, completion.logprobs, strict=True):
        logits = model(mx.array([ids]))[0, -1]
        assert mx.argmax(logits).item() == token
        assert (logits[token] - mx.logsumexp(logits)).item() == pytest.approx(logprob, abs=1e-4)
        ids.append(token)


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_tokens_follow_the_distribution(temperature: float) -> None:
    """The first tokens of 4000 seeds agree with softmax (chi-square; fixed seeds, so never by chance)."""
    model = build("qwen2")
    seeds = [rollout_seed(5, g) for g in range(4000)]
    drawn = [
        c.token_ids[0]
        for batch in range(8)
        for c in sample(model, PROMPTS[:1], [seeds[batch::8]], temperature=temperature, tokens=1)[0]
    ]
    expected = np.array(mx.softmax(model(mx.array(PROMPTS[:1]))[0, -1] / temperature)).astype(float)
    expected *= 4000 / expected.sum()
    observed = np.bincount(drawn, minlength=64).astype(float)
    rare = expected < 5
    assert (~rare).sum() > 10
    observed, expected = (np.append(counts[~rare], counts[rare].sum()) for counts in (observed, expected))
    keep = expected > 0
    assert chisquare(observed[keep], expected[keep]).pvalue > 0.01


def test_two_tokens_of_a_rollout_are_independent_draws() -> None:
    """A rollout does not use the same random number twice."""
    rows = sample(build("qwen2"), [[5, 9]], [[rollout_seed(3, g) for g in range(64)]], temperature=50.0, tokens=2)[0]
    pairs = np.array([c.token_ids for c in rows if len(c.token_ids) == 2])
    assert len({tuple(pair) for pair in pairs.tolist()}) > 50
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.4


def test_seeds_are_their_place_s_own() -> None:
    """63 bits, no two places alike, also where numbers could run together, and the same on every machine."""
    seeds = [
        rollout_seed(run, step, p, g) for run in (1, 11) for step in (1, 11, 111) for p in range(8) for g in range(8)
    ]
    seeds += [rollout_seed(1, "1", 1), rollout_seed(1, 1, "1"), rollout_seed(1, "1, 1"), rollout_seed(1)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62
    assert rollout_seed(42, 0, 0, "a", 0) == 5253903011854145258


# Rollouts as records


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return load_policy(str(write(tmp_path_factory.mktemp("llama"), "llama")))


def test_groups_are_whole_and_say_where_they_come_from(policy: Policy) -> None:
    """G rollouts for each prompt, in its order, with version, worker, text and a seed of their own; the same again, and
    others at another step and under another run's seed."""
    prompts = [Prompt(name, (), ids, (), {}) for name, ids in (("a", (5, 9, 33)), ("b", (7,)), ("b", (7,)))]
    config = SamplingConfig(rollouts=3, max_new_tokens=8)
    groups, again, *others = (
        sample_groups(policy, prompts, config, seed=run, step=step) for run, step in ((1, 4), (1, 4), (1, 5), (2, 4))
    )
    assert groups == again
    assert [group.prompt for group in groups] == prompts
    rollouts = [r for group in groups for r in group.rollouts]
    assert len(rollouts) == len({r.seed for r in rollouts}) == 9
    assert {(r.policy_version, r.worker) for r in rollouts} == {(3, "local")}
    assert all(r.text == decode(policy, r.token_ids) for r in rollouts)
    drawn = [tuple(r.token_ids for r in drawn[0].rollouts) for drawn in (groups, *others)]
    assert len(set(drawn)) == 3


def test_text_has_no_special_tokens_and_no_outer_space(policy: Policy) -> None:
    """What a reward reads."""
    ids = policy.tokenizer.encode(" two words\n")
    assert decode(policy, [*ids, EOS]) == "two words"
    assert decode(policy, [EOS]) == ""


def test_length_leaves_the_end_out() -> None:
    """EOS is not counted where it was sampled; a rollout that was cut has none."""
    stopped = Rollout((5, 6, EOS), (0.0,) * 3, "stop", 0, "w", 1, "")
    cut = Rollout((5, 6, 7), (0.0,) * 3, "length", 0, "w", 1, "")
    assert (stopped.length, stopped.truncated) == (2, False)
    assert (cut.length, cut.truncated) == (3, True)


@pytest.mark.parametrize("native", [True, False], ids=["where it can in C", "by MLX"])
def test_progress_is_reported_while_completions_are_sampled(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any completion is whole, as prompts are read, and up to the end; a completion that ends early is whole."""
    if not native:
        monkeypatch.setattr("smolsum.policy.sampling.decode.can_decode", lambda model: False)
    model, told = load_policy("builtin:tiny").model, list[SamplingProgress]()
    rows = generate(
        model, [(5, 6, 7), (8, 9)], [[1, 2], [3]], eos_ids=frozenset({EOS}), temperature=1.0, max_new_tokens=40,
        report=told.append,
    )  # fmt: skip
    first, last = told[0], told[-1]
    assert (first.total, first.ended, first.tokens) == (3, 0, 0)
    assert 0 < first.share < 1
    sampled = sum(len(completion.token_ids) for row in rows for completion in row)
    assert last == SamplingProgress(3, 3, sampled, 1.0)
    assert [one.share for one in told] == sorted(one.share for one in told)
