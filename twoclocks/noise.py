"""Gradient noise: how much of a batch gradient is signal, and which part of the noise is prompts, which rollouts.

A batch of P prompts with K completions each has gradient g = mean of g_bk. With G = E[g], prompts add variance s_inter
and completions of one prompt s_intra, so that tr Cov(g) = s_inter/P + s_intra/(P K) + (K - 1)/(K P) kappa E|G_b|^2: a group
baseline makes two completions of a group covary by kappa |G_b|^2, with E|G_b|^2 = |G|^2 + s_inter. Derived in
theory/gradient_noise.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from twoclocks.errors import FitError, NeverReachedError

Baseline = Literal["none", "leave-one-out", "group"]


def two_batch_signal(small_square: Any, big_square: Any, small: Any, big: Any) -> Any:
    """Unbiased |G|^2 from squared gradient norms at two batch sizes, (B_2 |g_2|^2 - B_1 |g_1|^2)/(B_2 - B_1). Plain arithmetic.

    May be negative. Average it and `two_batch_noise` over updates before dividing: the ratio of one update is biased.
    (McCandlish et al., arXiv 1812.06162, appendix A.1.)
    """
    return (big * big_square - small * small_square) / (big - small)


def two_batch_noise(small_square: Any, big_square: Any, small: Any, big: Any) -> Any:
    """Unbiased tr Sigma of one completion, (|g_1|^2 - |g_2|^2)/(1/B_1 - 1/B_2). Plain arithmetic."""
    return (small_square - big_square) / (1 / small - 1 / big)


def pair_covariance(group: Any, baseline: Baseline) -> Any:
    """Covariance of two completions' gradients within a group, in units of the prompt's squared gradient |G_b|^2.

    1/(K - 1)^2 with a leave-one-out baseline, because each completion's reward enters the other's; the group mean is
    (K - 1)/K times leave-one-out, so it has the same. Plain arithmetic.
    """
    return 0 if baseline == "none" else 1 / (group - 1) ** 2


def split_parts(squares: Any, prompt_squares: Any, total_square: Any, prompts: Any, group: Any, kappa: Any, shrink: Any) -> tuple[Any, Any, Any]:
    """Unbiased (|G|^2, s_inter, s_intra) from three sums of squares. Plain arithmetic.

    squares = sum |g_bk|^2, prompt_squares = sum_b |sum_k g_bk|^2, total_square = |sum g_bk|^2; kappa as `pair_covariance`,
    shrink = the baseline's factor on gradients (1, or (K - 1)/K for the group mean).
    """
    count = prompts * group
    own = squares / count / shrink**2
    pair = (prompt_squares - squares) / (count * (group - 1)) / shrink**2  # mean product of two completions of a prompt
    signal = (total_square - prompt_squares) / (prompts * (prompts - 1) * group**2) / shrink**2  # ... of two prompts
    within = pair / (1 + kappa)  # E |G_b|^2
    return signal, within - signal, own - within


def noise_batch(signal: Any, inter: Any, intra: Any, group: Any, kappa: Any) -> Any:
    """Completions at which noise equals signal, P K tr Cov(g)/|G|^2 = (K s_inter + s_intra + (K - 1) kappa (|G|^2 + s_inter))/|G|^2.

    Plain arithmetic.
    """
    return (group * inter + intra + (group - 1) * kappa * (signal + inter)) / signal


def reuse_inflation(age: ArrayLike, drift_rate: float, *, spread: float) -> np.ndarray:
    """Growth delta of a completion's squared gradient by importance weights j samples after the rollout, exp(c^2 j g^2) - 1.

    E[rho^2] - 1 for a log-ratio N(-v/2, v), v = c^2 j g^2, that is independent of the gradient; g as in `twoclocks.clipping`.
    """
    return np.expm1(drift_rate**2 * np.asarray(age, float) * spread**2)


def mean_inflation(batch: float, drift_rate: float, *, updates_per_rollout: int, spread: float) -> float:
    """`reuse_inflation` averaged over the S updates of a rollout, at ages 0, B, ..., (S - 1) B."""
    return float(reuse_inflation(batch * np.arange(updates_per_rollout), drift_rate, spread=spread).mean())


def reused_intra(intra: Any, signal: Any, inter: Any, inflation: Any) -> Any:
    """Intra-prompt noise of reused completions, (1 + delta) s_intra + delta E|G_b|^2; prompts' own noise stays. Plain arithmetic."""
    return (1 + inflation) * intra + inflation * (signal + inter)


def inflated_model(inflation: Any, *, a: Any, h0: Any, h1: Any) -> dict[str, Any]:
    """The local model's coefficients when all noise variance grows by 1 + delta: a/sqrt(1 + delta), h0, h1/(1 + delta).

    With `mean_inflation` as delta (where intra-prompt noise dominates), `progress.critical_batch` of these is B_crit at S
    updates per rollout. Plain arithmetic.
    """
    return {"a": a * (1 + inflation) ** -0.5, "h0": h0, "h1": h1 / (1 + inflation)}


@dataclass(frozen=True)
class NoiseParts:
    """Signal and noise of a policy gradient, in squared gradient units.

    Attributes
    ----------
    signal : float
        |G|^2; unbiased, so it may come out negative.
    inter, intra : float
        s_inter, variance between prompts; s_intra, between completions of a prompt.
    prompts, group : int
        P and K behind the estimate.
    kappa : float
        Pair covariance in units of |G_b|^2.
    """

    signal: float
    inter: float
    intra: float
    prompts: int
    group: int
    kappa: float

    @property
    def batch(self) -> float:
        """Gradient noise scale in completions at this group size.

        Raises
        ------
        NeverReachedError
            If the signal is not positive: the batch is too small to see it.
        """
        if self.signal <= 0:
            raise NeverReachedError(f"|G|^2 came out as {self.signal:.3g} from {self.prompts} prompts: use more prompts, or average parts over updates first")
        return float(noise_batch(self.signal, self.inter, self.intra, self.group, self.kappa))


def split_noise(gradients: ArrayLike, baseline: Baseline = "group") -> NoiseParts:
    """Split a batch gradient's noise by one-way analysis of variance, with the baseline's pair covariance removed.

    Parameters
    ----------
    gradients : (P, K, d) array
        Gradient of each completion's term, advantages included, in d coordinates (of a subspace: its parts alone).
    baseline : {"group", "leave-one-out", "none"}
        How advantages were centred. Division by the group's standard deviation (GRPO) is not modelled: pass gradients
        of plain centred advantages.

    Raises
    ------
    FitError
        If there are fewer than two prompts or completions a prompt, a value is not finite, or the baseline is unknown.
    """
    if baseline not in ("none", "leave-one-out", "group"):
        raise FitError(f"baseline={baseline!r}: must be none, leave-one-out or group")
    g = np.asarray(gradients, float)
    if g.ndim != 3 or min(g.shape[:2]) < 2 or not np.isfinite(g).all():
        raise FitError(f"gradients of shape {g.shape}: need finite values over (prompts, group, coordinates) with at least two prompts and two completions")
    prompts, group, _ = g.shape
    sums = g.sum(axis=1)
    kappa = float(pair_covariance(group, baseline))
    shrink = (group - 1) / group if baseline == "group" else 1.0
    signal, inter, intra = split_parts((g**2).sum(), (sums**2).sum(), (sums.sum(axis=0) ** 2).sum(), prompts, group, kappa, shrink)
    return NoiseParts(float(signal), float(inter), float(intra), prompts, group, kappa)
