"""Which cell to run next: the batch and learning rate that shrink a parameter's interval most, by the fitted model's information."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtr

from twoclocks.censored import Fit, Law

SEEDS = 3
REACH = 4.0  # batches up to four times outside those that were run, drift rates up to twice


def candidates(cells: pd.DataFrame, group: int) -> tuple[np.ndarray, np.ndarray]:
    """(batch, drift rate) of cells worth thinking about: those that were run, between them, and around them."""
    batch, drift = (np.unique(cells[name].to_numpy(float)) for name in ("batch", "drift_rate"))
    around = (batch[0] / REACH, batch[0] / 2, *batch, batch[-1] * 2, batch[-1] * REACH)
    batches = sorted({max(1, round(b / group)) * float(group) for b in around})
    drifts = sorted({drift[0] / 2, *drift, *np.sqrt(drift[1:] * drift[:-1]), drift[-1] * 2})
    b, c = np.meshgrid(batches, drifts, indexing="ij")
    return b.ravel(), c.ravel()


def information(mean: np.ndarray, sd: float, horizon: float) -> np.ndarray:
    """Expected information about its mean from one log time that is right-censored at the horizon.

    For z = (log horizon - mean)/sd: (Phi(z) - z phi(z) + phi(z)^2/(1 - Phi(z)))/sd^2, 1/sd^2 where nothing is censored.
    """
    z = (np.log(horizon) - mean) / sd
    density, over = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi), ndtr(-z)
    return (ndtr(z) - z * density + np.divide(density**2, over, out=np.zeros_like(z), where=over > 0)) / sd**2


def next_cells(
    clock: str, law: Any, fitted: Fit, parameters: Callable[[np.ndarray], pd.DataFrame], cells: pd.DataFrame, group: int, horizon: float
) -> pd.DataFrame:
    """For every parameter of a clock the cell whose runs would shrink its standard error most.

    Parameters
    ----------
    law : ProgressLaw or FailureLaw
    parameters : callable
        theta -> table of the clock's parameters.
    horizon : float
        Full-rate completions of the run to add.

    Returns
    -------
    DataFrame
        clock, parameter, batch, lr, seeds, and `shrinks_to`, the standard error then over that now.
    """
    batch, drift = candidates(cells, group)
    there: Law = law.at(batch, drift)
    mean, slopes = there(fitted.theta)
    known = SEEDS * information(mean, float(np.exp(fitted.noise[0])), horizon)
    covariance, step = fitted.covariance, 1e-5
    if not np.isfinite(covariance).all() or (np.diag(covariance) <= 0).any():
        return pd.DataFrame(columns=["clock", "parameter", "batch", "lr", "seeds", "shrinks_to"])
    now = parameters(fitted.theta)
    moved = [(parameters(fitted.theta + step * row) - now) / step for row in np.eye(len(fitted.theta))]
    spread = slopes @ covariance  # (candidates, parameters)
    rows = []
    for name in now.columns:
        slope = np.array([m[name].iloc[0] for m in moved])
        variance = float(slope @ covariance @ slope)
        # One more row of information k J J' (Sherman and Morrison)
        after = variance - known * (spread @ slope) ** 2 / (1 + known * (spread * slopes).sum(1))
        best = int(np.argmin(after))
        lr = drift[best] * np.sqrt(batch[best])
        rows.append((clock, name, int(batch[best]), float(f"{lr:.3g}"), SEEDS, float(np.sqrt(max(0.0, after[best]) / variance))))
    return pd.DataFrame(rows, columns=["clock", "parameter", "batch", "lr", "seeds", "shrinks_to"])
