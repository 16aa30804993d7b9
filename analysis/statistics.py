"""Interval and test helpers of the claims: per-seed t intervals, Wald from bootstrap draws, verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

Verdict = Literal["supported", "contradicted", "undetermined"]


@dataclass(frozen=True)
class Effect:
    """An estimate with a standard error; few seeds make the reference distribution a t.

    Attributes
    ----------
    value, se, df
        Estimate, standard error, degrees of freedom (infinite for a bootstrap).
    """

    value: float
    se: float
    df: float

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Central confidence interval."""
        half = float(stats.t.ppf((1 + level) / 2, self.df)) * self.se
        return self.value - half, self.value + half

    def p_above(self, bound: float) -> float:
        """One-sided p-value of "the effect is at most bound"."""
        return float(stats.t.sf((self.value - bound) / self.se, self.df))

    def p_inside(self, low: float, high: float) -> float:
        """TOST p-value of "the effect is outside (low, high)"."""
        return max(self.p_above(low), 1 - self.p_above(high))


def per_seed(values: np.ndarray) -> Effect:
    """Mean over independent seeds with its t standard error."""
    values = np.asarray(values, float)
    return Effect(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))), len(values) - 1)


def from_draws(value: float, draws: np.ndarray) -> Effect:
    """A fitted value with the standard deviation of its bootstrap draws."""
    return Effect(value, float(np.std(draws, ddof=1)), np.inf)


def above(effect: Effect, bound: float) -> Verdict:
    """Supported if the 95% interval lies above the bound, contradicted if below it."""
    low, high = effect.interval()
    return "supported" if low > bound else "contradicted" if high < bound else "undetermined"


def inside(effect: Effect, low: float, high: float) -> Verdict:
    """Equivalence: supported if the 90% interval lies inside (low, high), contradicted if the 95% one lies outside."""
    narrow, wide = effect.interval(0.90), effect.interval(0.95)
    if low < narrow[0] and narrow[1] < high:
        return "supported"
    return "contradicted" if wide[1] < low or wide[0] > high else "undetermined"
