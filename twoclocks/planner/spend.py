"""A budget spent on one or two settings: the best vertex of the linear program, and the best constant over continuous B and c."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from twoclocks.errors import NeverReachedError
from twoclocks.planner.rates import DRIFT_POINTS, Rates
from twoclocks.program import fewest_seconds, most_progress

ZOOMS = 6  # each narrows the search for the best constant eightfold
Objective = Literal["progress", "wall_clock"]


@dataclass(frozen=True)
class Budget:
    """What may be spent and what is wanted.

    Attributes
    ----------
    samples : float
        N, full-rate completions; infinite for no horizon.
    safety : float
        D, share of a collapse.
    gain : float
        Metric units to reach (wall clock only).
    objective : {"progress", "wall_clock"}
        Most progress within the budgets, or fewest seconds to the gain within them.
    """

    samples: float
    safety: float
    gain: float
    objective: Objective


@dataclass(frozen=True)
class Spend:
    """Samples spent at settings.

    Attributes
    ----------
    batch, drift_rate, samples : array
        One or two stages, in the order they run.
    gain : float
        sum p_j x_j, metric units.
    damage : float
        sum r_j x_j, fraction of a collapse.
    seconds : float
        sum s_j x_j; NaN where no pace is known.
    """

    batch: np.ndarray
    drift_rate: np.ndarray
    samples: np.ndarray
    gain: float
    damage: float
    seconds: float

    def value(self, objective: Objective) -> float:
        """What the objective wants large: the gain, or minus the seconds."""
        return self.gain if objective == "progress" else -self.seconds


def best_vertex(rates: Rates, batch: np.ndarray, drift_rate: np.ndarray, budget: Budget) -> Spend:
    """Vertex of the linear program over the candidates; the stage with more hazard per sample runs first.

    With constant rates the order does not change the objective; early samples are where the progress clock is steepest.

    Raises
    ------
    NeverReachedError
        If nothing progresses, or the gain is out of reach within the budgets.
    """
    p, r = rates.gain(batch, drift_rate), rates.hazard(batch, drift_rate)
    if budget.objective == "progress":
        x = most_progress(p, r, samples=budget.samples, safety=budget.safety)
    else:
        x = fewest_seconds(p, r, rates.seconds(batch), gain=budget.gain, safety=budget.safety, samples=budget.samples)
    used = np.flatnonzero(x)
    used = used[np.argsort(-r[used], kind="stable")]
    return _spend(rates, batch[used], drift_rate[used], x[used])


def best_constant(rates: Rates, batch: np.ndarray, drift_rate: np.ndarray, budget: Budget, *, continuous: bool) -> Spend:
    """Best single setting: over the continuous ranges the candidates span, or among the candidates themselves.

    It stops early where the hazard budget ends first. The value has a ridge where the hazard budget begins to bind, so it
    is searched on a grid that zooms in on its best point.

    Raises
    ------
    NeverReachedError
        If no single setting reaches the gain within the budgets (wall clock).
    """
    if not continuous:
        return _best_of(rates, batch, drift_rate, budget)
    span = np.log([[batch.min(), batch.max()], [drift_rate.min(), drift_rate.max()]])
    low, high = span[:, 0], span[:, 1]
    for _ in range(ZOOMS):
        axes = [np.linspace(a, b, DRIFT_POINTS) for a, b in zip(low, high, strict=True)]
        b, c = (np.exp(g).ravel() for g in np.meshgrid(*axes, indexing="ij"))
        best = _best_of(rates, b, c, budget)
        centre, step = np.log([best.batch[0], best.drift_rate[0]]), (high - low) / (DRIFT_POINTS - 1)
        low, high = np.maximum(span[:, 0], centre - 2 * step), np.minimum(span[:, 1], centre + 2 * step)
    return best


def _best_of(rates: Rates, batch: np.ndarray, drift_rate: np.ndarray, budget: Budget) -> Spend:
    p, r = rates.gain(batch, drift_rate), rates.hazard(batch, drift_rate)
    longest = np.minimum(budget.samples, budget.safety / r)
    if budget.objective == "progress":
        value, length = p * longest, longest
    else:
        with np.errstate(divide="ignore"):
            length = np.where(p > 0, budget.gain / p, np.inf)
        value = np.where(length <= longest * (1 + 1e-9), -length * rates.seconds(batch), -np.inf)
    at = int(value.argmax())
    if not np.isfinite(value[at]):
        raise NeverReachedError(f"no single setting reaches a gain of {budget.gain:.4g} within {budget.samples:.4g} samples and safety {budget.safety:g}")
    return _spend(rates, batch[at][None], drift_rate[at][None], length[at][None])


def _spend(rates: Rates, batch: np.ndarray, drift_rate: np.ndarray, samples: np.ndarray) -> Spend:
    gain, damage = float(rates.gain(batch, drift_rate) @ samples), float(rates.hazard(batch, drift_rate) @ samples)
    seconds = float(rates.seconds(batch) @ samples) if rates.pace is not None else math.nan
    return Spend(batch, drift_rate, samples, gain, damage, seconds)


def realised(spend: Spend, rates: Rates, budget: Budget) -> float:
    """What a fixed spend is worth under other rates, larger is better.

    Progress: its gain, cut off where its own damage reaches the budget. Wall clock: minus the seconds to the gain, the last
    stage going on as long as it takes; -inf where damage ends it first.
    """
    left, gain, seconds = budget.safety, 0.0, 0.0
    wall = budget.objective == "wall_clock"
    for number, (batch, c, samples) in enumerate(zip(spend.batch, spend.drift_rate, spend.samples, strict=True)):
        p, r = float(rates.gain(batch, c)), float(rates.hazard(batch, c))
        last = number == len(spend.samples) - 1
        wanted = samples
        if wall:
            needed = (budget.gain - gain) / p if p > 0 else math.inf
            wanted = needed if last else min(samples, needed)
        length = min(wanted, max(0.0, left / r))
        gain, left = gain + p * length, left - r * length
        if wall:
            if not math.isfinite(length):
                return -math.inf
            seconds += float(rates.seconds(batch)) * length
    if not wall:
        return gain
    return -seconds if gain >= budget.gain * (1 - 1e-9) else -math.inf
