"""One run and no sweep: how far its policy has drifted, how fast, when it will cover a given distance, and how noisy its gradient is.

A cumulative meter M(n) is followed over the last half of the run: its rate v and diffusion w per completion come from
means over ten stretches, and the completions left to a threshold D are the first passage of a drifted random walk over
D - M (inverse Gaussian, theory/first_passage.py), with v drawn from its t distribution. The gradient-noise scale is
B tr/(power - tr), a ratio of averages: `grad_noise` is the trace of the covariance of the update's mean gradient,
`grad_power` its squared norm (theory/noise.py).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from twoclocks.errors import FitError
from twoclocks.records import Runs

# Cumulative meters, best first; the second column is summed over rollouts where the first is not logged
METERS = (("drift_cum_k3", "drift_k3"), ("drift_cum_k1", "drift_k1"), ("drift_cum_abs", "drift_abs"), ("distance", ""), ("kl_ref", ""))
STRETCHES = 10
MIN_ROWS = 6
DRAWS = 2000
UNKNOWN = (
    "how many samples progress takes at another batch or learning rate: needs runs at two of each",
    "samples to collapse at another batch or learning rate: needs runs that collapse, at two of each",
    "at which drift this run collapses: a threshold is measured on runs that did; that drift causes collapse is a hypothesis (TC3)",
)


@dataclass(frozen=True)
class Forecast:
    """Where one run's drift stands and where it goes at its present rate.

    Attributes
    ----------
    run_id : str
    samples : float
        Training completions so far.
    meter : str
        The cumulative meter that is followed; nats, or parameter distance.
    value : float
        Its value now.
    rate : tuple of float
        (estimate, low, high) of its growth per completion over the last half of the run.
    threshold : float or None
        D, if one was given.
    samples_left : tuple of float or None
        (median, low, high) completions until D.
    noise_batch : tuple of float or None
        (estimate, low, high) of the gradient-noise scale in completions: past it larger batches save few updates. NaN
        where signal is not told from noise.
    unknown : list of str
        What one run cannot say.
    """

    run_id: str
    samples: float
    meter: str
    value: float
    rate: tuple[float, float, float]
    threshold: float | None
    samples_left: tuple[float, float, float] | None
    noise_batch: tuple[float, float, float] | None
    unknown: list[str]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; NaN as null."""
        return {k: [_finite(x) for x in v] if isinstance(v, tuple | list) else _finite(v) for k, v in asdict(self).items()}

    def __str__(self) -> str:
        lines = [
            f"run {self.run_id}: {self.samples:,.0f} completions, {self.meter} {self.value:.3g}",
            f"rate {self.rate[0]:.3g} [{self.rate[1]:.3g}, {self.rate[2]:.3g}] per completion over the last half",
        ]
        if self.samples_left is not None:
            middle, low, high = self.samples_left
            lines.append(f"completions left to {self.threshold:g}: {middle:,.0f} [{low:,.0f}, {high:,.0f}]")
        if self.noise_batch is not None:
            middle, low, high = self.noise_batch
            said = f"{middle:,.0f} [{low:,.0f}, {high:,.0f}] completions" if middle == middle else "signal not told from noise"
            lines.append(f"local critical batch from gradient noise: {said}")
        return "\n".join([*lines, "unknown from one run:", *(f"- {line}" for line in self.unknown)])


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def forecast(runs: Runs, run_id: str | None = None, *, threshold: float | None = None, level: float = 0.95, rng: np.random.Generator | None = None) -> Forecast:
    """Forecast one run's drift from its own log.

    Parameters
    ----------
    run_id : str, optional
        Default the only run.
    threshold : float, optional
        D in the units of the meter; without it no samples are forecast, because no run has said at which drift it fails.

    Raises
    ------
    FitError
        If there are several runs and none is named, or no drift meter was logged.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    names = list(runs.runs["run_id"])
    if run_id is None and len(names) != 1:
        raise FitError(f"{len(names)} runs: name one with run_id=, or fit them all")
    name = names[0] if run_id is None else run_id
    rows = runs.of(name)
    meter, samples, value = _meter(rows, name)
    late = samples >= samples[-1] / 2
    if late.sum() < MIN_ROWS:
        raise FitError(f"run {name}: {late.sum()} logged values of {meter} in its last half; {MIN_ROWS} are needed: log more often")
    rate, low, high, diffusion, freedom = _rate(samples[late], value[late], level)
    left = None
    if threshold is not None:
        left = _passage(rate, (high - rate), freedom, diffusion, threshold - value[-1], level, rng)
    unknown = [*UNKNOWN] if threshold is None else [*UNKNOWN[:2], "whether the threshold given is this run's: it was not measured on it"]
    noise = _noise_batch(rows, level, rng)
    if noise is None:
        unknown.append("a local critical batch: no gradient noise is logged; map columns to grad_noise and grad_power")
    return Forecast(name, float(samples[-1]), meter, float(value[-1]), (rate, low, high), threshold, left, noise, unknown)


def _meter(rows: Any, name: str) -> tuple[str, np.ndarray, np.ndarray]:
    """(name, samples, cumulative value) of the best meter that was logged."""
    for cumulative, each in METERS:
        if cumulative in rows and rows[cumulative].notna().sum() >= MIN_ROWS:
            seen = rows[rows[cumulative].notna()]
            return cumulative, seen["samples"].to_numpy(float), seen[cumulative].to_numpy(float)
        if each and each in rows and rows[each].notna().sum() >= MIN_ROWS:
            seen = rows[rows[each].notna()]
            rollouts = np.diff(seen["rollout"].to_numpy(float), prepend=0.0)
            return f"{each} summed over rollouts", seen["samples"].to_numpy(float), np.cumsum(seen[each].to_numpy(float) * rollouts)
    raise FitError(f"run {name}: no drift meter is logged ({', '.join(c for c, _ in METERS)}, or a KL to the rollout policy); log one, or fit a sweep")


def _rate(samples: np.ndarray, value: np.ndarray, level: float) -> tuple[float, float, float, float, int]:
    """(rate, low, high, diffusion, degrees of freedom) of a cumulative meter, from its growth over equal stretches."""
    from scipy import stats

    stretches = min(STRETCHES, len(samples) - 1)
    edges = np.linspace(samples[0], samples[-1], stretches + 1)
    growth, length = np.diff(np.interp(edges, samples, value)), edges[1] - edges[0]
    rate, freedom = float(growth.mean() / length), stretches - 1
    spread = float(growth.std(ddof=1))
    half = float(stats.t.ppf((1 + level) / 2, freedom)) * spread / math.sqrt(stretches) / length
    return rate, rate - half, rate + half, spread**2 / length, freedom


def _passage(rate: float, half: float, freedom: int, diffusion: float, distance: float, level: float, rng: np.random.Generator) -> tuple[float, float, float]:
    """(median, low, high) completions until the meter has covered a distance; infinite where it does not grow."""
    from scipy import stats

    if distance <= 0:
        return 0.0, 0.0, 0.0
    scale = half / float(stats.t.ppf((1 + level) / 2, freedom))
    rates = rate + scale * rng.standard_t(freedom, DRAWS)
    tail = (1 - level) / 2
    mean = distance / np.where(rates > 0, rates, 1.0)
    # numpy's Wald distribution is the inverse Gaussian of `twoclocks.failure.first_passage`; a drift that is not forward never has to pass
    passed = rng.wald(mean, distance**2 / diffusion) if diffusion > 0 else mean
    drawn = np.where(rates > 0, passed, math.inf)
    low, middle, high = np.quantile(drawn, [tail, 0.5, 1 - tail], method="nearest")
    return float(middle), float(low), float(high)


def _noise_batch(rows: Any, level: float, rng: np.random.Generator) -> tuple[float, float, float] | None:
    """(estimate, low, high) of B tr/(power - tr) over the last half of the rows that measured both; None if none did."""
    if "grad_noise" not in rows or "grad_power" not in rows:
        return None
    seen = rows[rows["grad_noise"].notna() & rows["grad_power"].notna()]
    seen = seen[seen["samples"] >= seen["samples"].max() / 2]
    if len(seen) < MIN_ROWS:
        return None
    noise, power, batch = (seen[c].to_numpy(float) for c in ("grad_noise", "grad_power", "batch"))

    def scale(which: np.ndarray) -> np.ndarray:
        total, trace = power[which].mean(-1), noise[which].mean(-1)
        return np.where(total > trace, batch.mean() * trace / np.where(total > trace, total - trace, 1.0), math.inf)

    drawn = scale(rng.integers(0, len(seen), (DRAWS, len(seen))))
    tail = (1 - level) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], method="lower")
    found = float(scale(np.arange(len(seen))))
    return (math.nan, math.nan, math.nan) if not math.isfinite(found) else (found, float(low), float(high))
