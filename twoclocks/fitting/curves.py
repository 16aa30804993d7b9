"""One metric of one run as a curve, and where it first reaches a level.

Smoothing: a metric averaged over updates (reward) is first averaged, by weight, in bins of a tenth of the samples so far
and at least a fiftieth of the run; then weighted isotonic regression up to its best bin. Interpolation: linear in samples
between the two bins around the level.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from twoclocks.errors import FitError
from twoclocks.records import Runs
from twoclocks.schema import CURVE_COLUMNS

# The floor: the first bins must hold enough completions not to reach a target by luck
BIN_RATIO, BIN_FLOOR = 1.1, 50


def metric_curve(runs: Runs, run_id: str, metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(samples, values, weights) of a metric; a windowed one is averaged, by weight, in bins.

    Raises
    ------
    RecordsError
        If the metric is not a measured column of the curve table.
    """
    samples, values, weights = runs.curve(run_id, metric)
    if {c.name: c.window for c in CURVE_COLUMNS}[metric] == "last" or len(samples) < 3:
        return samples, values, weights
    edges = [samples[-1] / BIN_FLOOR]
    while edges[-1] < samples[-1]:
        edges.append(edges[-1] + max(edges[0], (BIN_RATIO - 1) * edges[-1]))
    bins = np.searchsorted(edges, samples)
    table = pd.DataFrame({"bin": bins, "w": weights, "n": weights * samples, "y": weights * values}).groupby("bin").sum()
    return (table["n"] / table["w"]).to_numpy(), (table["y"] / table["w"]).to_numpy(), table["w"].to_numpy()


def samples_to_target(samples: np.ndarray, values: np.ndarray, weights: np.ndarray, target: float) -> float:
    """Where the rising part of a curve crosses the target, by weighted isotonic regression up to its best bin; inf if it does not.

    Raises
    ------
    FitError
        If the curve starts at the target.
    """
    lower, upper = target_interval(samples, values, weights, target)
    if lower == 0:
        raise FitError(f"target={target:g} is reached at the first value already; choose a higher one")
    return upper


def target_interval(samples: np.ndarray, values: np.ndarray, weights: np.ndarray, target: float) -> tuple[float, float]:
    """(lower, upper) of the samples to a target: equal where it is crossed, (last, inf) where it is not, (0, first) where the log begins above it."""
    peak = int(np.argmax(values)) + 1
    rising = isotonic_regression(values[:peak], weights=weights[:peak]).x
    if rising[-1] < target:
        return float(samples[-1]), math.inf
    at = int(np.argmax(rising >= target))
    if at == 0:
        return 0.0, float(samples[0])
    share = (target - rising[at - 1]) / (rising[at] - rising[at - 1])
    crossed = float(samples[at - 1] + share * (samples[at] - samples[at - 1]))
    return crossed, crossed
