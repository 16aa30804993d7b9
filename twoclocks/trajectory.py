"""The exact multi-update quadratic: closed-form moments of a whole run, and a vectorised simulator of many runs.

The objective is J(theta) = -theta' H theta / 2 and per-sample gradients are N(-H theta, diag(sigma^2)). One update moves
theta by eta v with v = sign(g), or v = sqrt(B) g/sigma: Adam whose slow second moment has settled on the unclipped noise. In the
noise-dominated regime both have E[v] = K sqrt(B) E[g]/sigma and unit variance, with K = sqrt(2/pi) or 1. With
x_i = c B K lambda_i in eigen-direction i of H/sigma, the mean shrinks by 1 - x_i an update; it is stable for 0 < x_i < 2.

The local model of `twoclocks.progress` is one such update held against a frozen gradient. Over a run the two disagree in
sign: see `relative_samples` and theory/trajectory.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from twoclocks.clipping import thresholds
from twoclocks.errors import NeverReachedError, SettingError

Update = Literal["sign", "normalised", "adam"]
MEAN_STEP = {"sign": math.sqrt(2 / math.pi), "normalised": 1.0}  # K
GRID = 4000  # points on which the first crossing of a target is bracketed
PARITY = 1 + float(special.lambertw(math.exp(-1)).real)  # x at which a batch needs the samples of a vanishing batch, 1.278


def contraction(batch: Any, drift_rate: Any, curvature: Any, gain: Any) -> Any:
    """Share of the mean that one update takes away, x = c B K lambda. Stable for 0 < x < 2. Plain arithmetic."""
    return drift_rate * batch * gain * curvature


def mean_after(updates: Any, x: Any, start: Any) -> Any:
    """Mean of a coordinate after k updates, (1 - x)^k theta_0. Plain arithmetic."""
    return (1 - x) ** updates * start


def covariance_after(updates: Any, x: Any, y: Any, start: Any, noise: Any) -> Any:
    """Covariance of two coordinates after k updates with contractions x, y and noise covariance q an update.

    rho^k C_0 + q (1 - rho^k)/(1 - rho), rho = (1 - x)(1 - y). The variance of one coordinate has y = x. q = eta^2 for the
    unit-variance updates here, and 0 between directions whose noise is independent. Plain arithmetic.
    """
    rho = (1 - x) * (1 - y)
    return rho**updates * start + noise * (1 - rho**updates) / (1 - rho)


def noise_floor(batch: Any, drift_rate: Any, curvature: Any, gain: Any) -> Any:
    """Variance that a coordinate of unit update noise settles at, c/(2 K lambda)/(1 - x/2). Plain arithmetic."""
    return drift_rate / (2 * gain * curvature) / (1 - contraction(batch, drift_rate, curvature, gain) / 2)


def relative_samples(x: ArrayLike) -> np.ndarray:
    """E(B)/E(0) = -x/ln|1 - x|, samples to shrink a mean by a given factor relative to a vanishing batch, at real-valued updates.

    1 - x/2 + ...: fewer than a vanishing batch up to `PARITY` (x = 1.278), least about x = 1, where one update (its B samples) does
    it all and the formula says 0; one step held against a frozen gradient says 1 + x/2.

    Raises
    ------
    SettingError
        Outside 0 < x < 2, where the run does not contract.
    """
    x = np.asarray(x, float)
    if np.any((x <= 0) | (x >= 2)):
        raise SettingError("the run contracts only for 0 < x < 2, x = c B K lambda; lower the learning rate or the batch")
    with np.errstate(divide="ignore"):
        return -x / np.log(np.abs(1 - x))


@dataclass(frozen=True, eq=False)
class Quadratic:
    """A quadratic world.

    Parameters
    ----------
    hessian : (d, d) or (d,) array
        H, symmetric positive semi-definite, or its diagonal; J = -theta' H theta / 2.
    noise : (d,) array
        sigma, standard deviation of one completion's gradient in each coordinate, independent between coordinates.
    start : (d,) array
        theta_0.

    Raises
    ------
    SettingError
        If shapes disagree, H is not symmetric and positive semi-definite, or a noise is not positive.
    """

    hessian: np.ndarray
    noise: np.ndarray
    start: np.ndarray

    def __post_init__(self) -> None:
        d = len(self.start)
        if self.hessian.shape not in ((d, d), (d,)) or self.noise.shape != (d,):
            raise SettingError(f"start has {d} coordinates, hessian is {self.hessian.shape} and noise {self.noise.shape}; they must agree")
        if not np.allclose(self.hessian, self.hessian.T):
            raise SettingError("hessian is not symmetric")
        curvature = self.hessian if self.hessian.ndim == 1 else np.linalg.eigvalsh(self.hessian)
        if curvature.min() < -1e-9 * np.abs(curvature).max():
            raise SettingError(f"hessian has the negative curvature {curvature.min():.3g}: the quadratic has no minimum")
        if np.any(self.noise <= 0):
            raise SettingError("every coordinate needs positive gradient noise: the model is noise-dominated")

    def loss(self, theta: np.ndarray) -> np.ndarray:
        """-J = theta' H theta / 2 over the last axis."""
        return (self.slope(theta) * theta).sum(-1) / 2

    def slope(self, theta: np.ndarray) -> np.ndarray:
        """H theta over the last axis."""
        return theta * self.hessian if self.hessian.ndim == 1 else theta @ self.hessian

    def modes(self) -> tuple[np.ndarray, np.ndarray]:
        """(lambda, R): eigenvalues of diag(sigma)^-1/2 H diag(sigma)^-1/2 and R with R theta = coordinates of its eigen-directions.

        The mean obeys m -> (I - c B K diag(1/sigma) H) m, which these directions make diagonal.
        """
        root = np.sqrt(self.noise)
        hessian = np.diag(self.hessian) if self.hessian.ndim == 1 else self.hessian
        curvature, vectors = np.linalg.eigh(hessian / np.outer(root, root))
        return curvature, vectors.T * root

    def moments(self, samples: ArrayLike, batch: float, drift_rate: float, update: Update = "normalised") -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of theta after whole updates, from a start without spread.

        Parameters
        ----------
        samples : (n,) array
            Training completions; k = samples/B updates.
        batch, drift_rate : float
            B and c = eta/sqrt(B).
        update : {"normalised", "sign"}
            Exact for "normalised". For "sign" to leading order in sqrt(B) mu/sigma.

        Returns
        -------
        mean : (n, d) array
        covariance : (n, d, d) array

        Raises
        ------
        SettingError
            If update is neither, or k is a fraction where a direction oversteps (x > 1).
        """
        if update not in MEAN_STEP:
            raise SettingError(f"update={update!r}: closed forms exist for normalised and sign updates; simulate the others")
        k = np.asarray(samples, float)[:, None] / batch
        curvature, into = self.modes()
        back = np.linalg.inv(into)
        x = contraction(batch, drift_rate, curvature, MEAN_STEP[update])
        if x.max() > 1 and np.any(k % 1):
            raise SettingError(f"c B K lambda = {x.max():.3g} > 1 oversteps: moments exist at whole updates, multiples of the batch, only")
        mean = mean_after(k, x, into @ self.start) @ back.T
        noise = drift_rate**2 * batch * into @ into.T  # eta^2 I in the eigen-directions
        with np.errstate(invalid="ignore"):
            covariance = covariance_after(k[..., None], x[:, None], x[None, :], 0.0, noise)
        flat = np.abs(x[:, None] + x[None, :]) < 1e-12  # no curvature, no contraction: a plain random walk
        covariance = np.where(flat, k[..., None] * noise, covariance)
        return mean, back @ covariance @ back.T

    def expected_loss(self, samples: ArrayLike, batch: float, drift_rate: float, update: Update = "normalised") -> np.ndarray:
        """E[-J] after n completions, (tr H Cov + m' H m)/2, shape (n,)."""
        mean, covariance = self.moments(np.atleast_1d(samples), batch, drift_rate, update)
        return self.loss(mean) + self.slope(covariance).trace(axis1=1, axis2=2) / 2

    def samples_to_loss(self, target: float, batch: float, drift_rate: float, update: Update = "normalised") -> float:
        """Training completions (k B with real-valued k) until the expected loss first falls to a target.

        Where every direction starts above its noise floor each falls on its own, so the loss is monotone and this is the
        only such time (theory/trajectory.py).

        Raises
        ------
        NeverReachedError
            If a direction does not contract, or the expected loss stays above the target at this setting.
        SettingError
            If the target is not below the start, or an update oversteps (x >= 1), so that the loss is no smooth function of k.
        """
        if update not in MEAN_STEP:
            raise SettingError(f"update={update!r}: closed forms exist for normalised and sign updates; simulate the others")
        curvature, _ = self.modes()
        if curvature.max() <= 0:
            raise NeverReachedError("the quadratic is flat: nothing contracts")
        x = contraction(batch, drift_rate, curvature[curvature > 1e-12 * curvature.max()], MEAN_STEP[update])
        if x.max() >= 2:
            raise NeverReachedError(f"c B K lambda = {x.max():.3g} >= 2: the run diverges; lower the learning rate or the batch")
        if x.max() >= 1:
            raise SettingError(f"c B K lambda = {x.max():.3g} >= 1: updates overstep and the loss is no smooth function of samples; simulate instead")
        start = float(self.loss(self.start))
        if not target < start:
            raise SettingError(f"target={target:.4g} is not below the loss at the start, {start:.4g}")
        horizon = batch * 40 / x.min()  # by then every direction has fallen by e^-40
        grid = np.concatenate([[0.0], np.geomspace(1e-3 * batch, horizon, GRID)])
        over = self.expected_loss(grid, batch, drift_rate, update) - target
        if over.min() > 0:
            raise NeverReachedError(f"target={target:.4g} is below the least expected loss of this setting, {over.min() + target:.4g}; lower the learning rate")
        first = int(np.argmax(over <= 0))
        gap = lambda n: self.expected_loss(n, batch, drift_rate, update)[0] - target  # noqa: E731
        return float(optimize.brentq(gap, grid[first - 1], grid[first], xtol=1e-12 * horizon))


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Simulated runs.

    Attributes
    ----------
    samples : (settings, times) array
        Training completions at which theta was recorded: the last whole update at or before each asked-for count.
    theta : (settings, times, seeds, d) array
    share : (settings,) array
        Share of completions whose gradient survived the clip, over all updates and seeds; NaN without an update.
    """

    samples: np.ndarray
    theta: np.ndarray
    share: np.ndarray


def simulate(
    world: Quadratic,
    batch: ArrayLike,
    drift_rate: ArrayLike,
    *,
    at: ArrayLike,
    seeds: int,
    rng: np.random.Generator,
    update: Update = "normalised",
    updates_per_rollout: ArrayLike = 1,
    clip: tuple[float, float] | None = None,
    betas: tuple[float, float] = (0.9, 0.999),
) -> Trajectories:
    """Run settings x seeds in one array program.

    Parameters
    ----------
    batch, drift_rate, updates_per_rollout : array, broadcast to (settings,)
        B, c and S of each setting.
    at : (times,) array
        Training completions at which to record theta; the run ends at the last.
    seeds : int
        Independent runs of each setting.
    rng : numpy.random.Generator
    update : {"normalised", "sign", "adam"}
        "adam" is bias-corrected Adam with eps = 0 on the clipped batch gradient.
    clip : (eps_low, eps_high) or None
        Ratio clip; completions have either sign of advantage with probability 1/2. The log-ratio
        is that of a policy with unit advantages: gradient . (theta - anchor), with the anchor frozen for S updates.

    Notes
    -----
    A batch is not drawn completion by completion. Given theta, the clipped batch gradient is a mean of B independent
    vectors g 1[g . delta <= e]; its mean and covariance are known exactly (theory/clipping.py) and it is drawn from the
    normal distribution with them. Batches below about 16 are outside that approximation.

    Raises
    ------
    SettingError
        If shapes do not broadcast to one axis of settings, a value is not positive, S is no whole number, or `at` is empty
        or negative.
    """
    bounds, at = thresholds(clip), np.atleast_1d(np.asarray(at, float))
    try:
        b, c, s = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, float)) for v in (batch, drift_rate, updates_per_rollout)))
    except ValueError as error:
        raise SettingError(f"batch, drift_rate and updates_per_rollout must broadcast to one axis of settings: {error}") from error
    if b.ndim != 1 or min(b.min(), c.min(), s.min()) <= 0 or seeds < 1 or np.any(s % 1):
        raise SettingError("batch, drift_rate, updates_per_rollout (whole) and seeds must be positive, settings along one axis")
    if at.ndim != 1 or not at.size or at.min() < 0:
        raise SettingError("at: give at least one sample count, none negative, along one axis")
    order = np.argsort(b, kind="stable")  # small batches take most updates: the settings still running are a leading slice
    b, c, s = (v[order][:, None, None] for v in (b, c, s))
    times = np.floor(at[None, :] / b[:, :, 0] + 1e-9)  # updates done at each record
    last = times.max(axis=1)
    running = np.searchsorted(-last, -np.arange(last.max() + 1))  # settings with an update left after k
    records: dict[float, list[tuple[int, int]]] = {}
    for setting, which in np.ndindex(times.shape):
        records.setdefault(times[setting, which], []).append((setting, which))
    d = len(world.start)
    theta = np.tile(world.start, (len(b), seeds, 1))
    anchor, out, kept = theta.copy(), np.empty((len(b), times.shape[1], seeds, d)), np.zeros(len(b))
    clipped = min(bounds) < math.inf
    step = _Step(update, theta.shape, betas)
    lr, root = c * np.sqrt(b), world.noise / np.sqrt(b)
    for k, n in enumerate(running):
        for setting, which in records.get(k, ()):
            out[setting, which] = theta[setting]
        here = theta[:n]
        mean = -world.slope(here)
        if clipped:
            fresh = np.flatnonzero(k % s[:n, 0, 0] == 0)
            anchor[fresh] = here[fresh]
            gradient, share = _clipped(mean, here - anchor[:n], world.noise, b[:n], bounds, rng)
            kept[:n] += share.mean(axis=(1, 2))
        else:
            gradient = rng.standard_normal(here.shape)
            gradient *= root[:n]
            gradient += mean
        gradient = step(gradient, root[:n], k)
        gradient *= lr[:n]
        here += gradient
    back = np.argsort(order)
    share = np.divide(kept if clipped else last, last, out=np.full(len(b), np.nan), where=last > 0)
    return Trajectories((times * b[:, :, 0])[back], out[back], share[back])


class _Step:
    """Update direction v from a batch gradient g; keeps Adam's moments."""

    def __init__(self, update: Update, shape: tuple[int, ...], betas: tuple[float, float]) -> None:
        self.update, self.betas = update, betas
        if update == "adam":
            self.first, self.second = np.zeros(shape), np.zeros(shape)
        elif update not in MEAN_STEP:
            raise SettingError(f"update={update!r}: must be sign, normalised or adam")

    def __call__(self, g: np.ndarray, root: np.ndarray, k: int) -> np.ndarray:
        if self.update == "sign":
            return np.sign(g)
        if self.update == "normalised":
            return g / root
        n, (beta1, beta2) = len(g), self.betas
        first, second = self.first[:n], self.second[:n]
        first += (1 - beta1) * (g - first)
        second += (1 - beta2) * (g * g - second)
        scale = second / (1 - beta2 ** (k + 1))
        return np.divide(first / (1 - beta1 ** (k + 1)), np.sqrt(scale), out=np.zeros_like(g), where=scale > 0)


def _clipped(
    mean: np.ndarray, delta: np.ndarray, noise: np.ndarray, batch: np.ndarray, bounds: tuple[float, float], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """(batch mean of g 1[g . delta <= e], expected share of completions that keep their gradient)."""
    spread = noise * delta
    length = np.sqrt((spread**2).sum(-1, keepdims=True))
    moved = length > 0
    u = np.divide(spread, length, out=np.zeros_like(spread), where=moved)
    along = (mean * delta).sum(-1, keepdims=True)
    share, pull, second = np.zeros_like(length), np.zeros_like(length), np.zeros_like(length)
    for e in bounds:  # half of the completions each
        z = np.divide(e - along, length, out=np.full_like(length, np.inf), where=moved)
        survive, density = special.ndtr(z), np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        share += survive / 2
        pull += density / 2
        second += (survive - np.where(density > 0, z, 0) * density) / 2
    # With xi the standard noise along u: F = share kept, T = mean of xi over the kept, both over B completions
    var_f, var_t, cov = share * (1 - share), second - pull**2, -pull * (1 - share)
    xi = rng.standard_normal(mean.shape)
    parallel = (xi * u).sum(-1, keepdims=True)
    other = rng.standard_normal(length.shape)
    t = np.sqrt(np.maximum(var_t, 0)) * parallel
    slope = np.divide(cov, var_t, out=np.zeros_like(cov), where=var_t > 0)
    f = slope * t + np.sqrt(np.maximum(var_f - slope * cov, 0)) * other
    root = np.sqrt(batch)
    across = np.sqrt(share) * (xi - parallel * u)
    return (share + f / root) * mean + noise * ((t / root - pull) * u + across / root), share
