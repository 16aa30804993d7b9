"""From runs to clocks: one censored fit for samples-to-target, one for samples-to-collapse, both with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from twoclocks.errors import FitError
from twoclocks.failure import detect_collapses
from twoclocks.fitting.cells import Curves, cell_table, rate, shared, usable
from twoclocks.fitting.clocks import Clocks
from twoclocks.fitting.curves import metric_curve, samples_to_target
from twoclocks.fitting.estimate import fit_failure, fit_progress, intervals_by
from twoclocks.fitting.forecast import Forecast, forecast
from twoclocks.fitting.laws import MODELS, Model
from twoclocks.records import Runs

__all__ = ["Clocks", "Forecast", "fit", "forecast", "metric_curve", "rate", "samples_to_target"]

LOST = 0.5  # beside the margin in points: a collapse that loses half of what was gained
ONE_RUN = "one run has one batch and one learning rate; add runs at a batch four times as large and at half or twice the learning rate"


def fit(
    runs: Runs,
    *,
    metric: str = "heldout_acc",
    target: float | Sequence[float] | None = None,
    gain: float | Sequence[float] | None = None,
    model: Model = "curvature",
    threshold: float | None = None,
    n_boot: int = 200,
    rng: np.random.Generator | None = None,
) -> Clocks:
    """Fit both clocks to runs that share everything but batch, learning rate and seed.

    Progress: log E = log(gain) - log p(B, c) over runs, right-censored where the target was not reached before the end
    or the collapse; several targets share the shape of p and differ in level. Where E lies is stated in
    `twoclocks.fitting.curves`. Failure: log E* linear in log B and log c, interval-, right- and left-censored: runs that
    collapse too early to time count as "within the early limit". Times are full-rate completions (`full_rate_samples`).
    Intervals: parametric bootstrap with fewer than ten seeds a cell, cluster bootstrap over seeds from there on. A single
    run has no clocks; its drift is forecast instead.

    Parameters
    ----------
    runs : Runs
        Finished and killed runs are used (a killed one that was run again is not), failed ones left out.
    metric : str
        A curve column where more is better.
    target : float or several
        Levels of the metric that count as reached; clocks and plans are about the first.
    gain : float or several
        Instead of `target`: rise above each run's own first value. Both count from the first value logged, so log an
        evaluation before training.
    model : {"curvature", "saturation", "both"}
        What the progress clock loses to batch: h1, B_sat, or both. All three are compared in `Clocks.models`.
    threshold : float, optional
        Of the drift meter, for the forecast of a single run.
    n_boot : int
        Bootstrap draws behind the intervals.
    rng : numpy Generator, optional
        Default `numpy.random.default_rng(0)`; a fit repeats bit for bit.

    Raises
    ------
    FitError
        If the runs differ in more than batch, lr and seed, there are none, or a target is not above the start.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    if n_boot < 2:
        raise FitError(f"n_boot={n_boot}: an interval needs at least two draws; 200 is usual")
    if model not in MODELS:
        raise FitError(f"model={model!r}: choose one of {', '.join(MODELS)}")
    table = usable(runs.runs)
    common = shared(table)
    if len(table) == 1:
        return _one_run(Runs(table, runs.curves), common, metric, threshold, rng)
    curves = {run: metric_curve(runs, run, metric) for run in table["run_id"]}
    short = [run for run, (n, _, _) in curves.items() if len(n) < 3]
    if short:
        raise FitError(f"run {short[0]}: fewer than three values of {metric}; leave it out with Runs.select")
    levels, rise, start = _targets(curves, metric, target, gain)
    collapses, noise_sd = detect_collapses({run: (n, y) for run, (n, y, _) in curves.items()})
    warmup = common["lr_warmup_samples"]
    cells = cell_table(table, curves, collapses, levels, warmup)
    lost, _ = detect_collapses({run: (n, y) for run, (n, y, _) in curves.items()}, share=LOST)
    cells["lost_half"] = [lost[run].kind for run in cells["run_id"]]
    parts = {
        "progress": fit_progress(cells, rise, model, common["group"], n_boot, rng),
        "failure": fit_failure(cells, curves, warmup, common["group"], n_boot, rng),
    }
    advice = [part.next_cells for part in parts.values() if len(part.next_cells)]
    return Clocks(
        progress=parts["progress"].clock,
        failure=parts["failure"].clock,
        draws={name: part.draws for name, part in parts.items()},
        limits={name: part.intervals for name, part in parts.items()},
        cells=cells[cells["target"] == 0].drop(columns="target").reset_index(drop=True),
        unidentified={name: part.why for name, part in parts.items() if part.clock is None},
        shared=common,
        metric=metric,
        target=start + rise,
        gain=rise,
        noise_sd=noise_sd,
        misfit={name: part.misfit for name, part in parts.items() if part.clock is not None},
        model=model,
        models=parts["progress"].models,
        next_cells=pd.concat(advice, ignore_index=True) if advice else pd.DataFrame(),
        intervals=intervals_by(cells),
    )


def _targets(curves: Curves, metric: str, target: Any, gain: Any) -> tuple[dict[str, list[float]], float, float]:
    """(levels of every run, mean gain to the first, mean start)."""
    if (target is None) == (gain is None):
        raise FitError("give either target= (a level of the metric) or gain= (a rise above each run's start)")
    start = float(np.mean([y[0] for _, y, _ in curves.values()]))
    if gain is not None:
        rises = [float(g) for g in np.atleast_1d(gain)]
        if not rises or min(rises) <= 0:
            raise FitError(f"gain={gain}: must be positive")
        return {run: [float(y[0]) + g for g in rises] for run, (_, y, _) in curves.items()}, rises[0], start
    wanted = [float(t) for t in np.atleast_1d(target)]
    low = [t for t in wanted if not t > start]
    if not wanted or low:
        raise FitError(f"target={low[0] if low else target}: not above the start of {metric} ({start:.3g}); choose a higher one")
    return dict.fromkeys(curves, wanted), wanted[0] - start, start


def _one_run(runs: Runs, common: dict[str, Any], metric: str, threshold: float | None, rng: np.random.Generator) -> Clocks:
    run = runs.runs.iloc[0]
    found = forecast(runs, str(run["run_id"]), threshold=threshold, rng=rng)
    cells = runs.runs[["run_id", "batch", "drift_rate", "seed"]].reset_index(drop=True)
    return Clocks(
        progress=None,
        failure=None,
        draws={},
        limits={},
        cells=cells,
        unidentified={"progress": ONE_RUN, "failure": ONE_RUN},
        shared=common,
        metric=metric,
        target=math.nan,
        gain=math.nan,
        noise_sd=math.nan,
        forecast=found,
    )
