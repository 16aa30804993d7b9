"""The failure clock: how many samples a run has before it collapses, and what counts as collapse.

E*(B, c) = E0 (B/B0)^b_B (c/c0)^b_c, with c = eta/sqrt(B). The rival laws along the square-root rule differ in the
exponents: accumulated drift (0, -1) is the paper's hypothesis, accumulated diffusion (0, -2), steps of constant
size (1/2, -1) is what "updates times learning rate" (arXiv 2607.01083) reads as. Derivations: theory/.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from twoclocks.errors import FitError, RecordsError, check_range

# (b_B, b_c) of each law
LAWS = {"drift": (0.0, -1.0), "diffusion": (0.0, -2.0), "constant step": (0.5, -1.0)}


def samples_to_failure(batch: Any, drift_rate: Any, *, samples: Any, batch0: Any, drift_rate0: Any, b_batch: Any, b_drift: Any) -> Any:
    """E*(B, c) = E0 (B/B0)^b_B (c/c0)^b_c, in training completions. Plain arithmetic: SymPy symbols pass through."""
    return samples * (batch / batch0) ** b_batch * (drift_rate / drift_rate0) ** b_drift


def mean_passage(drift: Any, distance: Any) -> Any:
    """Mean samples until displacement with drift per sample first covers a distance, D/drift. Plain arithmetic."""
    return distance / drift


def peclet(drift: Any, diffusion: Any, distance: Any) -> Any:
    """Drift against diffusion on the way to the threshold, Pe = D drift/diffusion. Plain arithmetic.

    Pe^-1/2 is the coefficient of variation of the samples to failure.
    """
    return distance * drift / diffusion


def first_passage(drift: float, diffusion: float, distance: float) -> Any:
    """Distribution of the samples to failure when a drifted random walk must cover a distance (inverse Gaussian).

    With drift rate c, drift = c r and diffusion = c^2 w: the mean is D/(c r) always, the median goes from exponent -1 in c
    (Pe large: L1) to -2 (Pe small: L2). Derived in theory/first_passage.py.

    Parameters
    ----------
    drift : float
        Mean displacement per completion; 0 leaves pure diffusion (Levy distribution, infinite mean).
    diffusion : float
        Variance of displacement per completion.
    distance : float
        D, displacement at which the run collapses.

    Returns
    -------
    frozen scipy distribution of training completions, with pdf, cdf, ppf, rvs, mean, std.

    Raises
    ------
    FitError
        If drift is negative, or diffusion or distance not positive.
    """
    if drift < 0 or not (diffusion > 0 and distance > 0):
        raise FitError(f"drift={drift}, diffusion={diffusion}, distance={distance}: drift must not be negative, the others must be positive")
    from scipy import stats

    scale = distance**2 / diffusion
    return stats.levy(scale=scale) if drift == 0 else stats.invgauss(1 / peclet(drift, diffusion, distance), scale=scale)


@dataclass(frozen=True)
class FailureClock:
    """A fitted exponent law for the median samples to collapse.

    Parameters
    ----------
    samples : float
        E0, median training completions to collapse at (batch0, drift_rate0).
    batch0 : float
        B0, completions per update.
    drift_rate0 : float
        c0 = eta0/sqrt(B0).
    b_batch, b_drift : float
        Exponents in B at constant c, and in c.
    log_sd : float
        Standard deviation of log E* between runs of one setting.
    longest : float
        Longest run behind the fit, training completions: a longer answer is an extrapolation in time.
    batch_range, drift_range : (float, float)
        Fitted range; questions outside it raise unless `extrapolate=True`.
    """

    samples: float
    batch0: float
    drift_rate0: float
    b_batch: float
    b_drift: float
    log_sd: float = 0.0
    longest: float = math.inf
    batch_range: tuple[float, float] = (0.0, math.inf)
    drift_range: tuple[float, float] = (0.0, math.inf)

    def samples_to_failure(self, batch: ArrayLike, drift_rate: ArrayLike, *, extrapolate: bool = False) -> np.ndarray:
        """Median training completions before collapse at (B, c).

        Raises
        ------
        ExtrapolationError
            Outside the fitted range, unless extrapolate is true.
        """
        if not extrapolate:
            check_range("batch", batch, self.batch_range)
            check_range("drift_rate", drift_rate, self.drift_range)
        b, c = np.asarray(batch, float), np.asarray(drift_rate, float)
        law = {name: getattr(self, name) for name in ("samples", "batch0", "drift_rate0", "b_batch", "b_drift")}
        return samples_to_failure(b, c, **law)

    def hazard(self, batch: ArrayLike, drift_rate: ArrayLike, *, extrapolate: bool = False) -> np.ndarray:
        """Damage per training completion, r = 1/E*: under linear damage a run collapses when the sum of r dn reaches 1."""
        return 1 / self.samples_to_failure(batch, drift_rate, extrapolate=extrapolate)

    def collapse_probability(self, samples: ArrayLike, batch: ArrayLike, drift_rate: ArrayLike, *, extrapolate: bool = False) -> np.ndarray:
        """Chance that a run at (B, c) has collapsed by a sample count: log E* is normal about the fitted median with sd log_sd.

        Raises
        ------
        ExtrapolationError
            Outside the fitted range, unless extrapolate is true.
        """
        from scipy import special

        median = self.samples_to_failure(batch, drift_rate, extrapolate=extrapolate)
        with np.errstate(divide="ignore"):
            z = np.log(np.asarray(samples, float)) - np.log(median)
        return special.ndtr(z / self.log_sd) if self.log_sd > 0 else (z >= 0).astype(float)


@dataclass(frozen=True)
class Collapse:
    """When a run collapsed, as far as its evaluations tell; times in training completions.

    Attributes
    ----------
    kind : {"interval", "left", "right"}
        "interval": collapsed in (lower, upper]. "left": within the early limit `upper`, too early to say when (lower is
        0). "right": no confirmed collapse up to `lower`, the last evaluation whose drop could still have been confirmed
        (upper is infinite).
    """

    kind: Literal["interval", "left", "right"]
    lower: float
    upper: float

    @property
    def confirmed(self) -> bool:
        """Whether the run collapsed."""
        return self.kind != "right"


# The rule's constants: all windows are fractions of the sample count they sit at, so that the
# rule reads the same on a log grid of evaluations whatever the batch.
MIN_MARGIN = 0.05  # 5 points of accuracy
MARGIN_SDS = 4.0
SMOOTH = 0.10  # smoothed curve: median over evaluations within 10% of n, so that one odd evaluation is no collapse
CONFIRM = 0.25  # a drop must last another 25% of its own onset
LEFT_EVALUATIONS = 10  # a collapse within the first evaluations of the finest grid has no resolved time


def evaluation_noise(curves: Sequence[tuple[ArrayLike, ArrayLike]]) -> float:
    """Robust standard deviation of one evaluation about its neighbours' chord, pooled over curves.

    A binomial error would be too small: policies swing by more than the evaluation's sampling noise.

    Parameters
    ----------
    curves : sequence of (samples, values)
        Held-out evaluations of one metric, a curve a run.

    Raises
    ------
    RecordsError
        If no curve has three evaluations.
    """
    residuals = []
    for samples, values in curves:
        n, y = np.asarray(samples, float), np.asarray(values, float)
        if len(y) < 3:
            continue
        weight = (n[1:-1] - n[:-2]) / (n[2:] - n[:-2])
        # Var(y - chord) = sd^2 (1 + w^2 + (1-w)^2) for independent errors
        scale = np.sqrt(1 + weight**2 + (1 - weight) ** 2)
        residuals.append((y[1:-1] - (1 - weight) * y[:-2] - weight * y[2:]) / scale)
    if not residuals:
        raise RecordsError("no run has three evaluations: evaluate at least three times to know the evaluation noise")
    return float(1.4826 * np.median(np.abs(np.concatenate(residuals))))


def margin(noise_sd: float) -> float:
    """Drop below the reference that counts as collapse: max(5 points, 4 sd of an evaluation)."""
    return max(MIN_MARGIN, MARGIN_SDS * noise_sd)


def smoothed(samples: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Median of the evaluations within a factor 1 +- SMOOTH of each sample count."""
    first, last = np.searchsorted(samples, samples * (1 - SMOOTH)), np.searchsorted(samples, samples * (1 + SMOOTH), side="right")
    return np.array([np.median(values[i:j]) for i, j in zip(first, last, strict=True)])


def detect_collapse(samples: ArrayLike, values: ArrayLike, noise_sd: float, early: float | None = None, *, share: float = 0.0) -> Collapse:
    """Find the first lasting drop of a held-out metric below its best so far.

    The smoothed curve must fall below its running maximum by `margin(noise_sd)` and stay below that level over the
    following 25% of samples. Without such a drop the run is right-censored at the last evaluation whose window it lived
    to complete, also where it ends in a drop: censored at the onset of that drop, late collapses would count as
    survivals, and fitted times come out too long.

    Parameters
    ----------
    samples : array, increasing
        Training completions at each evaluation; the first is the start (0).
    values : array
        Held-out metric in [0, 1].
    noise_sd : float
        From `evaluation_noise`.
    early : float, optional
        Training completions up to which a collapse counts as too early to time; default this run's tenth evaluation.
        Runs that are compared need one value, or coarsely evaluated batches would count as early for longer.
    share : float
        Of (best so far - start): a drop must lose at least this much of what was gained, too.

    Raises
    ------
    RecordsError
        If there are fewer than three evaluations or the sample counts do not increase.
    """
    n, y = np.asarray(samples, float), np.asarray(values, float)
    if len(n) < 3 or np.any(np.diff(n) <= 0):
        raise RecordsError(f"collapse detection needs at least three evaluations at increasing samples, got {len(n)}")
    early = early_limit([n]) if early is None else early
    s = smoothed(n, y)
    best = np.maximum.accumulate(s)
    level = best - np.maximum(margin(noise_sd), share * (best - s[0]))
    confirmable = int(np.searchsorted(n * (1 + CONFIRM), n[-1], side="right"))
    for i in range(1, confirmable):
        if s[i] >= level[i - 1]:
            continue
        window = (n >= n[i]) & (n <= n[i] * (1 + CONFIRM))
        if not np.any(s[window] >= level[i - 1]):
            return Collapse("left", 0.0, early) if n[i] <= early else Collapse("interval", n[i - 1], n[i])
    return Collapse("right", n[confirmable - 1], math.inf)


def timeable(samples: ArrayLike, early: float) -> np.ndarray:
    """The looks that can time a collapse: the early limit, then evaluations late enough to count and early enough to be confirmed."""
    n = np.asarray(samples, float)
    return np.concatenate([[early], n[(n > early) & (n * (1 + CONFIRM) <= n[-1])]])


def early_limit(curves: Sequence[ArrayLike]) -> float:
    """Completions up to which a collapse is too early to time: the tenth evaluation of the finest grid among the runs.

    Runs with fewer evaluations do not set it; if there are no others, the latest end does.
    """
    grids = [np.asarray(samples, float) for samples in curves]
    tenth = [float(n[LEFT_EVALUATIONS]) for n in grids if len(n) > LEFT_EVALUATIONS]
    return min(tenth) if tenth else max(float(n[-1]) for n in grids)


def detect_collapses(curves: dict[str, tuple[ArrayLike, ArrayLike]], *, share: float = 0.0) -> tuple[dict[str, Collapse], float]:
    """Collapse of every run of a sweep: evaluation noise pooled over the runs that do not collapse, one early limit for all.

    Parameters
    ----------
    share : float
        As in `detect_collapse`.

    Returns
    -------
    collapses : dict of run id -> Collapse
    noise_sd : float
        The pooled evaluation noise that the final pass used.
    """
    early = early_limit([samples for samples, _ in curves.values()])
    noise = evaluation_noise(list(curves.values()))
    found = {run: detect_collapse(*curve, noise, early, share=share) for run, curve in curves.items()}
    stable = [curves[run] for run, collapse in found.items() if not collapse.confirmed]
    if stable:
        noise = evaluation_noise(stable)
        found = {run: detect_collapse(*curve, noise, early, share=share) for run, curve in curves.items()}
    return found, noise
