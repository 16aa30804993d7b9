"""The planner: rates, a sample budget and a hazard budget in; one constant setting or two stages out.

Every candidate (B, c) has progress p_j and hazard r_j per sample. With x_j samples spent at j,

    maximise sum p_j x_j   subject to   sum x_j <= N,  sum r_j x_j <= D,  x >= 0

Two constraints, so a vertex holds at most two settings. With constant rates and an unclipped clock the frontier p(r) is
concave and one constant setting is best; two neighbours on a grid are only an interpolated constant. So two stages are
emitted only when they beat the best *continuous* constant by more than their interval. Source: science notes, theory/.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from scipy import optimize

from twoclocks.errors import NeverReachedError, SettingError
from twoclocks.failure import FailureClock
from twoclocks.progress import ProgressClock
from twoclocks.schedule import Schedule, Stage
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


def candidates(progress: ProgressClock, failure: FailureClock, group: int, updates_per_rollout: int) -> tuple[np.ndarray, np.ndarray]:
    """Legal (B, c) pairs inside what both clocks were fitted on: batches half an octave apart, c on a log grid."""
    low, high = (f(progress.batch_range[i], failure.batch_range[i]) for i, f in ((0, max), (1, min)))
    c_low, c_high = (f(progress.drift_range[i], failure.drift_range[i]) for i, f in ((0, max), (1, min)))
    if low > high or c_low > c_high:
        raise SettingError("the two clocks were fitted on ranges that do not overlap; add runs that progress and fail in one range of batch and lr")
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
    # Scale both rows and the objective to order one: hazards are 1e-6 and HiGHS has absolute tolerances
    scale = np.abs(p).max()
    result = optimize.linprog(-p / scale, A_ub=np.stack([np.ones_like(p), r * samples / safety]), b_ub=[1.0, 1.0], method="highs-ds")
    spent = result.x * samples
    used = np.flatnonzero(spent > 1e-6 * samples)
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


def plan(clocks: FittedClocks, *, samples: int, safety: float = 0.8, level: float = 0.95) -> Schedule:
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

    Returns
    -------
    Schedule
        Its provenance holds the gain and damage predicted, the best constant, and why one or two stages were chosen.

    Raises
    ------
    UnidentifiedError
        If the runs do not determine one of the clocks.
    NeverReachedError
        If no candidate makes progress.
    SettingError
        If safety or samples are out of range, or the clocks' fitted ranges do not overlap.
    """
    if not 0 < safety <= 1:
        raise SettingError(f"safety={safety}: must be in (0, 1]; 1 spends the whole failure clock")
    progress, failure, shared = clocks.require("progress"), clocks.require("failure"), clocks.shared
    warmup = shared["lr_warmup_samples"]
    budget = samples - warmup / 2  # clocks count full-rate completions; a linear warm-up spends W at half rate
    batch, c = candidates(progress, failure, shared["group"], shared["updates_per_rollout"])
    if budget <= batch.max():
        raise SettingError(f"samples={samples}: too few for one update of batch {batch.max():g} after half a warm-up of {warmup}")
    p, r = progress.per_sample(batch, c), failure.hazard(batch, c)
    if p.max() <= 0:
        raise NeverReachedError("no fitted setting makes progress per sample; run smaller learning rates and fit again")
    vertex = solve(batch, c, p, r, budget, safety)
    constant = best_constant(progress, failure, batch, c, budget, safety)
    low, high = _gain_interval(clocks, vertex, constant, budget, safety, level)
    two_stages = len(vertex.batch) == 2 and low > 0
    chosen = vertex if two_stages else constant
    by = f"{vertex.gain / constant.gain - 1:+.1%}, {level:.0%} interval [{low:+.1%}, {high:+.1%}]"
    reason = f"two stages: gain over the best constant setting {by}" if two_stages else f"one constant setting: gain of the best two-stage plan over it {by}"
    provenance = {
        "made_by": "twoclocks.plan",
        "reason": reason,
        "metric": clocks.metric,
        # A local rate times samples: how far the run would go if every sample kept the pace measured up to the target
        "predicted_gain_in_targets": chosen.gain / clocks.gain,
        "predicted_damage": chosen.damage,
        "constant": {"batch": float(constant.batch[0]), "drift_rate": float(constant.drift_rate[0])},
        "warnings": clocks.warnings,
        "samples": samples,
        "safety": safety,
        "clocks": {name: {k: v for k, v in vars(clock).items() if isinstance(v, float)} for name, clock in (("progress", progress), ("failure", failure))},
        "testbed": shared["testbed"],
        "run_ids": sorted(clocks.cells["run_id"]),
    }
    return _schedule(chosen, shared, provenance)


def _gain_interval(clocks: FittedClocks, vertex: Plan, constant: Plan, budget: float, safety: float, level: float) -> tuple[float, float]:
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


def _schedule(chosen: Plan, shared: dict[str, Any], provenance: dict[str, Any]) -> Schedule:
    """Stages of whole rollouts and whole groups, the warm-up's other half added to the first."""
    warmup, stages = shared["lr_warmup_samples"], []
    step = _batch_step(shared["group"], shared["updates_per_rollout"])
    for number, (batch, c, samples) in enumerate(zip(chosen.batch, chosen.drift_rate, chosen.samples, strict=True)):
        fixed = {name: shared[name] for name in ("group", "updates_per_rollout", "clip")}
        setting = Setting(batch=max(1, round(batch / step)) * step, lr=1.0, **fixed).at_drift_rate(float(c))
        wanted = samples + (warmup / 2 if number == 0 else 0)
        stages.append(Stage(setting, max(1, round(wanted / setting.rollout)) * setting.rollout))
    return Schedule(tuple(stages), lr_warmup_samples=warmup, provenance=provenance)
