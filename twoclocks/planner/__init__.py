"""The planner: rates, a sample budget and a hazard budget in; one constant setting or two stages out.

Every candidate (B, c) has progress p_j, hazard r_j and seconds s_j per sample; `twoclocks.program` spends the samples, on at
most two settings. With constant rates and an unclipped clock the frontier p(r) is concave and one constant setting is best;
two neighbours on a grid are only an interpolated constant. So two stages are emitted only when they beat the best
*continuous* constant by more than their interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from twoclocks.errors import MisfitError, NeverReachedError, SettingError
from twoclocks.failure import FailureClock
from twoclocks.planner.rates import Pace, Rates, batch_step, candidates, common_range, named, pace_of
from twoclocks.planner.spend import Budget, Objective, Spend, best_constant, best_vertex, realised
from twoclocks.progress import ProgressClock
from twoclocks.schedule import Schedule, Stage, full_rate_samples, samples_of_full_rate
from twoclocks.setting import Setting

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["common_range", "plan"]

SLACK = 1e-3  # the search for the best constant ends this close to a budget
NUDGE = 0.01  # relative change of a budget behind its price
APART = math.sqrt(2)  # a runner-up's batch differs by at least this factor


class FittedClocks(Protocol):
    """What `plan` needs of `twoclocks.fitting.Clocks`, which sits in a higher layer."""

    @property
    def cells(self) -> pd.DataFrame:
        """One row a run, with its `run_id`."""

    @property
    def draws(self) -> dict[str, pd.DataFrame]:
        """Bootstrap draws of both clocks' parameters."""

    @property
    def shared(self) -> dict[str, Any]:
        """Group, updates per rollout, clip, warm-up and testbed of all runs."""

    @property
    def metric(self) -> str:
        """What progress is measured in."""

    @property
    def gain(self) -> float:
        """The gain that counts as the target."""

    @property
    def warnings(self) -> list[str]:
        """What the runs contradict, in words."""

    def require(self, clock: str) -> Any:
        """The named clock, or UnidentifiedError."""


def plan(
    clocks: FittedClocks,
    *,
    samples: int | None = None,
    safety: float = 0.8,
    settings: Sequence[Setting] | None = None,
    objective: Objective = "progress",
    throughput: Mapping[float, float] | Pace | None = None,
    gain: float | None = None,
    robust: bool = False,
    level: float = 0.95,
    accept_misfit: bool = False,
) -> Schedule:
    """A schedule of at most two stages from fitted clocks.

    Progress: maximise sum p_j x_j with sum x_j <= N, sum r_j x_j <= D. Wall clock: minimise sum s_j x_j with
    sum p_j x_j >= gain, sum r_j x_j <= D, sum x_j <= N. Derived in theory/planner.py.

    Parameters
    ----------
    clocks : Clocks
        From `twoclocks.fit`.
    samples : int
        N, training completions to spend; may be left out for the wall clock (no horizon).
    safety : float
        D, the share of a collapse the run may use up (0 < D <= 1).
    settings : sequence of Setting, optional
        Candidates; default a log grid of batch and drift rate inside what both clocks were fitted on.
    objective : {"progress", "wall_clock"}
    throughput : mapping or callable, optional
        Batch -> completions per second; default as the runs measured it (`seconds` of the run table).
    gain : float, optional
        Metric units to reach on the wall clock; default the fitted target's.
    robust : bool
        Take the lower one-sided `level` bound of samples to failure, over the bootstrap, for the failure clock.
    level : float
        Two stages are emitted if the lower end of this interval of their gain over the best constant is above 0.
    accept_misfit : bool
        Plan even where the runs contradict a clock's law; the schedule's provenance then says so.

    Returns
    -------
    Schedule
        `explain()` says which budgets bind, what more of each would buy, the gain over the best constant, and the runner-up.

    Raises
    ------
    UnidentifiedError
        If the runs do not determine one of the clocks.
    MisfitError
        If the runs contradict a clock's law and accept_misfit is false.
    NeverReachedError
        If no candidate makes progress, or the gain is out of reach.
    ExtrapolationError
        If a named setting, or its throughput, is outside what was measured.
    SettingError
        If safety is out of range, samples do not hold one rollout, or the clocks' fitted ranges do not overlap.
    """
    budget = _budget(clocks, samples, safety, objective, gain)
    progress, failure, shared = clocks.require("progress"), clocks.require("failure"), clocks.shared
    if clocks.warnings and not accept_misfit:
        raise MisfitError(f"{'; '.join(clocks.warnings)}; or pass accept_misfit=True (--accept-misfit) and treat the plan as a guess")
    pace = pace_of(throughput, clocks.cells) if objective == "wall_clock" or throughput is not None else None
    rates = Rates(progress, failure, clocks.draws["failure"] if robust else None, level, pace)
    if settings is None:
        batch, c = candidates(progress, failure, shared["group"], shared["updates_per_rollout"])
    else:
        batch, c = named(settings, shared, progress, failure)

    def optimum(of: Budget, two: bool) -> Spend:
        return best_vertex(rates, batch, c, of) if two else best_constant(rates, batch, c, of, continuous=settings is None)

    vertex = optimum(budget, True)
    try:
        constant = optimum(budget, False)
    except NeverReachedError:  # only two settings together reach the gain
        constant = None
    low, high = _advantage(clocks, vertex, constant, rates, budget, level)
    two_stages = len(vertex.batch) == 2 and low > 0
    chosen = vertex if two_stages or constant is None else constant
    stages = _stages(chosen, shared)
    provenance = {
        "made_by": "twoclocks.plan",
        "objective": objective,
        "reason": _reason(vertex, constant, budget, two_stages, level, low, high),
        "explanation": _explanation(chosen, budget, optimum, two_stages or constant is None, rates, batch, c, robust),
        "metric": clocks.metric,
        **_predicted(stages, Rates(progress, failure, pace=pace), shared["lr_warmup_samples"], clocks.gain),
        "constant": {"batch": float(constant.batch[0]), "drift_rate": float(constant.drift_rate[0])} if constant else None,
        "notes": [*clocks.warnings, *_beyond(stages, failure)],
        "samples": samples,
        "safety": safety,
        "robust": robust,
        "clocks": {"progress": _plain(progress), "failure": _plain(failure)},
        "testbed": shared["testbed"],
        "run_ids": sorted(clocks.cells["run_id"]),
    }
    return Schedule(stages, lr_warmup_samples=shared["lr_warmup_samples"], provenance=provenance)


def _budget(clocks: FittedClocks, samples: int | None, safety: float, objective: Objective, gain: float | None) -> Budget:
    if objective not in ("progress", "wall_clock"):
        raise SettingError(f"objective={objective!r}: choose progress or wall_clock")
    if not 0 < safety <= 1:
        raise SettingError(f"safety={safety}: must be in (0, 1]; 1 spends the whole failure clock")
    if samples is None and objective == "progress":
        raise SettingError("samples=None: progress needs a horizon; give the training completions to spend")
    if samples is not None and samples < 1:
        raise SettingError(f"samples={samples}: must be at least 1")
    if gain is not None and not gain > 0:
        raise SettingError(f"gain={gain}: must be positive")
    clocks.require("progress"), clocks.require("failure")
    n = math.inf if samples is None else float(full_rate_samples(samples, clocks.shared["lr_warmup_samples"]))
    return Budget(n, safety, clocks.gain if gain is None else gain, objective)


def _plain(clock: Any) -> dict[str, Any]:
    """A clock's finite numbers, as JSON takes them."""
    found = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(clock).items()}
    return {name: value for name, value in found.items() if not (isinstance(value, float) and not math.isfinite(value))}


def _advantage(clocks: FittedClocks, vertex: Spend, constant: Spend | None, rates: Rates, budget: Budget, level: float) -> tuple[float, float]:
    """Interval of what the vertex gains on the constant (share of gain, or of seconds saved), over bootstrap draws of both clocks.

    Both are held fixed; what they are worth is read under each draw.
    """
    if constant is None:
        return math.inf, math.inf
    ratios, failure = [], clocks.require("failure")
    for a, b in zip(clocks.draws["progress"].to_dict("records"), clocks.draws["failure"].to_dict("records"), strict=False):
        drawn = Rates(
            ProgressClock(**{"h1": 0.0, **a}),  # type: ignore[arg-type]
            FailureClock(b["samples"], failure.batch0, failure.drift_rate0, b["b_batch"], b["b_drift"]),
            pace=rates.pace,
        )
        ratios.append(_share(realised(vertex, drawn, budget), realised(constant, drawn, budget), abs(constant.value(budget.objective))))
    if not ratios:
        return -math.inf, math.inf
    tail = (1 - level) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return float(low), float(high)


def _share(ours: float, theirs: float, unit: float) -> float:
    """(ours - theirs)/unit, where either may be out of reach."""
    if math.isinf(ours) or math.isinf(theirs):
        return 0.0 if ours == theirs else -1.0 if math.isinf(ours) else 1.0
    return (ours - theirs) / unit


def _reason(vertex: Spend, constant: Spend | None, budget: Budget, two_stages: bool, level: float, low: float, high: float) -> str:
    if constant is None:
        return "two stages: no single setting reaches the gain within the budgets"
    ours, theirs = vertex.value(budget.objective), constant.value(budget.objective)
    by = f"{(ours - theirs) / abs(theirs):+.1%}, {level:.0%} interval [{low:+.1%}, {high:+.1%}]"
    what = "gain" if budget.objective == "progress" else "time saved"
    return f"two stages: {what} over the best constant setting {by}" if two_stages else f"one constant setting: {what} of the best two-stage plan over it {by}"


def _explanation(chosen: Spend, budget: Budget, optimum: Any, two: bool, rates: Rates, batch: np.ndarray, c: np.ndarray, robust: bool) -> list[str]:
    """Which budgets bind and at what price, and the runner-up."""
    lines = []
    if robust:
        lines.append(f"robust: hazards are those of the lower {rates.level:.0%} bound of samples to failure")
    unit = "gain" if budget.objective == "progress" else "seconds"
    spent = {"samples": float(chosen.samples.sum()), "safety": chosen.damage}
    for name, used in spent.items():
        limit = getattr(budget, name)
        if math.isinf(limit):
            continue
        if used < limit * (1 - SLACK):
            lines.append(f"{name}: does not bind ({used / limit:.0%} used); its price is 0")
            continue
        more = optimum(replace(budget, **{name: limit * (1 + NUDGE)}), two)
        worth = abs(more.value(budget.objective)) - abs(chosen.value(budget.objective))
        step = "1,000 more full-rate completions" if name == "samples" else "0.1 more of a collapse"
        price = worth / (NUDGE * limit) * (1000 if name == "samples" else 0.1)
        lines.append(f"{name}: binds; {step} would change the {unit} by {price:+.3g} ({price / abs(chosen.value(budget.objective)):+.1%})")
    if budget.objective == "wall_clock":
        later = optimum(replace(budget, gain=budget.gain * (1 + NUDGE)), two)
        lines.append(f"gain: binds; 10% more of it would cost {(later.seconds - chosen.seconds) * 0.1 / NUDGE:+.4g} seconds")
    return [*lines, *_runner_up(chosen, budget, rates, batch, c)]


def _runner_up(chosen: Spend, budget: Budget, rates: Rates, batch: np.ndarray, c: np.ndarray) -> list[str]:
    """The best constant at another batch."""
    far = np.all([np.abs(np.log(batch / own)) >= math.log(APART) * (1 - 1e-9) for own in chosen.batch], axis=0)
    if not far.any():
        return ["runner-up: none, there is one batch"]
    try:
        other = best_constant(rates, batch[far], c[far], budget, continuous=False)
    except NeverReachedError:
        return ["runner-up: none, no other batch reaches the gain"]
    ours, theirs = (s.value(budget.objective) for s in (chosen, other))
    what = "gain" if budget.objective == "progress" else "seconds"
    lr = other.drift_rate[0] * math.sqrt(other.batch[0])
    return [f"runner-up: batch {other.batch[0]:.0f} at lr {lr:.3g}, {what} {abs(theirs) / abs(ours) - 1:+.1%}"]


def _beyond(stages: tuple[Stage, ...], failure: FailureClock) -> list[str]:
    """Stages whose samples to failure lie beyond anything that was run: known only to be at least that."""
    lives = [float(failure.samples_to_failure(s.setting.batch, s.setting.drift_rate, extrapolate=True)) for s in stages]
    return [
        f"stage {k}: samples to failure {life:.3g} are extrapolated; no run was longer than {failure.longest:.3g}"
        for k, life in enumerate(lives)
        if life > failure.longest
    ]


def _stages(chosen: Spend, shared: dict[str, Any]) -> tuple[Stage, ...]:
    """Stages of whole groups and whole rollouts, rounded down so that neither budget is overspent.

    Raises
    ------
    SettingError
        If the budget does not hold one rollout.
    """
    fixed = {name: shared[name] for name in ("group", "updates_per_rollout", "clip")}
    borders = samples_of_full_rate(np.cumsum(chosen.samples), shared["lr_warmup_samples"])
    stages, start = [], 0
    for batch, c, border in zip(chosen.batch, chosen.drift_rate, borders, strict=True):
        step = batch_step(float(batch), shared["group"], shared["updates_per_rollout"])
        setting = Setting(batch=max(1, round(batch / step)) * step, lr=1.0, **fixed).at_drift_rate(float(c))
        length = int((border + 1e-6 - start) // setting.rollout) * setting.rollout
        if length:
            stages.append(Stage(setting, length))
        start += length
    if not stages:
        raise SettingError(f"the budget ends after {borders[-1]:.0f} samples, before one rollout of {setting.rollout} completions; give more samples")
    return tuple(stages)


def _predicted(stages: tuple[Stage, ...], rates: Rates, warmup: float, target: float) -> dict[str, float | None]:
    """Gain, damage and seconds of the stages as they will run; the batch was rounded to whole groups."""
    ends = full_rate_samples(np.cumsum([0, *(s.samples for s in stages)]), warmup)
    length = np.diff(ends)
    batch, c = (np.array([float(getattr(s.setting, name)) for s in stages]) for name in ("batch", "drift_rate"))
    seconds = None if rates.pace is None else float(rates.seconds(batch) @ [s.samples for s in stages])
    # A local rate times samples: how far the run would go if every sample kept the pace measured up to the target
    gain = float(rates.gain(batch, c) @ length) / target
    return {"predicted_gain_in_targets": gain, "predicted_damage": float(rates.hazard(batch, c) @ length), "predicted_seconds": seconds}
