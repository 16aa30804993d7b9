"""One clock from the cells: estimates, bootstrap draws, misfit, model comparison and the cell to run next."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from twoclocks import censored
from twoclocks.failure import FailureClock, early_limit, timeable
from twoclocks.fitting.cells import Curves, cell_numbers, missing, ranges, seeds_per_cell
from twoclocks.fitting.design import next_cells
from twoclocks.fitting.laws import MODELS, FailureLaw, Model, ProgressLaw, centre
from twoclocks.progress import ProgressClock
from twoclocks.schedule import full_rate_samples

LEVEL = 0.95
MIN_FREEDOM = 3  # of the t behind an interval
POSITIVE = ("a", "samples", "saturation_batch")
Parameters = Callable[[np.ndarray], pd.DataFrame]
MANY_SEEDS = 10  # from here on seeds are resampled; with fewer that covers far too little


@dataclass(frozen=True)
class Part:
    """One clock's fit, or why there is none."""

    clock: Any = None
    draws: pd.DataFrame = field(default_factory=pd.DataFrame)
    intervals: pd.DataFrame = field(default_factory=pd.DataFrame)
    misfit: float = math.nan
    why: str = ""
    models: pd.DataFrame = field(default_factory=pd.DataFrame)
    next_cells: pd.DataFrame = field(default_factory=pd.DataFrame)


def intervals_by(cells: pd.DataFrame) -> str:
    """How intervals are made with this many seeds."""
    seeds = seeds_per_cell(cells)
    return f"cluster bootstrap over {cells['seed'].nunique()} seeds" if seeds >= MANY_SEEDS else f"parametric bootstrap, {seeds} seed(s) a cell"


def _draw(
    cells: pd.DataFrame,
    times: censored.Times,
    law: Any,
    fitted: censored.Fit,
    parameters: Parameters,
    grids: Any,
    n_boot: int,
    rng: np.random.Generator,
    **how: Any,
) -> tuple[pd.DataFrame, dict[str, Any], pd.DataFrame]:
    """(draws, estimates, intervals) of a clock's parameters."""
    freedom = times.timed - len(fitted.theta) - len(fitted.noise)
    if seeds_per_cell(cells) >= MANY_SEEDS:
        freedom = cells["seed"].nunique() - 1
        drawn = censored.resample(times, law, fitted, cells["seed"].to_numpy(), n_boot, rng=rng, bounds=how.get("bounds"))
    else:
        drawn = censored.bootstrap(times, law, fitted, grids, n_boot, rng=rng, **how)
    draws, estimate = parameters(drawn.theta), parameters(fitted.theta).iloc[0]
    return draws, *centred(draws, estimate, max(MIN_FREEDOM, freedom))


def centred(draws: pd.DataFrame, likeliest: pd.Series, freedom: int) -> tuple[dict[str, Any], pd.DataFrame]:
    """(estimates, intervals): the likeliest value less its median bias over the draws, and as wide an interval as their percentiles.

    That is the mean of the percentile and the basic bootstrap. Estimates are skewed where the cells that would tell are
    censored (h1 by large batches, exponents by early collapses); a percentile interval puts the skew on the wrong side
    (it missed h1 from above in 8% of planted worlds), a basic one overdoes the other. Positive parameters: on the log scale.
    The noise is estimated too: the width is that of Student's t, degrees of freedom the timed runs less all parameters, or
    the seeds less one.
    """
    from scipy.stats import norm, t

    estimates: dict[str, Any] = {}
    found, wider = {}, float(t.ppf((1 + LEVEL) / 2, freedom) / norm.ppf((1 + LEVEL) / 2))
    for name in draws:
        positive = name in POSITIVE
        values, likely = (np.log(x) if positive else x for x in (draws[name].to_numpy(), likeliest[name]))
        low, middle, high = np.quantile(values, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
        centre, reach = 2 * likely - middle, wider * (high - low) / 2
        ends = [float(np.exp(x) if positive else x) for x in (centre, centre - reach, centre + reach)]
        estimates[str(name)], found[name] = ends[0], ends[1:]
    return estimates, pd.DataFrame(found, index=["low", "high"])


def fit_progress(cells: pd.DataFrame, gain: float, model: Model, group: int, n_boot: int, rng: np.random.Generator) -> Part:
    """Log E = log gain - log p(B, c) jointly over all targets, right-censored where one was not reached.

    Parameters
    ----------
    gain : float
        Of the first target.
    """
    first = cells[cells["target"] == 0]
    why = missing(first, np.isfinite(first["target_upper"]), "reach the target")
    if why:
        return Part(why=why)
    times = censored.Times(cells["target_lower"].to_numpy(), cells["target_upper"].to_numpy(), cells.groupby("batch").ngroup().to_numpy())
    fits = {name: _progress_fit(cells, times, name) for name in MODELS}
    law, fitted = fits[model]
    run, correlation = cells.groupby("run_id").ngroup().to_numpy(), _correlation(cells, times, law, fitted)
    inflation = 1 + (int(cells["target"].max())) * correlation
    grids = [np.array([end]) for end in cells["lived"]]
    how: dict[str, Any] = {"bounds": law.bounds, "exact": True, "run": run, "correlation": correlation}

    def parameters(theta: np.ndarray) -> pd.DataFrame:
        return law.clock_parameters(theta, gain)

    draws, found, intervals = _draw(cells, times, law, fitted, parameters, grids, n_boot, rng, **how)
    clock = ProgressClock(**{"h1": 0.0, **found}, log_sd=float(np.exp(fitted.noise[0])), **ranges(cells))
    return Part(
        clock=clock,
        draws=draws,
        intervals=intervals,
        misfit=censored.misfit(times, law, fitted, cell_numbers(cells), inflation),
        models=_compare(cells, times, fits, inflation),
        next_cells=next_cells("progress", law, fitted, parameters, cells, group, float(times.lower.max())),
    )


def _progress_fit(cells: pd.DataFrame, times: censored.Times, model: Model) -> tuple[ProgressLaw, censored.Fit]:
    target = cells["target"].to_numpy()
    law = ProgressLaw(model, int(target.max()) + 1, target, cells["batch"].to_numpy(float), cells["drift_rate"].to_numpy(float), **centre(cells))
    logs = np.log(np.where(times.lower > 0, times.lower, times.upper)) + np.log(law.drift_rate / law.c0)
    levels = np.array([np.median(logs[target == k]) for k in range(law.targets)])
    return law, censored.fit(times, law, law.starts(levels), law.bounds)


def _correlation(cells: pd.DataFrame, times: censored.Times, law: ProgressLaw, fitted: censored.Fit) -> float:
    """Correlation of the log times that one run takes to different targets, from those that it reached."""
    z = (np.log(np.where(times.exact, times.lower, 1.0)) - law(fitted.theta)[0]) / fitted.sd(times.group)
    wide = pd.DataFrame({"run": cells["run_id"].to_numpy(), "target": cells["target"].to_numpy(), "z": np.where(times.exact, z, np.nan)})
    wide = wide.pivot(index="run", columns="target", values="z").dropna()
    if wide.shape[1] < 2 or len(wide) < 3:
        return 0.0 if wide.shape[1] < 2 else 0.99
    between = np.corrcoef(wide.to_numpy().T)
    return float(np.clip(between[np.triu_indices(len(between), 1)].mean(), 0.0, 0.99))


def _compare(cells: pd.DataFrame, times: censored.Times, fits: dict[Model, tuple[ProgressLaw, censored.Fit]], inflation: float) -> pd.DataFrame:
    """AIC and held-out log likelihood of the three models; correlated targets count as fewer (both are divided by the inflation)."""
    cell, rows = cells.groupby(["batch", "drift_rate"]).ngroup().to_numpy(), []
    without = (cell[None, :] != np.arange(cell.max() + 1)[:, None]).astype(float)
    for name, (law, fitted) in fits.items():
        refitted = censored.refit(times, law, fitted, law.bounds, weights=without)
        heldout = 0.0
        for number, (theta, noise) in enumerate(zip(refitted.theta, refitted.noise, strict=True)):
            mean, log_sd, left = law(theta)[0], noise[0] + noise[1:][times.group], cell == number
            heldout += censored.log_likelihood(times.rows(left), mean[left], np.exp(log_sd[left]))
        aic = 2 * law.parameters - 2 * fitted.log_likelihood / inflation
        rows.append((name, law.parameters, fitted.log_likelihood / inflation, aic, heldout / inflation))
    table = pd.DataFrame(rows, columns=["model", "parameters", "log_likelihood", "aic", "heldout"])
    return table.assign(aic_above_best=table["aic"] - table["aic"].min())


def fit_failure(cells: pd.DataFrame, curves: Curves, warmup: float, group: int, n_boot: int, rng: np.random.Generator) -> Part:
    """Log E* linear in log B and log c, interval-, right- and left-censored."""
    cells = cells[cells["target"] == 0]
    why = missing(cells, cells["collapse"] == "interval", "collapse at a resolved time")
    if why:
        lost = int((cells["collapse"] == "left").sum())
        return Part(why=why + (f" ({lost} collapsed too early to time: lower their learning rate)" if lost else ""))
    law = FailureLaw(cells["batch"].to_numpy(float), cells["drift_rate"].to_numpy(float), **centre(cells))
    times = censored.Times(cells["collapse_lower"].to_numpy(), cells["collapse_upper"].to_numpy(), cells.groupby("batch").ngroup().to_numpy())
    level = float(np.log(times.upper[np.isfinite(times.upper)]).mean())
    fitted = censored.fit(times, law, [np.array([level, 0.0, b_c]) for b_c in (-1.0, -2.0)])
    early = early_limit([n for n, _, _ in curves.values()])
    grids = [full_rate_samples(timeable(curves[run][0], early), warmup) for run in cells["run_id"]]
    draws, found, intervals = _draw(cells, times, law, fitted, law.clock_parameters, grids, n_boot, rng, exact=False)
    longest = max(float(full_rate_samples(curves[run][0][-1], warmup)) for run in cells["run_id"])
    return Part(
        clock=FailureClock(**found, batch0=law.b0, drift_rate0=law.c0, log_sd=float(np.exp(fitted.noise[0])), longest=longest, **ranges(cells)),
        draws=draws,
        intervals=intervals,
        misfit=censored.misfit(times, law, fitted, cell_numbers(cells)),
        next_cells=next_cells("failure", law, fitted, law.clock_parameters, cells, group, longest),
    )
