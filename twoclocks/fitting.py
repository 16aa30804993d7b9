"""From runs to clocks: one censored fit for samples-to-target, one for samples-to-collapse, both with intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from twoclocks import censored
from twoclocks.errors import FitError, UnidentifiedError
from twoclocks.failure import Collapse, FailureClock, detect_collapses, early_limit, laws_within, timeable
from twoclocks.progress import ProgressClock
from twoclocks.records import Runs
from twoclocks.schedule import full_rate_samples
from twoclocks.schema import CURVE_COLUMNS

# A clock describes runs that differ in batch, learning rate and seed, and in nothing else
SHARED = ("testbed", "model", "task", "group", "updates_per_rollout", "clip_low", "clip_high", "lr_warmup_samples", "max_grad_norm", "dtype")
# Windowed metrics are binned: a tenth of the samples so far, and at least a fiftieth of the run, so that the first bins
# hold enough completions not to reach a target by luck
BIN_RATIO, BIN_FLOOR = 1.1, 50
LEVEL = 0.95
MISFIT = 0.01
MIN_EVENTS = 5  # timed runs behind three parameters; with fewer, the noise fits itself


def rate(drift_rate: float) -> float:
    """A drift rate to six digits: lr/sqrt(B) of one rate differs in its last bit from batch to batch."""
    return float(f"{drift_rate:.6g}")


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
    peak = int(np.argmax(values)) + 1
    rising = isotonic_regression(values[:peak], weights=weights[:peak]).x
    if rising[-1] < target:
        return math.inf
    at = int(np.argmax(rising >= target))
    if at == 0:
        raise FitError(f"target={target:g} is reached at the first value ({rising[0]:g}) already; choose a higher one")
    share = (target - rising[at - 1]) / (rising[at] - rising[at - 1])
    return float(samples[at - 1] + share * (samples[at] - samples[at - 1]))


@dataclass(frozen=True)
class Clocks:
    """Fitted clocks with intervals, and what the runs did not determine.

    Attributes
    ----------
    progress : ProgressClock or None
    failure : FailureClock or None
    draws : dict of str -> DataFrame
        Bootstrap draws of "progress" (a, h0, h1) and "failure" (samples, b_batch, b_drift).
    cells : DataFrame
        One row a run: batch, drift_rate, samples to target, and collapse with its censoring; full-rate completions.
    unidentified : dict of str -> str
        Clock -> why it could not be fitted and which run would identify it.
    shared : dict
        What all runs have in common: group, updates_per_rollout, clip, warm-up.
    metric, target, gain
        What progress means here: the metric, the level to reach, and its distance from the start.
    noise_sd : float
        Evaluation noise of the collapse rule.
    misfit : dict of str -> float
        Clock -> p-value of its law against one free mean a cell; small means the law does not describe these runs.
    """

    progress: ProgressClock | None
    failure: FailureClock | None
    draws: dict[str, pd.DataFrame]
    cells: pd.DataFrame
    unidentified: dict[str, str]
    shared: dict[str, Any]
    metric: str
    target: float
    gain: float
    noise_sd: float
    misfit: dict[str, float] = field(default_factory=dict)
    level: float = LEVEL

    def require(self, clock: str) -> Any:
        """The named clock.

        Raises
        ------
        UnidentifiedError
            If the runs do not determine it; the message names the run that would.
        """
        found = getattr(self, clock)
        if found is None:
            raise UnidentifiedError(f"{clock} clock: {self.unidentified[clock]}")
        return found

    def summary(self) -> pd.DataFrame:
        """A row a parameter: value and interval (percentile bootstrap); a clock the runs do not determine has its reason."""
        rows, tail = [], (1 - self.level) / 2
        for clock in ("progress", "failure"):
            found = getattr(self, clock)
            if found is None:
                rows.append({"clock": clock, "parameter": "unidentified", "value": None, "low": None, "high": None, "note": self.unidentified[clock]})
                continue
            for name, drawn in self.draws[clock].items():
                low, high = np.quantile(drawn, [tail, 1 - tail])
                rows.append({"clock": clock, "parameter": name, "value": getattr(found, str(name)), "low": low, "high": high, "note": ""})
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        head = f"{self.metric} to {self.target:g} (a gain of {self.gain:.3g}); {len(self.cells)} runs; intervals {self.level:.0%}"
        if self.failure is not None:
            tail = (1 - self.level) / 2
            exponents = [tuple(np.quantile(self.draws["failure"][name], [tail, 1 - tail])) for name in ("b_batch", "b_drift")]
            head += f"\ncollapse laws within the intervals of both exponents: {', '.join(laws_within(*exponents)) or 'none'}"
        return "\n".join([head, self.summary().to_string(index=False, float_format=lambda v: f"{v:.4g}", na_rep=""), *self.warnings])

    @property
    def warnings(self) -> list[str]:
        """Clocks whose law the runs contradict, in words."""
        return [
            f"{clock} clock: its law does not describe these runs (p = {p:.1g} against one free mean a cell); fit a narrower range of lr or batch"
            for clock, p in self.misfit.items()
            if p < MISFIT
        ]


def fit(runs: Runs, *, metric: str = "heldout_acc", target: float, n_boot: int = 200, rng: np.random.Generator | None = None) -> Clocks:
    """Fit both clocks to runs that share everything but batch, learning rate and seed.

    Progress: log E = log(gain) - log p(B, c) over runs, right-censored where the target was not reached before the end
    or the collapse. Failure: log E* linear in log B and log c, interval-, right- and left-censored: runs that collapse
    too early to time count as "within the early limit". Times are full-rate completions (`full_rate_samples`).

    Parameters
    ----------
    runs : Runs
        Finished and killed runs are used (a killed one that was run again is not), failed ones left out.
    metric : str
        A curve column where more is better.
    target : float
        The level of the metric that counts as reached.
    n_boot : int
        Parametric bootstrap draws behind the intervals.
    rng : numpy Generator, optional
        Default `numpy.random.default_rng(0)`; a fit repeats bit for bit.

    Raises
    ------
    FitError
        If the runs differ in more than batch, lr and seed, there are none, or the target is not above the start.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    if n_boot < 2:
        raise FitError(f"n_boot={n_boot}: an interval needs at least two draws; 200 is usual")
    table = runs.runs[runs.runs["status"] != "failed"]
    rerun = set(table.loc[table["status"] == "finished", "config"])  # a killed run that was run again counts once
    table = table[(table["status"] == "finished") | ~table["config"].isin(rerun)]
    if table.empty:
        raise FitError("no finished or killed runs to fit")
    shared = _shared(table)
    curves = {run: metric_curve(runs, run, metric) for run in table["run_id"]}
    short = [run for run, (n, _, _) in curves.items() if len(n) < 3]
    if short:
        raise FitError(f"run {short[0]}: fewer than three values of {metric}; leave it out with Runs.select")
    gain = target - float(np.mean([y[0] for _, y, _ in curves.values()]))
    if not gain > 0:
        raise FitError(f"target={target}: not above the start of {metric} ({target - gain:.3g}); choose a higher one")
    collapses, noise_sd = detect_collapses({run: (n, y) for run, (n, y, _) in curves.items()})
    cells = _cells(table, curves, collapses, target, shared["lr_warmup_samples"])
    progress = _fit_progress(cells, gain, n_boot, rng)
    failure = _fit_failure(cells, curves, shared["lr_warmup_samples"], n_boot, rng)
    both = {"progress": progress, "failure": failure}
    return Clocks(
        progress=progress.clock,
        failure=failure.clock,
        draws={name: part.draws for name, part in both.items()},
        cells=cells,
        unidentified={name: part.why for name, part in both.items() if part.clock is None},
        shared=shared,
        metric=metric,
        target=target,
        gain=gain,
        noise_sd=noise_sd,
        misfit={name: part.misfit for name, part in both.items() if part.clock is not None},
    )


@dataclass(frozen=True)
class _Part:
    """One clock's fit, or why there is none."""

    clock: Any = None
    draws: pd.DataFrame = field(default_factory=pd.DataFrame)
    misfit: float = math.nan
    why: str = ""


def _shared(table: pd.DataFrame) -> dict[str, Any]:
    for name in SHARED:
        values = table[name].astype(object).where(table[name].notna(), None).unique()
        if len(values) > 1:
            shown = ", ".join("null" if v is None else f"{v:g}" if isinstance(v, float) else str(v) for v in values)
            raise FitError(f"runs differ in {name} ({shown}); fit one at a time: Runs.select({name}=...), or --where {name}=...")
    first = table.iloc[0]
    clip = None if pd.isna(first["clip_low"]) else (round(float(first["clip_low"]), 6), round(float(first["clip_high"]), 6))
    whole = {name: int(first[name]) for name in ("group", "updates_per_rollout", "lr_warmup_samples")}
    return {**whole, "clip": clip, "testbed": str(first["testbed"])}


def _cells(table: pd.DataFrame, curves: dict[str, Any], collapses: dict[str, Collapse], target: float, warmup: float) -> pd.DataFrame:
    rows = []
    for run in table.itertuples():
        n, y, w = curves[str(run.run_id)]
        collapse = collapses[str(run.run_id)]
        alive = n <= (n[-1] if not collapse.confirmed else collapse.upper)
        reached = samples_to_target(n[alive], y[alive], w[alive], target)
        lived = float(n[alive][-1])
        times = {
            "target_lower": min(reached, lived), "target_upper": reached,
            "collapse_lower": collapse.lower, "collapse_upper": collapse.upper,
        }  # fmt: skip
        rows.append(
            {"run_id": run.run_id, "batch": run.batch, "drift_rate": rate(run.drift_rate), "seed": run.seed, "collapse": collapse.kind}
            | {name: float(full_rate_samples(value, warmup)) for name, value in times.items()}
        )
    return pd.DataFrame(rows)


def _identified(cells: pd.DataFrame, event: pd.Series, what: str) -> str:
    """Empty if the events span two batches and two drift rates; else what is missing and which run would supply it."""
    if not event.any():
        return f"no runs {what}; run longer, or at a larger learning rate, until some do"
    seen = cells[event]
    if len(seen) < MIN_EVENTS:
        return f"only {len(seen)} run(s) {what}; {MIN_EVENTS} are needed for three parameters and their noise; add seeds or settings that do"
    for column, unit in (("drift_rate", "drift rate (lr/sqrt(batch))"), ("batch", "batch")):
        if seen[column].nunique() < 2:
            only = seen[column].iloc[0]
            other = "half or twice the learning rate" if column == "drift_rate" else "a batch at least four times as large, lr scaled by its square root"
            return f"runs that {what} have one {unit} ({only:.4g}); add a run at {other}"
    return ""


def _cell_numbers(cells: pd.DataFrame) -> np.ndarray:
    return cells.groupby(["batch", "drift_rate"]).ngroup().to_numpy()


def _ranges(cells: pd.DataFrame) -> dict[str, Any]:
    return {
        "batch_range": (float(cells["batch"].min()), float(cells["batch"].max())),
        "drift_range": (float(cells["drift_rate"].min()), float(cells["drift_rate"].max())),
    }


def _fit_progress(cells: pd.DataFrame, gain: float, n_boot: int, rng: np.random.Generator) -> _Part:
    reached = np.isfinite(cells["target_upper"])
    why = _identified(cells, reached, "reach the target")
    if why:
        return _Part(why=why)
    batch, c = cells["batch"].to_numpy(float), cells["drift_rate"].to_numpy(float)
    b0, c0 = float(np.exp(np.log(batch).mean())), float(np.exp(np.log(c).mean()))
    x, z = c / c0, batch / b0

    def mean(theta: np.ndarray) -> np.ndarray:
        """Log E with p = a c (1 - c (h0 + B h1)/(2a)), theta = (log(gain/(a c0)), c0 h0/(2a), c0 b0 h1/(2a))."""
        left = 1 - x * (theta[1] + theta[2] * z)
        # A step too long to progress never reaches the target: very late, and later the worse it is
        return theta[0] - np.log(x) - np.log(np.maximum(left, 1e-3)) + 50 * np.maximum(0, 1e-3 - left)

    times = censored.Times(cells["target_lower"].to_numpy(), cells["target_upper"].to_numpy(), cells.groupby("batch").ngroup().to_numpy())
    level = float(np.median(np.log(times.lower) + np.log(x)))
    fitted = censored.fit(times, mean, [np.array([level, k0, k1]) for k0, k1 in ((0.05, 0.02), (0.3, 0.1), (-0.1, 0.0))])
    lived = np.where(np.isfinite(times.upper), times.lower.max(), times.lower)
    grids = [np.array([end]) for end in lived]
    drawn = censored.bootstrap(times, mean, fitted, grids, n_boot, exact=True, rng=rng)

    def parameters(theta: np.ndarray) -> np.ndarray:
        a = gain / np.exp(theta[..., 0]) / c0
        return np.stack([a, 2 * a * theta[..., 1] / c0, 2 * a * theta[..., 2] / (c0 * b0)], axis=-1)

    a, h0, h1 = parameters(fitted.theta)
    clock = ProgressClock(float(a), float(h0), float(h1), log_sd=float(np.exp(fitted.noise[0])), **_ranges(cells))
    draws = pd.DataFrame(parameters(drawn), columns=["a", "h0", "h1"])
    return _Part(clock, draws, censored.misfit(times, mean, fitted, _cell_numbers(cells)))


def _fit_failure(cells: pd.DataFrame, curves: dict[str, Any], warmup: float, n_boot: int, rng: np.random.Generator) -> _Part:
    why = _identified(cells, cells["collapse"] == "interval", "collapse at a resolved time")
    if why:
        lost = int((cells["collapse"] == "left").sum())
        return _Part(why=why + (f" ({lost} collapsed too early to time: lower their learning rate)" if lost else ""))
    b0, c0 = (float(np.exp(np.log(cells[name]).mean())) for name in ("batch", "drift_rate"))
    log_b, log_c = np.log(cells["batch"].to_numpy(float) / b0), np.log(cells["drift_rate"].to_numpy(float) / c0)
    times = censored.Times(cells["collapse_lower"].to_numpy(), cells["collapse_upper"].to_numpy(), cells.groupby("batch").ngroup().to_numpy())

    def mean(theta: np.ndarray) -> np.ndarray:
        return theta[0] + theta[1] * log_b + theta[2] * log_c

    level = float(np.log(times.upper[np.isfinite(times.upper)]).mean())
    fitted = censored.fit(times, mean, [np.array([level, 0.0, b_c]) for b_c in (-1.0, -2.0)])
    early = early_limit([n for n, _, _ in curves.values()])
    grids = [full_rate_samples(timeable(curves[run][0], early), warmup) for run in cells["run_id"]]
    drawn = censored.bootstrap(times, mean, fitted, grids, n_boot, exact=False, rng=rng)
    clock = FailureClock(
        samples=float(np.exp(fitted.theta[0])),
        batch0=b0,
        drift_rate0=c0,
        b_batch=float(fitted.theta[1]),
        b_drift=float(fitted.theta[2]),
        log_sd=float(np.exp(fitted.noise[0])),
        longest=max(float(full_rate_samples(curves[run][0][-1], warmup)) for run in cells["run_id"]),
        **_ranges(cells),
    )
    drawn[:, 0] = np.exp(drawn[:, 0])
    draws = pd.DataFrame(drawn, columns=["samples", "b_batch", "b_drift"])
    return _Part(clock, draws, censored.misfit(times, mean, fitted, _cell_numbers(cells)))
