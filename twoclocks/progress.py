"""The progress clock: how far a sample takes you, at which batch and learning rate.

One update of a sign-like Adam step against a local quadratic model, read per sample. With c = eta/sqrt(B),

    p(B, c) = c a - c^2/2 (h0 + B h1)

a is the first-order gain, h0 the incoherent and h1 the coherent curvature. c a does not depend on B: the square-root
rule keeps drift per sample. The loss does: it grows linearly in B, until the update saturates. Derived in
theory/local_model.py, critical_batch.py, saturation.py and optimizer_memory.py, which prove the plain functions below by
passing SymPy symbols through them.

A statement about one step against a frozen gradient: h1 fitted to many-update runs is an *effective* linear batch
loss, and a measured gap is not by itself evidence for curvature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from twoclocks.errors import NeverReachedError, SettingError, check_range


def per_update(batch: Any, lr: Any, sqrt_batch: Any, *, a: Any, h0: Any, h1: Any) -> Any:
    """Expected gain of one update, eta sqrt(B) a - eta^2/2 (h0 + B h1). Plain arithmetic; sqrt(B) is passed in."""
    return lr * sqrt_batch * a - lr**2 * (h0 + batch * h1) / 2


def per_sample(batch: Any, drift_rate: Any, *, a: Any, h0: Any, h1: Any) -> Any:
    """Expected gain per training completion, p(B, c) = c a - c^2/2 (h0 + B h1). Plain arithmetic."""
    return drift_rate * a - drift_rate**2 * (h0 + batch * h1) / 2


def critical_batch(loss_fraction: Any, drift_rate: Any, *, a: Any, h0: Any, h1: Any) -> Any:
    """Batch at which the quadratic loss is a fraction f of the drift: B_crit + h0/h1 = 2 f a/(c h1). Plain arithmetic."""
    return (2 * loss_fraction * a / drift_rate - h0) / h1


def relative_critical_batch(loss_fraction: Any, drift_rate: Any, *, a: Any, h0: Any, h1: Any) -> Any:
    """Batch that loses a fraction f of the small-batch limit p(0, c): B_rel = f (2a/c - h0)/h1. Plain arithmetic.

    f = 1/6 is 20% more samples. Unlike B_crit it does not count h0, which small batches pay too, so data identify it.
    """
    return loss_fraction * (2 * a / drift_rate - h0) / h1


def best_drift_rate(batch: Any, *, a: Any, h0: Any, h1: Any) -> Any:
    """Drift rate of most progress per sample at a batch, c* = a/(h0 + B h1). Plain arithmetic."""
    return a / (h0 + batch * h1)


def saturation_batch(signal_to_noise: Any, gain: Any) -> Any:
    """Batch beyond which the mean step stops growing, B_sat = 1/(K s)^2 with s = mu/sigma of one completion.

    Sign updates have K = sqrt(2/pi), so pi/(2 s^2); Adam with a slow second moment has K = 1. Plain arithmetic.
    """
    return 1 / (gain * signal_to_noise) ** 2


def saturation(batch: Any, saturation_batch: Any) -> Any:
    """Mean step relative to its noise-dominated value, phi(B) = (1 + B/B_sat)^(-1/2). Plain arithmetic.

    Exact for Adam with a slow second moment; for sign updates at most 11.7% below the exact error function.
    """
    return (1 + batch / saturation_batch) ** -0.5


def saturated_per_sample(batch: Any, drift_rate: Any, *, a: Any, h0: Any, h1: Any, saturation_batch: Any) -> Any:
    """p(B, c) = c a phi - c^2/2 (h0 + B h1 phi^2). Plain arithmetic.

    Saturation lowers the intercept of p/c in c, curvature steepens its slope; B phi^2 < B_sat bounds the curvature loss.
    """
    phi = saturation(batch, saturation_batch)
    return per_sample(batch, drift_rate, a=a * phi, h0=h0, h1=h1 * phi**2)


def memory_samples(batch: Any, beta: Any) -> Any:
    """Completions that a moment with decay beta remembers, B/(1 - beta). Plain arithmetic."""
    return batch / (1 - beta)


def momentum_lag(batch: Any, beta: Any) -> Any:
    """Mean age in completions of the gradients in a settled first moment, B beta/(1 - beta). Plain arithmetic."""
    return batch * beta / (1 - beta)


def momentum_variance(updates: Any, beta: Any) -> Any:
    """Noise variance of the bias-corrected first moment after t updates relative to one gradient's.

    (1 - beta)(1 + beta^t)/((1 + beta)(1 - beta^t)): 1 at the first update, (1 - beta)/(1 + beta) once settled. Plain arithmetic.
    """
    return (1 - beta) * (1 + beta**updates) / ((1 + beta) * (1 - beta**updates))


def decay_of_half_life(half_life: Any, batch: Any) -> Any:
    """Decay of an update with a half-life in completions, beta = 2^(-B/half_life). Plain arithmetic."""
    return 2 ** (-batch / half_life)


def scale_adam(k: float, *, lr: float, betas: tuple[float, float], eps: float) -> dict[str, Any]:
    """Adam's settings at k times the batch, with drift rate and memory in completions kept (Malladi et al., arXiv 2205.10287).

    lr sqrt(k); 1 - beta -> k (1 - beta), which keeps B/(1 - beta), but beta = 0 stays 0; eps/sqrt(k), as a batch
    gradient's noise shrinks so.

    Parameters
    ----------
    k : float
        New batch over old.

    Returns
    -------
    dict
        lr, betas, eps, as torch.optim.Adam takes them.

    Raises
    ------
    SettingError
        If k is not positive, or k (1 - beta) reaches 1: no decay remembers less than one update.
    """
    if not k > 0:
        raise SettingError(f"k={k}: the batch ratio must be positive")
    for name, beta in zip(("beta1", "beta2"), betas, strict=True):
        if not 0 <= beta < 1:
            raise SettingError(f"{name}={beta}: must be in [0, 1)")
        if beta and k * (1 - beta) >= 1 - 1e-12:  # 1 - 0.9 is a little below 0.1
            raise SettingError(
                f"{name}={beta} cannot be scaled to {k:g} times the batch: one update would exceed its memory of {1 / (1 - beta):.4g} "
                f"updates; keep k below 1/(1 - {name}) = {1 / (1 - beta):.4g}, or set {name}=0"
            )
    return {"lr": lr * k**0.5, "betas": tuple(1 - k * (1 - beta) if beta else beta for beta in betas), "eps": eps / k**0.5}


@dataclass(frozen=True)
class ProgressClock:
    """The local model with numbers in it.

    Parameters
    ----------
    a : float
        First-order gain, metric units per completion and unit of c.
    h0, h1 : float
        Incoherent and coherent curvature, metric units per completion and c^2 (h1: and per completion of batch).
        Either may be negative when fitted; h1 <= 0 means no batch is too large.
    saturation_batch : float
        B_sat, completions per update past which the mean step stops growing; infinite without saturation.
    log_sd : float
        Standard deviation of log samples-to-target between runs of one setting.
    batch_range, drift_range : (float, float)
        Fitted range; questions outside it raise unless `extrapolate=True`.
    """

    a: float
    h0: float
    h1: float
    saturation_batch: float = math.inf
    log_sd: float = 0.0
    batch_range: tuple[float, float] = (0.0, math.inf)
    drift_range: tuple[float, float] = (0.0, math.inf)

    @property
    def _model(self) -> dict[str, float]:
        return {"a": self.a, "h0": self.h0, "h1": self.h1}

    def _phi(self, batch: Any) -> Any:
        return saturation(np.asarray(batch, float), self.saturation_batch)

    def _check(self, batch: ArrayLike, drift_rate: ArrayLike, extrapolate: bool) -> None:
        if not extrapolate:
            check_range("batch", batch, self.batch_range)
            check_range("drift_rate", drift_rate, self.drift_range)

    def per_sample(self, batch: ArrayLike, drift_rate: ArrayLike, *, extrapolate: bool = False) -> np.ndarray:
        """p(B, c), gain of the metric per training completion; negative where the step is too long to help.

        Raises
        ------
        ExtrapolationError
            Outside the fitted range, unless extrapolate is true.
        """
        self._check(batch, drift_rate, extrapolate)
        return saturated_per_sample(np.asarray(batch, float), np.asarray(drift_rate, float), **self._model, saturation_batch=self.saturation_batch)

    def samples_to_gain(self, gain: float, batch: ArrayLike, drift_rate: ArrayLike, *, extrapolate: bool = False) -> np.ndarray:
        """Training completions to a gain of the metric, E = gain/p(B, c).

        Raises
        ------
        NeverReachedError
            If p <= 0 somewhere: this setting makes no progress at any number of samples.
        ExtrapolationError
            Outside the fitted range, unless extrapolate is true.
        """
        rate = self.per_sample(batch, drift_rate, extrapolate=extrapolate)
        if np.any(rate <= 0):
            raise NeverReachedError("progress per sample is not positive at this batch and drift rate; lower the learning rate or the batch")
        return gain / rate

    def critical_batch(self, drift_rate: float, loss_fraction: float = 0.2, *, extrapolate: bool = False) -> float:
        """B_crit(f; c), completions per update; infinite if h1 <= 0 and h0 alone loses less.

        Raises
        ------
        NeverReachedError
            If it is not positive: the learning rate is too large for this loss fraction at any batch.
        ExtrapolationError
            If c, or the finite answer, is outside the fitted range, unless extrapolate is true.
        """
        return self._limit(critical_batch, drift_rate, loss_fraction, extrapolate)

    def relative_critical_batch(self, drift_rate: float, loss_fraction: float = 1 / 6, *, extrapolate: bool = False) -> float:
        """B_rel(f; c), completions per update; infinite if h1 <= 0. f = 1/6 costs 20% more samples. Raises as critical_batch."""
        return self._limit(relative_critical_batch, drift_rate, loss_fraction, extrapolate)

    def _limit(self, formula: Any, drift_rate: float, loss_fraction: float, extrapolate: bool) -> float:
        if not extrapolate:
            check_range("drift_rate", drift_rate, self.drift_range)
        if formula(loss_fraction, drift_rate, a=self.a, h0=self.h0, h1=1.0) <= 0:  # h0 alone loses more
            raise NeverReachedError(f"at drift rate {drift_rate:.3g} every batch loses more than {loss_fraction:.0%} of the drift: lower the learning rate")
        batch = self._solve(formula, drift_rate, loss_fraction)
        if math.isinf(batch):
            return batch
        if not extrapolate:
            check_range("critical batch", batch, self.batch_range)
        return batch

    def _solve(self, formula: Any, drift_rate: float, loss_fraction: float) -> float:
        """The batch that loses this fraction; by root finding where the step saturates, as no closed form holds there."""
        if math.isinf(self.saturation_batch):
            return float(formula(loss_fraction, drift_rate, **self._model)) if self.h1 > 0 else math.inf
        from scipy.optimize import brentq

        full = drift_rate * self.a if formula is critical_batch else float(self.per_sample(0.0, drift_rate, extrapolate=True))

        def short(log_batch: float) -> float:
            return float(self.per_sample(math.exp(log_batch), drift_rate, extrapolate=True)) - (1 - loss_fraction) * full

        low, high = math.log(1e-6 * self.saturation_batch), math.log(1e6 * self.saturation_batch)
        return math.inf if short(high) > 0 else math.exp(brentq(short, low, high))

    def best_drift_rate(self, batch: float, *, extrapolate: bool = False) -> float:
        """c*(B) = a phi/(h0 + B h1 phi^2), the drift rate of most progress per sample at a batch; phi = 1 without saturation.

        Raises
        ------
        NeverReachedError
            If h0 + B h1 <= 0: progress then rises with c without end in this model.
        ExtrapolationError
            If B or the answer is outside the fitted range, unless extrapolate is true.
        """
        phi = float(self._phi(batch))
        if self.h0 + batch * self.h1 * phi**2 <= 0:
            raise NeverReachedError("the fitted curvature is not positive at this batch: the runs show no best learning rate; run larger ones")
        best = float(best_drift_rate(batch, a=self.a * phi, h0=self.h0, h1=self.h1 * phi**2))
        self._check(batch, best, extrapolate)
        return best

    def best_lr(self, batch: float, *, extrapolate: bool = False) -> float:
        """eta*(B) = a sqrt(B)/(h0 + B h1): rises as sqrt(B), peaks at h0/h1, then falls. Raises as best_drift_rate."""
        return self.best_drift_rate(batch, extrapolate=extrapolate) * math.sqrt(batch)
