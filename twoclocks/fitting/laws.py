"""The two laws as functions of their parameters, in units where every parameter is of order one, with slopes for the estimator."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from twoclocks.censored import UNBOUNDED

Model = Literal["curvature", "saturation", "both"]
MODELS: tuple[Model, ...] = ("curvature", "saturation", "both")
LEAST = 1e-3  # progress relative to a c below which a setting counts as never reaching the target
VOID = 50.0  # ... and by how much later it gets, in log samples per unit of lost progress
SATURATION_SPAN = 4.0  # B_sat is sought within e^4 of the fitted batches: further out the runs cannot say


@dataclass(frozen=True)
class ProgressLaw:
    """log E_k = t_k - log x - log(phi - x (k0 + k1 z phi^2)), with x = c/c0, z = B/b0, phi = (1 + z e^-s)^(-1/2).

    theta = (t_1 ... t_K, k0, then k1 with curvature, then s with saturation): t_k = log(gain_k/(a c0)), k0 = c0 h0/(2a),
    k1 = c0 b0 h1/(2a), s = log(B_sat/b0). Targets share all but their level.

    Attributes
    ----------
    model : {"curvature", "saturation", "both"}
    targets : int
        K.
    target : (n,) array of int
        Which target each row is about.
    """

    model: Model
    targets: int
    target: np.ndarray
    batch: np.ndarray
    drift_rate: np.ndarray
    b0: float
    c0: float

    @property
    def parameters(self) -> int:
        """Length of theta."""
        return self.targets + (3 if self.model == "both" else 2)

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """Of theta."""
        free = [UNBOUNDED] * self.parameters
        if self.model != "curvature":
            low, high = math.log(self.batch.min() / self.b0) - SATURATION_SPAN, math.log(self.batch.max() / self.b0) + SATURATION_SPAN
            free[-1] = (low, high)
        return free

    def starts(self, levels: np.ndarray) -> list[np.ndarray]:
        """Starting points from the median log E x of every target."""
        shapes: dict[Model, list[tuple[float, ...]]] = {
            "curvature": [(0.05, 0.02), (0.3, 0.1), (-0.1, 0.0)],
            "saturation": [(0.05, 3.0), (0.3, 1.0), (0.0, 0.0)],
            "both": [(0.05, 0.02, 3.0), (0.3, 0.1, 1.0), (0.0, 0.0, 0.0)],
        }
        return [np.concatenate([levels, shape]) for shape in shapes[self.model]]

    def __call__(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(mean of log E, its slopes in theta) of every row, over any leading dimensions of theta."""
        x, z, k = self.drift_rate / self.c0, self.batch / self.b0, self.targets
        k0 = theta[..., k, None]
        k1 = theta[..., k + 1, None] if self.model != "saturation" else 0.0
        turned = z * np.exp(-theta[..., -1, None]) if self.model != "curvature" else np.zeros_like(z)
        phi = (1 + turned) ** -0.5
        left = phi - x * (k0 + k1 * z * phi**2)
        # A step too long to progress never reaches the target: very late, and later the worse it is
        short = np.maximum(0, LEAST - left)
        mean = theta[..., : self.targets][..., self.target] - np.log(x) - np.log(np.maximum(left, LEAST)) + VOID * short
        by_left = np.where(short > 0, -VOID, -1 / np.maximum(left, LEAST))
        slopes = [np.broadcast_to(self.target == j, mean.shape).astype(float) for j in range(k)]
        slopes.append(by_left * -x)
        if self.model != "saturation":
            slopes.append(by_left * -x * z * phi**2)
        if self.model != "curvature":
            slopes.append(by_left * 0.5 * phi**3 * turned * (1 - 2 * x * k1 * z * phi))
        return mean, np.stack(np.broadcast_arrays(*slopes), axis=-1)

    def clock_parameters(self, theta: np.ndarray, gain: float) -> pd.DataFrame:
        """a, h0, h1 and saturation_batch of every row of theta; `gain` is that of the first target."""
        theta = np.atleast_2d(theta)
        a = gain / np.exp(theta[:, 0]) / self.c0
        found = {"a": a, "h0": 2 * a * theta[:, self.targets] / self.c0}
        if self.model != "saturation":
            found["h1"] = 2 * a * theta[:, self.targets + 1] / (self.c0 * self.b0)
        if self.model != "curvature":
            found["saturation_batch"] = self.b0 * np.exp(theta[:, -1])
        return pd.DataFrame(found)

    def at(self, batch: np.ndarray, drift_rate: np.ndarray) -> ProgressLaw:
        """The same law at other settings, for the first target."""
        return replace(self, target=np.zeros(len(batch), int), batch=batch, drift_rate=drift_rate)


@dataclass(frozen=True)
class FailureLaw:
    """log E* = theta_0 + b_B log(B/b0) + b_c log(c/c0)."""

    batch: np.ndarray
    drift_rate: np.ndarray
    b0: float
    c0: float

    def __call__(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(mean of log E*, its slopes in theta) of every row, over any leading dimensions of theta."""
        design = np.column_stack([np.ones(len(self.batch)), np.log(self.batch / self.b0), np.log(self.drift_rate / self.c0)])
        return theta @ design.T, np.broadcast_to(design, (*theta.shape[:-1], *design.shape))

    def clock_parameters(self, theta: np.ndarray) -> pd.DataFrame:
        """samples, b_batch and b_drift of every row of theta."""
        theta = np.atleast_2d(theta)
        return pd.DataFrame({"samples": np.exp(theta[:, 0]), "b_batch": theta[:, 1], "b_drift": theta[:, 2]})

    def at(self, batch: np.ndarray, drift_rate: np.ndarray) -> FailureLaw:
        """The same law at other settings."""
        return replace(self, batch=batch, drift_rate=drift_rate)


def centre(cells: pd.DataFrame) -> dict[str, float]:
    """b0 and c0: geometric means over the runs."""
    return {short: float(np.exp(np.log(cells[name].to_numpy(float)).mean())) for short, name in (("b0", "batch"), ("c0", "drift_rate"))}
