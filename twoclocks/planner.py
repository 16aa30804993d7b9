"""The planner: rates, a sample budget and a hazard budget in; one constant setting or two stages out.

Every candidate (B, c) has progress p_j and hazard r_j per sample; `twoclocks.program` spends the samples, on at most two
settings. With constant rates and an unclipped clock the frontier p(r) is
concave and one constant setting is best; two neighbours on a grid are only an interpolated constant. So two stages are
emitted only when they beat the best *continuous* constant by more than their interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from twoclocks.errors import MisfitError, SettingError
from twoclocks.failure import FailureClock
from twoclocks.program import most_progress
from twoclocks.progress import ProgressClock
from twoclocks.schedule import Schedule, Stage, full_rate_samples, samples_of_full_rate
from twoclocks.setting import Setting

if TYPE_CHECKING:
    import pandas as pd

DRIFT_POINTS = 33  # candidates of c between the fitted bounds, per batch
ZOOMS = 6  # each narrows the search for the best constant eightfold


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


@dataclass(frozen=True)
class Plan:
    """Spend of a sample budget.

    Attributes
    ----------
    batch, drift_rate, samples : array
        One or two stages, in the order they run.
    gain : float
        sum p_j x_j, metric units.
    damage : float
        sum r_j x_j, fraction of a collapse.
    """

    batch: np.ndarray
    drift_rate: np.ndarray
    samples: np.ndarray
    gain: float
    damage: float


def common_range(progress: ProgressClock, failure: FailureClock) -> tuple[tuple[float, float], tuple[float, float]]:
    """(batch range, drift range) that both clocks were fitted on.

    Raises
    ------
    SettingError
        If they do not overlap.
    """
    batch, drift = ((max(a[0], b[0]), min(a[1], b[1])) for a, b in ((progress.batch_range, failure.batch_range), (progress.drift_range, failure.drift_range)))
    if batch[0] > batch[1] or drift[0] > drift[1]:
        raise SettingError("the two clocks were fitted on ranges that do not overlap; add runs that progress and fail in one range of batch and lr")
    return batch, drift


def candidates(progress: ProgressClock, failure: FailureClock, group: int, updates_per_rollout: int) -> tuple[np.ndarray, np.ndarray]:
    """Legal (B, c) pairs inside what both clocks were fitted on: batches half an octave apart, c on a log grid."""
    (low, high), (c_low, c_high) = common_range(progress, failure)
    step = _batch_step(group, updates_per_rollout)
    octaves = int(2 * math.log2(high / low)) + 1
    batches = np.unique([max(step, round(low * 2 ** (k / 2) / step) * step) for k in range(octaves + 1)])
    batches = batches[(batches >= low) & (batches <= high)]
    if not len(batches):
        raise SettingError(f"no batch between {low:g} and {high:g} makes whole groups of {group}")
    grid = np.meshgrid(batches, np.geomspace(c_low, c_high, DRIFT_POINTS), indexing="ij")
    return grid[0].ravel(), grid[1].ravel()


def _batch_step(group: int, updates_per_rollout: int) -> int:
    """Batches are multiples of this, so that a rollout S*B is a whole number of groups."""
    return group // math.gcd(group, updates_per_rollout)


def solve(batch: np.ndarray, drift_rate: np.ndarray, p: np.ndarray, r: np.ndarray, samples: float, safety: float) -> Plan:
    """Vertex of the linear program over the candidates; the stage with more hazard per sample runs first.

    With constant rates the order does not change the objective; early samples are where the progress clock is steepest.
    """
    spent = most_progress(p, r, samples=samples, safety=safety)
    used = np.flatnonzero(spent)
    used = used[np.argsort(-r[used])]
    return Plan(batch[used], drift_rate[used], spent[used], float(p @ spent), float(r @ spent))


def best_constant(progress: ProgressClock, failure: FailureClock, batches: np.ndarray, drifts: np.ndarray, samples: float, safety: float) -> Plan:
    """Best single setting over the continuous ranges of B and c; it stops early where the hazard budget ends first.

    The gain has a ridge where the hazard budget begins to bind, so it is searched on a grid that zooms in on its best point.
    """
    span = np.log([[batches.min(), batches.max()], [drifts.min(), drifts.max()]])
    low, high = span[:, 0], span[:, 1]
    for _ in range(ZOOMS):
        axes = [np.linspace(a, b, DRIFT_POINTS) for a, b in zip(low, high, strict=True)]
        b, c = (np.exp(g) for g in np.meshgrid(*axes, indexing="ij"))
        hazard = failure.hazard(b, c)
        length = np.minimum(samples, safety / hazard)
        gain = progress.per_sample(b, c) * length
        at = np.unravel_index(int(gain.argmax()), gain.shape)
        best = Plan(b[at][None], c[at][None], length[at][None], float(gain[at]), float((hazard * length)[at]))
        centre, step = np.log([b[at], c[at]]), (high - low) / (DRIFT_POINTS - 1)
        low, high = np.maximum(span[:, 0], centre - 2 * step), np.minimum(span[:, 1], centre + 2 * step)
    return best


def plan(clocks: FittedClocks, *, samples: int, safety: float = 0.8, level: float = 0.95, accept_misfit: bool = False) -> Schedule:
    """A schedule of at most two stages from fitted clocks.

    Parameters
    ----------
    clocks : Clocks
        From `twoclocks.fit`.
    samples : int
        N, training completions to spend.
    safety : float
        D, the share of a collapse the run may use up (0 < D <= 1).
    level : float
        Two stages are emitted if the lower end of this interval of their gain over the best constant is above 0.
    accept_misfit : bool
        Plan even where the runs contradict a clock's law; the schedule's provenance then says so.

    Returns
    -------
    Schedule
        Its provenance holds the gain and damage predicted, the best constant, and why one or two stages were chosen.

    Raises
    ------
    UnidentifiedError
        If the runs do not determine one of the clocks.
    MisfitError
        If the runs contradict a clock's law and accept_misfit is false.
    NeverReachedError
        If no candidate makes progress.
    SettingError
        If safety is out of range, samples do not hold one rollout, or the clocks' fitted ranges do not overlap.
    """
    if not 0 < safety <= 1:
        raise SettingError(f"safety={safety}: must be in (0, 1]; 1 spends the whole failure clock")
    if samples < 1:
        raise SettingError(f"samples={samples}: must be at least 1")
    progress, failure, shared = clocks.require("progress"), clocks.require("failure"), clocks.shared
    if clocks.warnings and not accept_misfit:
        raise MisfitError(f"{'; '.join(clocks.warnings)}; or pass accept_misfit=True (--accept-misfit) and treat the plan as a guess")
    budget = float(full_rate_samples(samples, shared["lr_warmup_samples"]))
    batch, c = candidates(progress, failure, shared["group"], shared["updates_per_rollout"])
    p, r = progress.per_sample(batch, c), failure.hazard(batch, c)
    vertex = solve(batch, c, p, r, budget, safety)
    constant = best_constant(progress, failure, batch, c, budget, safety)
    low, high = _gain_interval(clocks, vertex, constant, safety, level)
    two_stages = len(vertex.batch) == 2 and low > 0
    stages = _stages(vertex if two_stages else constant, shared)
    gain, damage = _predicted(stages, progress, failure, shared["lr_warmup_samples"])
    by = f"{vertex.gain / constant.gain - 1:+.1%}, {level:.0%} interval [{low:+.1%}, {high:+.1%}]"
    reason = f"two stages: gain over the best constant setting {by}" if two_stages else f"one constant setting: gain of the best two-stage plan over it {by}"
    provenance = {
        "made_by": "twoclocks.plan",
        "reason": reason,
        "metric": clocks.metric,
        # A local rate times samples: how far the run would go if every sample kept the pace measured up to the target
        "predicted_gain_in_targets": gain / clocks.gain,
        "predicted_damage": damage,
        "constant": {"batch": float(constant.batch[0]), "drift_rate": float(constant.drift_rate[0])},
        "notes": [*clocks.warnings, *_beyond(stages, failure)],
        "samples": samples,
        "safety": safety,
        "clocks": {name: {k: v for k, v in vars(clock).items() if isinstance(v, float)} for name, clock in (("progress", progress), ("failure", failure))},
        "testbed": shared["testbed"],
        "run_ids": sorted(clocks.cells["run_id"]),
    }
    return Schedule(stages, lr_warmup_samples=shared["lr_warmup_samples"], provenance=provenance)


def _beyond(stages: tuple[Stage, ...], failure: FailureClock) -> list[str]:
    """Stages whose samples to failure lie beyond anything that was run: known only to be at least that."""
    lives = [float(failure.samples_to_failure(s.setting.batch, s.setting.drift_rate, extrapolate=True)) for s in stages]
    return [
        f"stage {k}: samples to failure {life:.3g} are extrapolated; no run was longer than {failure.longest:.3g}"
        for k, life in enumerate(lives)
        if life > failure.longest
    ]


def _gain_interval(clocks: FittedClocks, vertex: Plan, constant: Plan, safety: float, level: float) -> tuple[float, float]:
    """Interval of the vertex's gain relative to the constant, over bootstrap draws of both clocks.

    Both are held fixed and each is cut off where its own damage reaches the budget under the draw.
    """
    ratios = []
    failure = clocks.require("failure")
    for a, b in zip(clocks.draws["progress"].to_dict("records"), clocks.draws["failure"].to_dict("records"), strict=False):
        drawn_p = ProgressClock(**a)
        drawn_r = FailureClock(b["samples"], failure.batch0, failure.drift_rate0, b["b_batch"], b["b_drift"])
        ratios.append((_realised(vertex, drawn_p, drawn_r, safety) - _realised(constant, drawn_p, drawn_r, safety)) / constant.gain)
    if not ratios:
        return -math.inf, math.inf
    tail = (1 - level) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return float(low), float(high)


def _realised(spend: Plan, progress: ProgressClock, failure: FailureClock, safety: float) -> float:
    left, gain = safety, 0.0
    for batch, c, samples in zip(spend.batch, spend.drift_rate, spend.samples, strict=True):
        rate = float(failure.hazard(batch, c))
        length = min(samples, max(0.0, left / rate))
        gain += float(progress.per_sample(batch, c)) * length
        left -= rate * length
    return gain


def _stages(chosen: Plan, shared: dict[str, Any]) -> tuple[Stage, ...]:
    """Stages of whole groups and whole rollouts, rounded down so that neither budget is overspent.

    Raises
    ------
    SettingError
        If the budget does not hold one rollout.
    """
    step = _batch_step(shared["group"], shared["updates_per_rollout"])
    fixed = {name: shared[name] for name in ("group", "updates_per_rollout", "clip")}
    borders = samples_of_full_rate(np.cumsum(chosen.samples), shared["lr_warmup_samples"])
    stages, start = [], 0
    for batch, c, border in zip(chosen.batch, chosen.drift_rate, borders, strict=True):
        setting = Setting(batch=max(1, round(batch / step)) * step, lr=1.0, **fixed).at_drift_rate(float(c))
        length = int((border + 1e-6 - start) // setting.rollout) * setting.rollout
        if length:
            stages.append(Stage(setting, length))
        start += length
    if not stages:
        raise SettingError(f"the budget ends after {borders[-1]:.0f} samples, before one rollout of {setting.rollout} completions; give more samples")
    return tuple(stages)


def _predicted(stages: tuple[Stage, ...], progress: ProgressClock, failure: FailureClock, warmup: float) -> tuple[float, float]:
    """(gain, damage) of the stages as they will run."""
    ends = full_rate_samples(np.cumsum([0, *(s.samples for s in stages)]), warmup)
    gain = damage = 0.0
    for stage, length in zip(stages, np.diff(ends), strict=True):
        batch, c = stage.setting.batch, stage.setting.drift_rate
        # The batch was rounded to whole groups, which may leave the fitted range by less than one group
        gain += length * float(progress.per_sample(batch, c, extrapolate=True))
        damage += length * float(failure.hazard(batch, c, extrapolate=True))
    return float(gain), float(damage)
