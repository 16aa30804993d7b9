"""The two-clock picture (extra `plot`): progress and failure over batch and learning rate, and a schedule's path across it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from twoclocks.fitting import Clocks
from twoclocks.planner import common_range
from twoclocks.schedule import Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GRID = 60


def clock_grid(clocks: Clocks) -> pd.DataFrame:
    """Both clocks on a log grid of their common range: batch, lr, progress per sample, samples to failure.

    Raises
    ------
    UnidentifiedError
        If the runs do not determine one of the clocks.
    """
    progress, failure = clocks.require("progress"), clocks.require("failure")
    batch, c = (g.ravel() for g in np.meshgrid(*(np.geomspace(*ends, GRID) for ends in common_range(progress, failure))))
    return pd.DataFrame(
        {
            "batch": batch,
            "drift_rate": c,
            "lr": c * np.sqrt(batch),
            "progress_per_sample": progress.per_sample(batch, c),
            "samples_to_failure": failure.samples_to_failure(batch, c),
        }
    )


def two_clocks(ax: Axes, clocks: Clocks, schedule: Schedule | None = None) -> pd.DataFrame:
    """Draw both clocks over batch (x) and drift rate c (y) on an axes, with the schedule's stages as stars.

    Shading is progress per sample relative to its best; lines are samples to failure.

    Returns
    -------
    DataFrame
        The numbers plotted, as `clock_grid`.
    """
    grid = clock_grid(clocks)
    shape = (GRID, GRID)
    x, y = (grid[name].to_numpy().reshape(shape) for name in ("batch", "drift_rate"))
    pace = grid["progress_per_sample"].to_numpy().reshape(shape)
    life = grid["samples_to_failure"].to_numpy().reshape(shape)
    pace = np.clip(pace / pace.max(), 0, 1)
    shade = ax.contourf(x, y, pace, levels=np.linspace(0, 1, 11), cmap="viridis")
    ax.figure.colorbar(shade, ax=ax, label="progress per sample / best")
    lines = ax.contour(x, y, np.log10(life), levels=np.arange(3, 13), colors="white", linewidths=1)
    ax.clabel(lines, fmt=_power)
    if schedule is not None:
        settings = [stage.setting for stage in schedule.stages]
        ax.plot([s.batch for s in settings], [s.drift_rate for s in settings], "r*-", markersize=14, markeredgecolor="white", clip_on=False, zorder=5)
    ax.set(xscale="log", yscale="log", xlabel="batch B (completions per update)", ylabel=r"drift rate $c = \eta/\sqrt{B}$")
    ax.set_title("shade: progress clock; lines: samples to failure; star: schedule", fontsize=9)
    return grid


def _power(exponent: Any) -> str:
    return rf"$10^{{{exponent:g}}}$"
