"""Alerts: what an expert would notice in a run, as sentences with advice.

Each check is a function from a run to an alert, or None; CHECKS lists them, the most serious first. The limits are
ours, set between the numbers of the study and the built-in runs and those of runs that learn nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from smolsum.config.targets import TOKENS
from smolsum.runs.reader import Run
from smolsum.runs.standstill import ADVICE, standstill
from smolsum.runs.state import time_of_day
from smolsum.runs.writer import AT_WORK_STATES

WINDOW = 50
"""The newest steps that a check looks at."""
ENOUGH = 20
"""Steps of a stage before its trends are judged."""


@dataclass(frozen=True)
class Alert:
    """A sentence, what to do about it, and how serious it is."""

    level: Literal["trouble", "warning", "note"]
    sentence: str
    advice: str


def find_alerts(run: Run) -> list[Alert]:
    """Return the alerts of a run, the most serious first."""
    found = [alert for check in CHECKS if (alert := check(run)) is not None]
    return sorted(found, key=lambda alert: ("trouble", "warning", "note").index(alert.level))


def _not_finite(run: Run) -> Alert | None:
    missing = {name: series.missing for name, series in run.series.items() if series.missing}
    skipped = sum(run.recent("update/skipped", WINDOW))
    if skipped:
        return Alert(
            "trouble",
            f"{skipped:.0f} of the last {len(run.recent('update/skipped', WINDOW))} updates had a gradient that is not "
            "finite and were left out",
            "lower optimizer.learning_rate, or model.dtype=float32",
        )
    if missing:
        name, count = max(missing.items(), key=lambda item: item[1])
        return Alert(
            "warning", f"{name} was not finite in {count} steps", "see the log (l) for the steps and the names"
        )
    return None


def _no_spread(run: Run) -> Alert | None:
    shares = run.recent("frac_reward_zero_std", WINDOW)
    if len(shares) < ENOUGH or fmean(shares) <= 0.5:
        return None
    return Alert(
        "warning",
        f"{fmean(shares):.0%} of the groups of the last {len(shares)} steps have the same reward for every rollout: "
        "they teach nothing",
        "train.refill_rounds=2 replaces them; a higher sampling.temperature or a finer reward spreads them",
    )


def _stands_still(run: Run) -> Alert | None:
    sentence = standstill(run)
    return Alert("warning", sentence, ADVICE) if sentence else None


def _greedy_differs(run: Run) -> Alert | None:
    greedy, sampled = run.recent("validation/completions/mean_length", 1), run.recent("completions/mean_length", ENOUGH)
    target, tolerance = run.settings.target_tokens, run.settings.tolerance_tokens
    if run.settings.targets or run.settings.unit != TOKENS:
        return None  # validations and steps ask for other lengths
    if "length" not in run.weights() or target is None or tolerance is None or not greedy or len(sampled) < ENOUGH:
        return None
    off_target = max(abs(length - target) for length in (greedy[0], fmean(sampled)))
    if min(off_target, abs(greedy[0] - fmean(sampled))) <= tolerance:
        return None
    return Alert(
        "warning",
        f"greedy completions have {greedy[0]:.0f} tokens and samples {fmean(sampled):.0f}: further apart than the "
        f"tolerance of {tolerance}",
        "results are measured on greedy ones: train on, or try another learning rate (smolsum train --find-lr)",
    )


def _flat_spread(run: Run) -> Alert | None:
    spread = run.recent("reward_std", WINDOW)
    if len(spread) < ENOUGH:
        return None
    peak = run.series["reward_std"].high
    if peak > 0 and fmean(spread) > 0.1 * peak:
        return None
    return Alert(
        "warning",
        f"rewards in a group hardly differ: their spread is {fmean(spread):.2g}, it was up to {peak:.2g}",
        "the stage has learnt what its reward can teach: go on to the next stage, or use a finer reward",
    )


def _clip(run: Run) -> Alert | None:
    name = "cispo_clip_ratio" if "cispo_clip_ratio" in run.series else "clip_ratio/region_mean"
    shares = run.recent(name, WINDOW)
    if len(shares) < ENOUGH:
        return None
    if run.series[name].high == 0:
        if run.settings.old_logprobs == "sampler" and not any(run.recent("staleness/max", WINDOW)):
            return None  # rollouts are fresh and each is used once, so the ratio is 1
        return Alert(
            "note",
            f"clipping never changed anything in {run.series[name].count} steps",
            "the policy moves little between sampling and update: a higher learning rate would be safe",
        )
    if fmean(shares) > 0.2:
        return Alert(
            "warning",
            f"{fmean(shares):.0%} of the policy ratios were clipped in the last {len(shares)} steps",
            "lower optimizer.learning_rate, or sample more often",
        )
    return None


def _gradient_always_cut(run: Run) -> Alert | None:
    norms, limit = run.recent("grad_norm", WINDOW), run.settings.max_grad_norm
    # Adam divides by the gradients' size, so only what differs from step to step is lost
    if limit is None or len(norms) < ENOUGH or sum(norm > 5 * limit for norm in norms) < 0.9 * len(norms):
        return None
    return Alert(
        "note",
        f"nearly every gradient of the last {len(norms)} steps was cut to norm {limit:g}, less than a fifth",
        "the learning rate alone sets the step size now; optimizer.max_grad_norm could be higher",
    )


def _stale(run: Run) -> Alert | None:
    lags, bound = run.recent("staleness/max", WINDOW), run.settings.max_staleness
    if bound is None or not lags or max(lags) <= bound:
        return None
    return Alert(
        "warning",
        f"rollouts were up to {max(lags):.0f} versions old in the last {len(lags)} steps; the bound is {bound}",
        "see workers for the one that lags; fewer prompts in flight, or a faster link for weights",
    )


def _workers(run: Run) -> Alert | None:
    """Only of a run at work: workers of one that has ended may be gone."""
    if run.status.state not in AT_WORK_STATES:
        return None
    last = {name: event for name, event in run.worker_events.items() if event.kind in ("worker_down", "worker_silent")}
    down = [name for name, event in last.items() if event.kind == "worker_down"]
    if not last:
        return None
    name, event = next((item for item in last.items() if item[0] in down), next(iter(last.items())))
    others = f" (and {len(last) - 1} more)" if len(last) > 1 else ""
    state = "down" if down else "silent"
    return Alert(
        "trouble" if len(down) == len(run.workers()) else "warning",
        f"worker {name} has been {state} since {time_of_day(event.time) or '--:--:--'}{others}: {event.message}",
        event.hint or "see its log; start it again with smolsum serve-worker, and it joins by itself",
    )


def _lagging(run: Run) -> Alert | None:
    bound = run.settings.max_staleness
    lags = {name: lag for name in run.workers() if (lag := run.in_last_step(f"workers/{name}/lag")) is not None}
    if bound is None or not lags or run.status.state not in AT_WORK_STATES:
        return None
    name, most = max(lags.items(), key=lambda item: item[1])
    if most <= bound:
        return None
    return Alert(
        "warning",
        f"worker {name} samples nothing: its weights are {most:.0f} versions old, and the bound is {bound}",
        "see its log and its link; it joins again once it has the newest weights",
    )


def _truncated(run: Run) -> Alert | None:
    shares = run.recent("completions/clipped_ratio", WINDOW)
    if len(shares) < ENOUGH or fmean(shares) <= 0.1:
        return None
    return Alert(
        "warning",
        f"{fmean(shares):.0%} of the completions of the last {len(shares)} steps were cut at the token limit",
        "raise sampling.max_new_tokens, or add the signal overlong",
    )


def _dominated(run: Run) -> Alert | None:
    parts = {
        name: abs(weight) * fmean(recent)
        for name, weight in run.weights().items()
        if (recent := run.recent(f"rewards/{name}/std", WINDOW))
    }
    total = sum(parts.values())
    if len(parts) < 2 or not total:
        return None
    name, most = max(parts.items(), key=lambda item: item[1])
    if most < 0.9 * total:
        return None
    return Alert(
        "warning",
        f"{name} makes {most / total:.0%} of the reward's spread: the other signals hardly count",
        f"lower stages.{run.stage}.rewards.{name}, or grpo.advantage_scale=gdpo",
    )


def _lost_updates(run: Run) -> Alert | None:
    lost, visible = run.recent("update/lost_norm_frac", WINDOW), run.recent("update/visible_frac", WINDOW)
    if len(lost) >= ENOUGH and fmean(lost) > 0.3:
        return Alert(
            "warning",
            f"{fmean(lost):.0%} of each update is lost to rounding",
            "optimizer.precision=masters keeps it; so does a higher learning rate",
        )
    if len(visible) >= ENOUGH and fmean(visible) < 0.001:
        return Alert(
            "note",
            f"an update changes {fmean(visible):.2%} of the weights that are served",
            "small steps add up in the float32 masters; served weights follow slowly",
        )
    return None


def _overfitting(run: Run) -> Alert | None:
    checks, rewards = run.recent("validation/reward", 8), run.recent("reward", 8 * WINDOW)
    if len(checks) < 3 or len(rewards) < 2 * ENOUGH:
        return None
    best = checks.index(max(checks))
    rise = fmean(rewards[-ENOUGH:]) - fmean(rewards[:ENOUGH])
    if rise <= 0 or len(checks) - 1 - best < 2 or checks[-1] >= checks[best] - 0.1 * abs(checks[best]):
        return None
    return Alert(
        "warning",
        f"reward rose by {rise:.2g} while the validation's fell from {checks[best]:.3g} to {checks[-1]:.3g}",
        "the best checkpoint is kept: stop (S), or raise grpo.beta",
    )


def _repetition(run: Run) -> Alert | None:
    repeated, rewards = run.recent("completions/repeated_trigrams", 512), run.recent("reward", 512)
    if len(repeated) < 2 * ENOUGH or len(rewards) < 2 * ENOUGH:
        return None
    before, now = fmean(repeated[:ENOUGH]), fmean(repeated[-ENOUGH:])
    rise = fmean(rewards[-ENOUGH:]) - fmean(rewards[:ENOUGH])
    if now - before < 0.05 or rise <= 0:
        return None
    return Alert(
        "warning",
        f"reward rose by {rise:.2g} while repeated trigrams rose from {before:.1%} to {now:.1%}",
        "the reward may be paid for repeating: read completions (tab), raise grpo.beta",
    )


def _paid_for(run: Run) -> Alert | None:
    columns = [name.split("/")[1] for name in run.series if name.startswith("guard/") and name.endswith("/alarm")]
    found = [column for column in columns if run.in_last_step(f"guard/{column}/alarm")]
    if not found:
        return None
    titles = {metric.rpartition("/")[2]: title for metric, title in run.headlines.items()}
    names = " and ".join(titles.get(column, column.replace("_", " ")) for column in found)
    return Alert(
        "warning",
        f"the reward pulls what has got worse since the stage began: {names}",
        "read completions (tab); another reward, a constraint on it, or --guard rollback",
    )


def _off_target(run: Run) -> Alert | None:
    # over all stages, as a later one may lose what an earlier one has taught
    series = run.series.get("length/within_tol")
    hits = series.recent(512, 0) if series and run.weights() else []
    if len(hits) < 2 * ENOUGH:
        return None
    best = max(fmean(hits[n : n + ENOUGH]) for n in range(0, len(hits) - ENOUGH + 1, ENOUGH))
    now = fmean(hits[-ENOUGH:])
    if best - now < 0.3:
        return None
    if "length" in run.weights():
        advice = "another signal pulls the length away: raise the weight of length"
    elif any(name.startswith("constraint/length_") for name in run.row):
        advice = f"the constraint on it does not hold: sample cooler (stages.{run.stage}.temperature)"
    else:
        advice = f"stage {run.stage} does not reward the length: --strategy constrained keeps it, included rewards both"
    return Alert("warning", f"{now:.0%} of the completions have the wanted length, down from {best:.0%}", advice)


def _damaged(run: Run) -> Alert | None:
    counts = run.damaged_lines
    if not counts:
        return None
    parts = " and ".join(f"{count} of {name}" for name, count in counts.items())
    word, verb = ("line", "is") if sum(counts.values()) == 1 else ("lines", "are")
    return Alert(
        "warning",
        f"{sum(counts.values())} damaged {word} {verb} left out: {parts}",
        "their steps are missing here; restore the file from a copy or a mirror",
    )


CHECKS: tuple[Callable[[Run], Alert | None], ...] = (
    _not_finite,
    _damaged,
    _workers,
    _lagging,
    _no_spread,
    _stands_still,
    _flat_spread,
    _overfitting,
    _repetition,
    _paid_for,
    _stale,
    _truncated,
    _dominated,
    _lost_updates,
    _off_target,
    _greedy_differs,
    _clip,
    _gradient_always_cut,
)
