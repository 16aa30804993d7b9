"""Ratio clipping: the share of completions whose gradient survives it, and what it does to the failure clock.

A clip stops gradients, it does not bound ratios. Y is a completion's log-ratio in its advantage direction when j samples
have been spent since the rollout policy was frozen; with the displacement frozen in direction, Y ~ N(c j m, c^2 j g^2):
m is drift of Y per sample and unit of c, g^2 its variance. PPO's min drops the gradient where Y passes the clip bound e, so

    f(j) = Phi((e - c j m)/(c g sqrt(j)))      survives at age j,      share = mean of f(k B), k = 0..S-1.

For m >= 0, f falls with age. So at fixed S >= 2 the share falls with B (the clock is delayed more at large B), at S = 1
nothing is clipped, and at fixed rollout size S B it rises when B is multiplied by a whole number. Derived in
theory/clipping.py.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from twoclocks.errors import SettingError


def thresholds(clip: tuple[float, float] | None) -> tuple[float, float]:
    """Log-ratio distances in the advantage direction at which completions with (negative, positive) advantage are dropped.

    (-log(1 - eps_low), log(1 + eps_high)); infinite where there is no bound (eps_low = 1, or clip None).

    Raises
    ------
    SettingError
        If not 0 < eps_low <= 1 or not eps_high > 0.
    """
    if clip is None:
        return math.inf, math.inf
    low, high = clip
    if not (0 < low <= 1 and high > 0):
        raise SettingError(f"clip={clip}: must be (low, high) with 0 < low <= 1 and high > 0, or None")
    return (-math.log1p(-low) if low < 1 else math.inf), math.log1p(high)


def bound_in_sds(age: Any, drift_rate: Any, sqrt_age: Any, *, threshold: Any, drift: Any, spread: Any) -> Any:
    """Clip bound in standard deviations of Y at age j, z = (e - c j m)/(c g sqrt(j)). Plain arithmetic; sqrt(j) is passed in."""
    return (threshold - drift_rate * age * drift) / (drift_rate * spread * sqrt_age)


def survival(age: ArrayLike, drift_rate: float, *, threshold: float, drift: float, spread: float) -> np.ndarray:
    """f(j) = Phi(z), share of completions that keep their gradient j samples after the rollout; 1 at age 0."""
    j = np.asarray(age, float)
    if math.isinf(threshold):
        return np.ones_like(j)
    with np.errstate(divide="ignore"):
        return special.ndtr(bound_in_sds(j, drift_rate, np.sqrt(j), threshold=threshold, drift=drift, spread=spread))


def surviving_share(
    batch: float, drift_rate: float, *, updates_per_rollout: int, clip: tuple[float, float] | None, drift: float, spread: float, positive: float = 0.5
) -> float:
    """Share of completions whose gradient survives, over the S updates of a rollout.

    Parameters
    ----------
    batch, drift_rate : float
        B and c = eta/sqrt(B).
    updates_per_rollout : int
        S.
    clip : (eps_low, eps_high) or None
    drift, spread : float
        m and g of the module's formula, log-ratio per sample and per square-root sample, per unit of c.
    positive : float
        Share of completions with positive advantage.

    Raises
    ------
    SettingError
        If S < 1, spread <= 0 or positive is no share.
    """
    if updates_per_rollout < 1 or updates_per_rollout % 1 or not spread > 0 or not 0 <= positive <= 1:
        raise SettingError(f"updates_per_rollout={updates_per_rollout}, spread={spread}, positive={positive}: must be whole, > 0 and in [0, 1]")
    ages = batch * np.arange(int(updates_per_rollout))
    low, high = (survival(ages, drift_rate, threshold=e, drift=drift, spread=spread) for e in thresholds(clip))
    return float(np.mean((1 - positive) * low + positive * high))


def observed_share(log_ratio: ArrayLike, advantage: ArrayLike, clip: tuple[float, float] | None, weight: ArrayLike | None = None) -> float:
    """Share of measured ratios whose gradient survives a clip, which need not be the one the run used.

    Parameters
    ----------
    log_ratio, advantage : array
        log pi_theta/pi_rollout and the advantage, per token or completion. Zero advantages have no gradient and are left out.
    weight : array, optional
        Counts of a histogram.

    Raises
    ------
    SettingError
        If no advantage differs from 0.
    """
    low, high = thresholds(clip)
    y, a = np.asarray(log_ratio, float), np.asarray(advantage, float)
    w = np.where(a != 0, 1.0 if weight is None else np.asarray(weight, float), 0.0)
    if w.sum() <= 0:
        raise SettingError("no completion has an advantage other than 0: there is no gradient for a clip to drop")
    return float((w * np.where(a > 0, y <= high, -y <= low)).sum() / w.sum())


def delay(share: Any, optimizer: Literal["sgd", "adam"] = "adam", law: Literal["drift", "diffusion"] = "drift") -> Any:
    """Samples to failure relative to no clip.

    SGD moves, and spreads, in proportion to the share: 1/share under either law. Adam with a slow second moment divides by the
    root mean square of what survives: share^(-1/2) under L1 (drift), and 1 under L2 (diffusion), as its steps keep their size.
    The first update of a rollout always survives, so the bounds are S and sqrt(S). Plain arithmetic.

    Raises
    ------
    SettingError
        If optimizer or law is unknown.

    Notes
    -----
    It counts dropped gradients alone, which holds while `pull_back` is small against 1. Beyond, what survives pulls back
    towards the rollout policy and delays further, past both bounds; `twoclocks.trajectory.simulate` includes it.
    """
    powers = {("sgd", "drift"): -1, ("sgd", "diffusion"): -1, ("adam", "drift"): -0.5, ("adam", "diffusion"): 0}
    if (optimizer, law) not in powers:
        raise SettingError(f"optimizer={optimizer!r}, law={law!r}: must be sgd or adam, drift or diffusion")
    return share ** powers[optimizer, law]


def pull_back(density: Any, age_over_dimension: Any) -> Any:
    """Squared displacement that the survivors' pull takes in one update, relative to what its noise adds: 2 phi(z) (j/d)^(1/2).

    Dropping completions whose ratio moved most in their advantage direction leaves a mean gradient against the
    displacement, -sigma phi(z) along it. Plain arithmetic.

    Parameters
    ----------
    density : float
        phi(z), the normal density at `bound_in_sds`.
    age_over_dimension : float
        j/d: samples since the rollout over the number of directions that gradient noise fills, (g/sigma)^2.
    """
    return 2 * density * age_over_dimension**0.5
