"""Maximum likelihood for log-normal times known only up to an interval, with noise that may differ between cells.

The one estimator behind both clocks: log T ~ Normal(mean(theta), sd_i^2), log sd_i = s0 + s1 x_i, and each T known to
lie in (lower, upper]: exact where lower == upper, right-censored where upper is infinite, left-censored where lower is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import optimize
from scipy.special import log_ndtr
from scipy.stats import chi2

from twoclocks.errors import FitError

Mean = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Times:
    """Times in training completions and the covariate of their noise.

    Attributes
    ----------
    lower, upper : array
        T in (lower, upper]; equal where exact; upper inf where right-censored.
    spread : array
        x of log sd = s0 + s1 x; centred log batch here, since small and large batches need not be equally noisy.
    """

    lower: np.ndarray
    upper: np.ndarray
    spread: np.ndarray

    @property
    def exact(self) -> np.ndarray:
        """Where the time is known exactly."""
        return self.lower == self.upper

    @property
    def events(self) -> int:
        """How many times are bounded above: only those say how long it takes."""
        return int(np.isfinite(self.upper).sum())


def log_likelihood(times: Times, mean: np.ndarray, sd: np.ndarray) -> float:
    """Sum over times of log density (exact) or log probability of the interval."""
    with np.errstate(divide="ignore"):
        low, high = (np.log(times.lower) - mean) / sd, (np.log(times.upper) - mean) / sd
    exact = times.exact
    total = -0.5 * (low[exact] ** 2).sum() - np.log(sd[exact]).sum()
    low, high = low[~exact], high[~exact]
    # P(low < Z <= high) in the tail where it does not round to zero, and log P = log Phi(high) + log(1 - Phi(low)/Phi(high))
    flip = low > 0
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    with np.errstate(divide="ignore"):
        inside = log_ndtr(high) + np.log1p(-np.minimum(np.exp(log_ndtr(low) - log_ndtr(high)), 1 - 1e-15))
    return float(total + inside.sum())


@dataclass(frozen=True)
class Fit:
    """Estimates, and what is needed to simulate from them.

    Attributes
    ----------
    theta : array
        Parameters of the mean.
    noise : array
        (s0, s1) of log sd.
    """

    theta: np.ndarray
    noise: np.ndarray

    def sd(self, times: Times) -> np.ndarray:
        """Standard deviation of each log time."""
        return np.exp(self.noise[0] + self.noise[1] * times.spread)


LOG_SD = (-4.0, 1.5)  # between 2% and a factor of 4.5: outside, the data cannot say
SLOPE = (-0.75, 0.75)


def fit(times: Times, mean: Mean, starts: list[np.ndarray], noise_start: tuple[float, float] = (-1.5, 0.0)) -> Fit:
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
    # Shrink s1 weakly: with a handful of runs a batch the slope of the noise is barely known
    penalty = lambda s1: 0.5 * (s1 / 0.3) ** 2  # noqa: E731

    def objective(x: np.ndarray) -> float:
        sd = np.exp(np.clip(x[-2], *LOG_SD) + np.clip(x[-1], *SLOPE) * times.spread)
        value = -log_likelihood(times, mean(x[:-2]), sd) + penalty(x[-1])
        return value if np.isfinite(value) else 1e10

    best = None
    for start in starts:
        bounds = [(None, None)] * len(start) + [LOG_SD, SLOPE]
        result = optimize.minimize(objective, np.append(start, noise_start), method="L-BFGS-B", bounds=bounds)
        if result.fun < 1e9 and (best is None or result.fun < best.fun):
            best = result
    if best is None:
        raise FitError("the likelihood is not finite from any starting point; check the times for zeros or NaN")
    return Fit(best.x[:-2], best.x[-2:])


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
        one = Times(times.lower[rows], times.upper[rows], times.spread[rows])
        span = np.log(np.maximum(one.lower, 1.0))
        free = optimize.minimize_scalar(
            lambda m: -log_likelihood(one, np.full(rows.sum(), m), sd[rows]),  # noqa: B023
            bounds=(span.min() - 6 * sd[rows].max(), span.max() + 6 * sd[rows].max()),
            method="bounded",
        )
        gain += max(0.0, -free.fun - log_likelihood(one, centre[rows], sd[rows]))
        freedom += bool(one.events)
    return float(chi2.sf(2 * gain, max(1, freedom)))


def simulate(mean: np.ndarray, sd: np.ndarray, grids: list[np.ndarray], spread: np.ndarray, *, exact: bool, rng: np.random.Generator) -> Times:
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
    return Times(lower, upper, spread)


def bootstrap(times: Times, mean: Mean, fitted: Fit, grids: list[np.ndarray], draws: int, *, exact: bool, rng: np.random.Generator) -> np.ndarray:
    """Parametric bootstrap of theta, (draws, parameters).

    Seeds are few, so resampling runs would understate the spread; the fitted model is simulated instead, its noise
    inflated by sqrt(n/(n - p)) because maximum likelihood underestimates it.
    """
    n, p = len(times.lower), len(fitted.theta) + 2
    centre, sd = mean(fitted.theta), fitted.sd(times) * np.sqrt(n / max(1, n - p))
    noise = (float(fitted.noise[0]), float(fitted.noise[1]))
    again = (simulate(centre, sd, grids, times.spread, exact=exact, rng=rng) for _ in range(draws))
    return np.array([fit(drawn, mean, [fitted.theta], noise).theta for drawn in again])
