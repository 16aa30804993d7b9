"""Maximum likelihood for log-normal times known only up to an interval, with noise that may differ between groups.

The one estimator behind both clocks: log T ~ Normal(law(theta), sd_g^2) with one sd a group g, shrunk towards a common
one, and each T known to lie in (lower, upper]: exact where lower == upper, right-censored where upper is infinite,
left-censored where lower is 0. One fit is statsmodels' (`GenericLikelihoodModel`, with the score below); a bootstrap fits
hundreds of simulated worlds at once by Newton's method on the same likelihood (`refit`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import optimize
from scipy.special import log_ndtr

from twoclocks.errors import FitError

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
# theta (..., p) -> mean of log T (..., n) and its slopes in theta (..., n, p)
Law = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

LOG_SD = (-4.0, 1.5)  # between 2% and a factor of 4.5: outside, the data cannot say
DIFFERENCE = (-1.5, 1.5)  # of a group's log sd from the common one
UNBOUNDED = (-math.inf, math.inf)
SHRINK = 0.5  # prior sd of that difference: a handful of runs a group know it to about that
STEP = 1e-4  # of the differences of the score that make the curvature in mean and log sd
TOLERANCE, PATIENCE = 1e-10, 200  # a refit ends where a step gains less log likelihood than this
MAX_STEP, GIVE_UP = 3.0, 1e9  # of one Newton step in any parameter; of the damping
CHUNK = 2_000_000  # rows of simulated worlds, times parameters, held at once


@dataclass(frozen=True)
class Times:
    """Times in training completions and the group that shares their noise.

    Attributes
    ----------
    lower, upper : array, (n,) or (worlds, n)
        T in (lower, upper]; equal where exact; upper inf where right-censored.
    group : (n,) array of int
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

    def rows(self, which: np.ndarray) -> Times:
        """Some of the rows."""
        return Times(self.lower[..., which], self.upper[..., which], self.group[which])


def score(times: Times, mean: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log likelihood of every row, and its derivatives in the row's mean and log sd.

    log density where the time is exact, log probability of the interval where it is not; a constant
    (1/2 log 2 pi an exact time) is left out.
    """
    mean, sd, lower, upper = np.broadcast_arrays(mean, sd, times.lower, times.upper)
    exact = lower == upper
    z = (np.log(np.where(exact, lower, 1.0)) - mean) / sd
    value, by_mean, by_log_sd = -0.5 * z**2 - np.log(sd), z / sd, z**2 - 1
    rest = ~exact
    value[rest], by_mean[rest], by_log_sd[rest] = _inside(lower[rest], upper[rest], mean[rest], sd[rest])
    return value, by_mean, by_log_sd


def _inside(lower: np.ndarray, upper: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log probability of (lower, upper], and its derivatives in mean and log sd."""
    with np.errstate(divide="ignore"):
        low, high = (np.log(lower) - mean) / sd, (np.log(upper) - mean) / sd
    # P(low < Z <= high) in the tail where it does not round to zero, and log P = log Phi(b) + log(1 - Phi(a)/Phi(b))
    flip = low > 0
    a, b = np.where(flip, -high, low), np.where(flip, -low, high)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = log_ndtr(b)
        inside = whole + np.log1p(-np.minimum(np.exp(log_ndtr(a) - whole), 1 - 1e-15))
        at_low, at_high = (np.exp(-0.5 * z**2 - HALF_LOG_2PI - inside) for z in (low, high))
        steep = np.where(np.isfinite(low), low, 0) * at_low - np.where(np.isfinite(high), high, 0) * at_high
    return inside, (at_low - at_high) / sd, steep


def log_likelihood(times: Times, mean: np.ndarray, sd: np.ndarray) -> float:
    """Sum over times of log density (exact) or log probability of the interval."""
    return float(score(times, mean, sd)[0].sum())


@dataclass(frozen=True)
class Fit:
    """Estimates, and what is needed to simulate from them.

    Attributes
    ----------
    theta : array
        Parameters of the law.
    noise : array
        Log sd of the typical group, then each group's difference from it.
    log_likelihood : float
        At the estimates, prior of the differences left out.
    information : array
        Negative curvature of the log posterior in (theta, noise).
    """

    theta: np.ndarray
    noise: np.ndarray
    log_likelihood: float
    information: np.ndarray

    def sd(self, group: np.ndarray) -> np.ndarray:
        """Standard deviation of log times of these groups."""
        return np.exp(self.noise[0] + self.noise[1:][group])

    @property
    def covariance(self) -> np.ndarray:
        """Covariance of theta, noise unknown; infinite where the data say nothing."""
        p = len(self.theta)
        try:
            return np.linalg.inv(self.information)[:p, :p]
        except np.linalg.LinAlgError:
            return np.full((p, p), np.inf)


@dataclass(frozen=True)
class Draws:
    """A bootstrap: estimates of many worlds, (worlds, parameters) each, as in `Fit`."""

    theta: np.ndarray
    noise: np.ndarray


class _Problem:
    """The log posterior of (theta, noise) over any number of worlds at once, with gradient and curvature."""

    def __init__(self, times: Times, law: Law, parameters: int, weights: np.ndarray | None = None) -> None:
        self.times, self.law, self.p = times, law, parameters
        self.weights = np.ones(len(times.group)) if weights is None else weights
        groups = int(times.group.max()) + 1
        self.noise_slopes = np.column_stack([np.ones(len(times.group)), np.eye(groups)[times.group]])
        self.bounds = [LOG_SD] + [DIFFERENCE] * groups

    def _rows(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        mean, slopes = self.law(x[..., : self.p])
        return mean, slopes, x[..., self.p :] @ self.noise_slopes.T

    def value(self, x: np.ndarray) -> np.ndarray:
        """Log posterior, (...,); -inf where it is not finite."""
        mean, _, log_sd = self._rows(x)
        found = (self.weights * score(self.times, mean, np.exp(log_sd))[0]).sum(-1) - 0.5 * (x[..., self.p + 1 :] ** 2).sum(-1) / SHRINK**2
        return np.where(np.isfinite(found), found, -np.inf)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """Slopes of `value`, (..., parameters and noise)."""
        mean, slopes, log_sd = self._rows(x)
        return self._chained(x, slopes, *score(self.times, mean, np.exp(log_sd))[1:])

    def _chained(self, x: np.ndarray, slopes: np.ndarray, by_mean: np.ndarray, by_log_sd: np.ndarray) -> np.ndarray:
        theta = np.einsum("...n,...np->...p", self.weights * by_mean, slopes)
        noise = (self.weights * by_log_sd) @ self.noise_slopes
        noise[..., 1:] -= x[..., self.p + 1 :] / SHRINK**2
        return np.concatenate([theta, noise], axis=-1)

    def curvature(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(gradient, negative curvature); the law's own second derivatives are left out, as they average to nothing at the optimum."""
        mean, slopes, log_sd = self._rows(x)
        _, by_mean, by_log_sd = score(self.times, mean, np.exp(log_sd))
        _, mean_on, _ = score(self.times, mean + STEP, np.exp(log_sd))
        _, mean_sd, sd_on = score(self.times, mean, np.exp(log_sd + STEP))
        in_mean, mixed, in_sd = (self.weights * (was - then) / STEP for was, then in ((by_mean, mean_on), (by_mean, mean_sd), (by_log_sd, sd_on)))
        turned, noise = np.swapaxes(slopes, -1, -2), self.noise_slopes
        theta = (turned * np.maximum(in_mean, 0.0)[..., None, :]) @ slopes
        across = (turned * mixed[..., None, :]) @ noise
        own = (noise.T * in_sd[..., None, :]) @ noise + np.diag([0.0] + [SHRINK**-2] * (noise.shape[1] - 1))
        whole = np.concatenate([np.concatenate([theta, across], -1), np.concatenate([np.swapaxes(across, -1, -2), own], -1)], -2)
        return self._chained(x, slopes, by_mean, by_log_sd), whole


def fit(times: Times, law: Law, starts: list[np.ndarray], bounds: list[tuple[float, float]] | None = None) -> Fit:
    """Maximise the likelihood from every start (statsmodels, L-BFGS-B) and keep the best.

    Parameters
    ----------
    law : callable
        theta -> mean of log T for every row and its slopes; must be finite for any theta (a large mean where a model is void).
    starts : list of array
        Starting points of theta.
    bounds : list of (low, high), optional
        Of theta; default none.

    Raises
    ------
    FitError
        If no start converges to a finite likelihood.
    """
    from statsmodels.base.model import GenericLikelihoodModel

    problem = _Problem(times, law, len(starts[0]))

    class Model(GenericLikelihoodModel):  # type: ignore[misc]
        def loglike(self, params: np.ndarray) -> float:
            return max(float(problem.value(params)), -1e10)

        def score(self, params: np.ndarray) -> np.ndarray:
            return np.nan_to_num(problem.gradient(params))

    limits = [*(bounds or [UNBOUNDED] * problem.p), *problem.bounds]
    noise = np.concatenate([[-1.5], np.zeros(len(problem.bounds) - 1)])
    best: tuple[float, Any] = (-1e9, None)
    for start in starts:
        model = Model(np.zeros(len(times.group)), np.ones((len(times.group), 1)))
        options = {"bounds": limits, "maxiter": 3000, "maxfun": 10_000}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it counts parameters by columns of exog, and calls a line search that ends at rounding no convergence
            found = model.fit(np.concatenate([start, noise]), method="lbfgs", disp=0, skip_hessian=True, **options)
        value = float(problem.value(found.params))
        if value > best[0]:
            best = (value, found.params)
    if best[1] is None:
        raise FitError("the likelihood is not finite from any starting point; check the times for zeros or NaN")
    # Newton's method from there: where L-BFGS stops, another machine's rounding moved estimates by 5e-4
    x = np.concatenate(_newton(times, law, best[1][: problem.p], best[1][problem.p :], bounds, np.ones((1, len(times.group))), 1), axis=1)[0]
    mean, _, log_sd = problem._rows(x)
    return Fit(x[: problem.p], x[problem.p :], log_likelihood(times, mean, np.exp(log_sd)), problem.curvature(x)[1])


def refit(times: Times, law: Law, start: Fit, bounds: list[tuple[float, float]] | None = None, weights: np.ndarray | None = None) -> Draws:
    """Maximise the likelihood of many worlds at once, from one fit, by damped Newton steps.

    Parameters
    ----------
    times : Times
        lower and upper (worlds, n), or (n,) with weights.
    weights : (worlds, n) array, optional
        How often each row counts.
    """
    worlds = len(times.lower if weights is None else weights)
    several = max(1, CHUNK // (len(times.group) * (len(start.theta) + 1)))
    parts = [np.arange(at, min(at + several, worlds)) for at in range(0, worlds, several)]
    found = [_newton(_worlds(times, part), law, start.theta, start.noise, bounds, None if weights is None else weights[part], len(part)) for part in parts]
    return Draws(*(np.concatenate(arrays) for arrays in zip(*found, strict=True)))


def _worlds(times: Times, which: np.ndarray) -> Times:
    return times if times.lower.ndim == 1 else Times(times.lower[which], times.upper[which], times.group)


def _newton(
    times: Times, law: Law, theta: np.ndarray, noise: np.ndarray, bounds: Any, weights: np.ndarray | None, worlds: int
) -> tuple[np.ndarray, np.ndarray]:
    p = len(theta)
    low, high = np.array([*(bounds or [UNBOUNDED] * p), LOG_SD, *[DIFFERENCE] * (len(noise) - 1)]).T
    x = np.tile(np.clip(np.concatenate([theta, noise]), low, high), (worlds, 1))
    value, damping, left = _Problem(times, law, p, weights).value(x), np.full(worlds, 1e-3), np.arange(worlds)
    for _ in range(PATIENCE):
        part = _Problem(_worlds(times, left), law, p, None if weights is None else weights[left])
        slope, curve = part.curvature(x[left])
        scale = np.maximum(np.abs(np.diagonal(curve, axis1=1, axis2=2)), 1e-6)
        step = np.linalg.solve(curve + (damping[left, None] * scale)[:, None, :] * np.eye(len(low)), slope[..., None])[..., 0]
        there = np.clip(x[left] + np.clip(step, -MAX_STEP, MAX_STEP), low, high)
        gained = part.value(there) - value[left]
        better = gained >= 0
        x[left[better]], value[left[better]] = there[better], value[left[better]] + gained[better]
        damping[left] = np.where(better, np.maximum(damping[left] / 10, 1e-9), damping[left] * 10)
        left = left[~((better & (gained < TOLERANCE)) | (damping[left] > GIVE_UP))]
        if not len(left):
            break
    return x[:, :p], x[:, p:]


def misfit(times: Times, law: Law, fitted: Fit, cell: np.ndarray, inflation: float = 1.0) -> float:
    """p-value that a law fits: likelihood ratio of the law against one free mean a cell, noise as fitted.

    Cells whose times are all right-censored say only "at least", so they count towards the ratio but not the freedom.

    Parameters
    ----------
    cell : array of int
        Cell (setting) of each row.
    inflation : float
        By how much correlated rows inflate the ratio (1 for independent rows).
    """
    from scipy.stats import chi2

    sd, centre, gain, freedom = fitted.sd(times.group), law(fitted.theta)[0], 0.0, -len(fitted.theta)
    for number in np.unique(cell):
        rows = cell == number
        one, spread = times.rows(rows), sd[rows]
        span = np.log(np.maximum(one.lower, 1.0))
        free = optimize.minimize_scalar(
            lambda m: -log_likelihood(one, np.full(len(spread), m), spread),  # noqa: B023
            bounds=(span.min() - 6 * spread.max(), span.max() + 6 * spread.max()),
            method="bounded",
            options={"xatol": 1e-9},
        )
        gain += max(0.0, -free.fun - log_likelihood(one, centre[rows], spread))
        freedom += bool(np.isfinite(one.upper).any())
    return float(chi2.sf(2 * gain / inflation, max(1, freedom)))


def simulate(mean: np.ndarray, sd: np.ndarray, grids: list[np.ndarray], group: np.ndarray, noise: np.ndarray, *, exact: bool) -> Times:
    """Times drawn from a fitted model and observed the way real ones are.

    Parameters
    ----------
    grids : list of array
        For each row the sample counts at which it is looked at; past the last it is right-censored.
    noise : (worlds, n) array
        Standard normal.
    exact : bool
        Whether a time before the last look is known exactly, or only to lie between two looks.
    """
    lower = np.exp(mean + sd * noise)
    upper = lower.copy()
    for i, grid in enumerate(grids):
        drawn = lower[:, i].copy()
        if not exact:
            at = np.searchsorted(grid, drawn)
            lower[:, i], upper[:, i] = np.concatenate([[0.0], grid])[at], np.concatenate([grid, [np.inf]])[at]
        late = drawn > grid[-1]
        lower[late, i], upper[late, i] = grid[-1], np.inf
    return Times(lower, upper, group)


def bootstrap(
    times: Times,
    law: Law,
    fitted: Fit,
    grids: list[np.ndarray],
    draws: int,
    *,
    exact: bool,
    rng: np.random.Generator,
    bounds: list[tuple[float, float]] | None = None,
    run: np.ndarray | None = None,
    correlation: float = 0.0,
) -> Draws:
    """Parametric bootstrap: for few seeds, whose resampling would understate the spread.

    The fitted model is simulated and refitted, its noise inflated by sqrt(n/(n - p)), n the timed rows, because maximum
    likelihood underestimates it. Rows of one run share a part of their noise.

    Parameters
    ----------
    run : array of int, optional
        Run of each row; default every row its own.
    correlation : float
        Of the log times of one run.
    """
    run = np.arange(len(times.group)) if run is None else run
    own, shared = rng.standard_normal((draws, len(run))), rng.standard_normal((draws, int(run.max()) + 1))
    noise = math.sqrt(1 - correlation) * own + math.sqrt(correlation) * shared[:, run]
    n, p = times.timed, len(fitted.theta) + len(fitted.noise)
    sd = fitted.sd(times.group) * np.sqrt(n / max(1, n - p))
    return refit(simulate(law(fitted.theta)[0], sd, grids, times.group, noise, exact=exact), law, fitted, bounds)


def resample(
    times: Times, law: Law, fitted: Fit, cluster: np.ndarray, draws: int, *, rng: np.random.Generator, bounds: list[tuple[float, float]] | None = None
) -> Draws:
    """Cluster bootstrap: whole seeds are drawn with replacement; wants at least ten of them.

    m clusters spread like m - 1 degrees of freedom: distances from the estimate are widened by sqrt(m/(m - 1)).
    """
    names, which = np.unique(cluster, return_inverse=True)
    m = len(names)
    counts = rng.multinomial(m, np.full(m, 1 / m), size=draws)
    found = refit(times, law, fitted, bounds, weights=counts[:, which].astype(float))
    return replace(found, theta=fitted.theta + (found.theta - fitted.theta) * math.sqrt(m / (m - 1)))
