"""The linear programs behind `plan`: rates per sample in, samples to spend at each setting out.

A setting j has progress p_j, hazard r_j and seconds s_j per sample; x_j samples are spent at it. Two constraints on
x >= 0, so a vertex holds at most two settings. Derived in theory/planner.py, which enumerates vertices in exact arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from twoclocks.errors import NeverReachedError, SettingError

TINY = 1e-6  # a share of the budget below this is the solver's rounding


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
    """
    p, r = np.asarray(progress, float), np.asarray(hazard, float)
    scale = p.max()
    if scale <= 0:
        raise NeverReachedError("no setting makes progress per sample; run smaller learning rates")
    # Rows and objective of order one: hazards are 1e-6 and HiGHS has absolute tolerances
    result = optimize.linprog(-p / scale, A_ub=np.stack([np.ones_like(p), r * samples / safety]), b_ub=[1.0, 1.0], method="highs-ds")
    return np.where(result.x > TINY, result.x, 0.0) * samples


def fewest_seconds(progress: ArrayLike, hazard: ArrayLike, seconds: ArrayLike, *, gain: float, safety: float) -> np.ndarray:
    """Minimise sum s_j x_j subject to sum p_j x_j >= gain, sum r_j x_j <= D, x >= 0.

    Without hazard this is the setting of least T = E/X, samples to the gain over samples per second.

    Parameters
    ----------
    progress, hazard, seconds : (n,) array
        p_j, r_j and s_j per completion.
    gain : float
        Metric units to gain.
    safety : float
        D, share of a collapse.

    Returns
    -------
    (n,) array
        x_j, completions; at most two are not zero.

    Raises
    ------
    NeverReachedError
        If the least hazard per progress, times the gain, exceeds the safety budget.
    SettingError
        If gain is not positive.
    """
    p, r, s = (np.asarray(v, float) for v in (progress, hazard, seconds))
    if not gain > 0:
        raise SettingError(f"gain={gain}: must be positive")
    useful = p > 0
    least = float((r[useful] / p[useful]).min()) * gain if useful.any() else np.inf
    if least > safety:
        raise NeverReachedError(f"a gain of {gain:.4g} costs at least {least:.3g} of a collapse at any of the settings, more than safety={safety:g}")
    unit = gain / p.max()  # samples of the fastest setting in samples
    result = optimize.linprog(s / s.max(), A_ub=np.stack([-p / p.max(), r * unit / safety]), b_ub=[-1.0, 1.0], method="highs-ds")
    return np.where(result.x > TINY * result.x.max(), result.x, 0.0) * unit
