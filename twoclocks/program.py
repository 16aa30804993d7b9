"""The linear programs behind `plan`: rates per sample in, samples to spend at each setting out.

A setting j has progress p_j, hazard r_j and seconds s_j per sample; x_j samples are spent at it. Two constraints on
x >= 0, so a vertex holds at most two settings. Derived in theory/planner.py, which enumerates vertices in exact arithmetic.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from twoclocks.errors import NeverReachedError, SettingError

TINY = 1e-9  # a share below this is the solver's rounding


def switch_samples(hazard1: Any, hazard2: Any, *, samples: Any, safety: Any) -> Any:
    """Samples at setting 1 where both budgets are spent, x_1 = (D - N r_2)/(r_1 - r_2); N - x_1 go to setting 2. Plain arithmetic.

    Both are used for r_2 N <= D <= r_1 N.
    """
    return (safety - samples * hazard2) / (hazard1 - hazard2)


def most_progress(progress: ArrayLike, hazard: ArrayLike, *, samples: float, safety: float) -> np.ndarray:
    """Maximise sum p_j x_j subject to sum x_j <= N, sum r_j x_j <= D, x >= 0.

    Parameters
    ----------
    progress, hazard : (n,) array
        p_j, metric units per completion; r_j = 1/E*_j per completion.
    samples : float
        N, completions.
    safety : float
        D, share of a collapse.

    Returns
    -------
    (n,) array
        x_j; at most two are not zero.

    Raises
    ------
    NeverReachedError
        If no setting makes progress.
    SettingError
        If a budget is not positive, a hazard is negative, or a rate is not finite.
    """
    p, r = _rates(progress, hazard)
    if not (samples > 0 and safety > 0):
        raise SettingError(f"samples={samples}, safety={safety}: both budgets must be positive")
    if p.max() <= 0:
        raise NeverReachedError("no setting makes progress per sample; run smaller learning rates")
    # In units of the most that each setting can take, so that every coefficient is of order one: HiGHS has absolute tolerances
    most = np.full_like(p, samples)
    np.divide(safety, r, out=most, where=r * samples > safety)
    return most * _solve(-p * most, np.stack([most / samples, r * most / safety]), [1.0, 1.0])


def fewest_seconds(progress: ArrayLike, hazard: ArrayLike, seconds: ArrayLike, *, gain: float, safety: float, samples: float = math.inf) -> np.ndarray:
    """Minimise sum s_j x_j subject to sum p_j x_j >= gain, sum r_j x_j <= D, sum x_j <= N, x >= 0.

    Without hazard and horizon this is the setting of least T = E/X, samples to the gain over samples per second. With all
    three limits tight a vertex has three settings; the best two of them are taken then.

    Parameters
    ----------
    progress, hazard, seconds : (n,) array
        p_j, r_j and s_j per completion.
    gain : float
        Metric units to gain.
    safety : float
        D, share of a collapse.
    samples : float
        N, completions; infinite for no horizon.

    Returns
    -------
    (n,) array
        x_j, completions; at most two are not zero.

    Raises
    ------
    NeverReachedError
        If the least hazard per progress, times the gain, exceeds the safety budget, or the gain takes more samples.
    SettingError
        If gain, safety or samples is not positive, a hazard is negative, or a rate is not finite.
    """
    p, r, s = _rates(progress, hazard, seconds)
    if not (gain > 0 and safety > 0 and samples > 0):
        raise SettingError(f"gain={gain}, safety={safety}, samples={samples}: all must be positive")
    useful = np.flatnonzero(p > 0)  # a setting without progress costs seconds and hazard, and gives nothing
    alone = gain / p[useful]  # samples to the gain at one setting
    least = float((r[useful] * alone).min(initial=np.inf))
    if least > safety:
        raise NeverReachedError(f"a gain of {gain:.4g} costs at least {least:.3g} of a collapse at any of the settings, more than safety={safety:g}")
    if not float(alone.min(initial=np.inf)) <= samples:
        raise NeverReachedError(f"a gain of {gain:.4g} takes at least {alone.min():.4g} samples at any of the settings, more than samples={samples:.4g}")
    rows = np.stack([-np.ones(len(useful)), r[useful] * alone / safety, alone / samples])
    shares = _solve(s[useful] * alone, rows, [-1.0, 1.0, 1.0])
    if (shares > 0).sum() > 2:
        shares = _best_pair(s[useful] * alone, rows, np.flatnonzero(shares))
    x = np.zeros_like(p)
    x[useful] = alone * shares
    return x


def _best_pair(cost: np.ndarray, rows: np.ndarray, used: np.ndarray) -> np.ndarray:
    found: list[np.ndarray] = []
    for pair in itertools.combinations(used, 2):
        shares = np.zeros(len(cost))
        try:
            shares[list(pair)] = _solve(cost[list(pair)], rows[:, list(pair)], [-1.0, 1.0, 1.0])
        except NeverReachedError:
            continue
        found.append(shares)
    if not found:
        raise NeverReachedError("the gain takes three settings within these budgets; give more samples or safety")
    return min(found, key=lambda shares: float(cost @ shares))


def _rates(*rates: ArrayLike) -> list[np.ndarray]:
    arrays = [np.asarray(rate, float) for rate in rates]
    if not all(np.isfinite(a).all() and a.shape == arrays[0].shape and a.ndim == 1 for a in arrays) or any((a < 0).any() for a in arrays[1:]):
        raise SettingError("rates must be finite and of one length, hazards and seconds not negative")
    return arrays


def _solve(cost: np.ndarray, rows: np.ndarray, limits: list[float]) -> np.ndarray:
    result = optimize.linprog(cost / np.abs(cost).max(), A_ub=rows, b_ub=limits, method="highs-ds")
    if result.status == 2:
        raise NeverReachedError("no mix of the settings reaches the gain within both budgets; give more samples or safety, or ask for less")
    if result.x is None:
        raise NeverReachedError(f"the program was not solved ({result.message}); leave out settings whose rates differ by many orders of magnitude")
    return np.where(result.x > TINY * result.x.max(), result.x, 0.0)
