"""Maximum likelihood for log-normal times known only up to an interval, with noise that may differ between cells.

The one estimator behind both clocks: log T ~ Normal(mean(theta), sd_g^2) with one sd a group g, shrunk towards a common
one, and each T known to lie in (lower, upper]: exact where lower == upper, right-censored where upper is infinite,
left-censored where lower is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import optimize
from scipy.special import log_ndtr
from scipy.stats import chi2

from twoclocks.errors import FitError

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
Mean = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Times:
    """Times in training completions and the group that shares their noise.

    Attributes
    ----------
    lower, upper : array
        T in (lower, upper]; equal where exact; upper inf where right-censored.
    group : array of int
        0, 1, ...: rows of one batch, since small and large batches need not be equally noisy.
    """

    lower: np.ndarray
    upper: np.ndarray
    group: np.ndarray

    @property
    def exact(self) -> np.ndarray:
        """Where the time is known exactly."""
        return self.lower == self.upper

    @property
    def timed(self) -> int:
        """How many times are bounded on both sides: only those say how much times spread."""
        return int((np.isfinite(self.upper) & (self.lower > 0)).sum())


def score(times: Times, mean: np.ndarray, sd: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Log likelihood, and its derivatives in each row's mean and log sd.

    log density where the time is exact, log probability of the interval where it is not.
    """
    with np.errstate(divide="ignore"):
        low, high = (np.log(times.lower) - mean) / sd, (np.log(times.upper) - mean) / sd
    exact = times.exact
    # P(low < Z <= high) in the tail where it does not round to zero, and log P = log Phi(b) + log(1 - Phi(a)/Phi(b))
    flip = low > 0
    a, b = np.where(flip, -high, low), np.where(flip, -low, high)
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = log_ndtr(b) + np.log1p(-np.minimum(np.exp(log_ndtr(a) - log_ndtr(b)), 1 - 1e-15))
        at_low, at_high = (np.exp(-0.5 * z**2 - HALF_LOG_2PI - inside) for z in (low, high))
        steep = np.where(np.isfinite(low), low, 0) * at_low - np.where(np.isfinite(high), high, 0) * at_high
    z = np.where(exact, low, 0.0)
    value = np.where(exact, -0.5 * z**2 - np.log(sd), inside)
    return float(value.sum()), np.where(exact, z, at_low - at_high) / sd, np.where(exact, z**2 - 1, steep)


def log_likelihood(times: Times, mean: np.ndarray, sd: np.ndarray) -> float:
    """Sum over times of log density (exact) or log probability of the interval."""
    return score(times, mean, sd)[0]


@dataclass(frozen=True)
class Fit:
    """Estimates, and what is needed to simulate from them.

    Attributes
    ----------
    theta : array
        Parameters of the mean.
    noise : array
        Log sd of the typical group, then each group's difference from it.
    """

    theta: np.ndarray
    noise: np.ndarray

    def sd(self, times: Times) -> np.ndarray:
        """Standard deviation of each log time."""
        return np.exp(self.noise[0] + self.noise[1:][times.group])


LOG_SD = (-4.0, 1.5)  # between 2% and a factor of 4.5: outside, the data cannot say
# Stop where the optimum is known to about 1e-6: at the default, another machine's rounding moved estimates by 5e-4
TIGHT = {"ftol": 1e-14, "gtol": 1e-9, "maxiter": 3000, "maxfun": 10_000}
STEP = 1e-7  # of the forward difference of the mean in theta; everything else is analytic
SHRINK = 0.5  # prior sd of a group's log sd about the common one: a handful of runs a batch know it to about that


def fit(times: Times, mean: Mean, starts: list[np.ndarray], noise_start: np.ndarray | None = None) -> Fit:
    """Maximise the likelihood from every start and keep the best.

    Parameters
    ----------
    mean : callable
        theta -> mean of log T for every row; must be finite for any theta (return a large number where a model is void).
    starts : list of array
        Starting points of theta.

    Raises
    ------
    FitError
        If no start converges to a finite likelihood.
    """
    groups, p = int(times.group.max()) + 1, len(starts[0])
    noise_start = np.concatenate([[-1.5], np.zeros(groups)]) if noise_start is None else noise_start

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        theta, differences = x[:p], x[p + 1 :]
        centre = mean(theta)
        value, by_mean, by_log_sd = score(times, centre, np.exp(x[p] + differences[times.group]))
        if not np.isfinite(value):
            return 1e10, np.zeros_like(x)
        slopes = np.array([(mean(theta + step) - centre) / STEP for step in STEP * np.eye(p)])
        by_difference = np.bincount(times.group, by_log_sd, groups) - differences / SHRINK**2
        gradient = np.concatenate([slopes @ by_mean, [by_log_sd.sum()], by_difference])
        return -value + 0.5 * ((differences / SHRINK) ** 2).sum(), -gradient

    best, bounds = None, [(None, None)] * p + [LOG_SD] + [(-1.5, 1.5)] * groups
    for start in starts:
        result = optimize.minimize(objective, np.concatenate([start, noise_start]), jac=True, method="L-BFGS-B", bounds=bounds, options=TIGHT)
        if result.fun < 1e9 and (best is None or result.fun < best.fun):
            best = result
    if best is None:
        raise FitError("the likelihood is not finite from any starting point; check the times for zeros or NaN")
    return Fit(best.x[:p], best.x[p:])


def misfit(times: Times, mean: Mean, fitted: Fit, cell: np.ndarray) -> float:
    """p-value that a law fits: likelihood ratio of the law against one free mean a cell, noise as fitted.

    Cells whose times are all right-censored say only "at least", so they count towards the ratio but not the freedom.

    Parameters
    ----------
    cell : array of int
        Cell (setting) of each row.
    """
    sd, centre, gain, freedom = fitted.sd(times), mean(fitted.theta), 0.0, -len(fitted.theta)
    for number in np.unique(cell):
        rows = cell == number
        one = Times(times.lower[rows], times.upper[rows], times.group[rows])
        span = np.log(np.maximum(one.lower, 1.0))
        free = optimize.minimize_scalar(
            lambda m: -log_likelihood(one, np.full(rows.sum(), m), sd[rows]),  # noqa: B023
            bounds=(span.min() - 6 * sd[rows].max(), span.max() + 6 * sd[rows].max()),
            method="bounded",
            options={"xatol": 1e-9},
        )
        gain += max(0.0, -free.fun - log_likelihood(one, centre[rows], sd[rows]))
        freedom += bool(np.isfinite(one.upper).any())
    return float(chi2.sf(2 * gain, max(1, freedom)))


def simulate(mean: np.ndarray, sd: np.ndarray, grids: list[np.ndarray], group: np.ndarray, *, exact: bool, rng: np.random.Generator) -> Times:
    """Draw times from a fitted model and observe them the way real ones are.

    Parameters
    ----------
    grids : list of array
        For each row the sample counts at which it is looked at; past the last it is right-censored.
    exact : bool
        Whether a time before the last look is known exactly, or only to lie between two looks.
    """
    lower = np.exp(mean + sd * rng.standard_normal(len(mean)))
    upper = lower.copy()
    for i, grid in enumerate(grids):
        if lower[i] > grid[-1]:
            lower[i], upper[i] = grid[-1], np.inf
        elif not exact:
            at = np.searchsorted(grid, lower[i])
            lower[i], upper[i] = (grid[at - 1] if at else 0.0), grid[at]
    return Times(lower, upper, group)


def bootstrap(times: Times, mean: Mean, fitted: Fit, grids: list[np.ndarray], draws: int, *, exact: bool, rng: np.random.Generator) -> np.ndarray:
    """Parametric bootstrap of theta, (draws, parameters).

    Seeds are few, so resampling runs would understate the spread; the fitted model is simulated instead, its noise
    inflated by sqrt(n/(n - p)), n the timed rows, because maximum likelihood underestimates it.
    """
    n, p = times.timed, len(fitted.theta) + len(fitted.noise)
    centre, sd = mean(fitted.theta), fitted.sd(times) * np.sqrt(n / max(1, n - p))
    again = (simulate(centre, sd, grids, times.group, exact=exact, rng=rng) for _ in range(draws))
    return np.array([fit(drawn, mean, [fitted.theta], fitted.noise).theta for drawn in again])
