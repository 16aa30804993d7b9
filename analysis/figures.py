"""One function a figure: records and fits in, (figure, table of the plotted numbers) out; saving is the caller's job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from analysis.claims import EARLY_REWARD
from analysis.fits import METRIC, TARGET, TESTBED
from analysis.load import finished, lr_at_reference
from twoclocks.fitting import Clocks, metric_curve, samples_to_target
from twoclocks.plot import two_clocks
from twoclocks.records import Runs
from twoclocks.schedule import Schedule

STYLE = {
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.hashsalt": "twoclocks",
}
LABELS = {"heldout_acc": "held-out greedy accuracy", "reward": "training reward (sampled accuracy)"}


def colour(batch: int) -> Any:
    """A batch keeps its colour in every figure."""
    return plt.get_cmap("viridis")(0.05 + 0.85 * (np.log2(batch) - 5) / 6)


def curves(runs: Runs, metric: str) -> pd.DataFrame:
    """Metric against samples of every run, with what distinguishes the run."""
    rows = []
    for run in runs.runs.itertuples():
        n, y, _ = metric_curve(runs, str(run.run_id), metric)
        clip = "none" if pd.isna(run.clip_low) else f"{run.clip_low:g}"
        rows.append(pd.DataFrame({"run_id": run.run_id, "batch": run.batch, "lr32": lr_at_reference(run.drift_rate), "clip": clip, "samples": n, metric: y}))
    return pd.concat(rows, ignore_index=True)


def over_seeds(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Mean, least and most over seeds, on the sample grid of each batch."""
    step = table.groupby(["batch", "lr32", "clip", "run_id"]).cumcount().rename("step")
    groups = table.groupby(["lr32", "clip", "batch", step])
    found = groups[metric].agg(["mean", "min", "max"]).assign(samples=groups["samples"].mean(), runs=groups.size())
    return found.reset_index().rename(columns={"mean": metric, "min": f"{metric}_min", "max": f"{metric}_max"})


def draw_curves(ax: Any, table: pd.DataFrame, metric: str) -> None:
    """Seed means as lines, seed ranges as bands, one colour a batch."""
    for batch, rows in table.groupby("batch"):
        ax.plot(rows["samples"], rows[metric], color=colour(batch), label=f"B = {batch}")
        ax.fill_between(rows["samples"], rows[f"{metric}_min"], rows[f"{metric}_max"], color=colour(batch), alpha=0.15, linewidth=0)


def progress(runs: Runs) -> tuple[Any, pd.DataFrame]:
    """Held-out accuracy and reward against samples by batch at two drift rates (clip 0.2), and samples to a reward of 0.20."""
    chosen = finished(runs, TESTBED, ["pilot_progress"], clipped=True)
    tables = {metric: over_seeds(curves(chosen, metric), metric) for metric in LABELS}
    rates = sorted(tables[METRIC]["lr32"].unique())
    figure, axes = plt.subplots(2, len(rates) + 1, figsize=(13, 6.5))
    for row, (metric, label) in enumerate(LABELS.items()):
        for column, lr32 in enumerate(rates):
            ax = axes[row, column]
            draw_curves(ax, tables[metric][tables[metric]["lr32"] == lr32], metric)
            ax.set(xlabel="training completions", ylabel=label, title=rf"$\eta$ = {lr32:.0e} at B = 32, $\eta\propto\sqrt{{B}}$, clip 0.2")
    axes[0, 0].legend()
    reached = []
    everything = finished(runs, TESTBED, ["pilot_progress"])
    for run in everything.runs.itertuples():
        n, y, w = metric_curve(everything, str(run.run_id), METRIC)
        reached.append((run.batch, lr_at_reference(run.drift_rate), "none" if pd.isna(run.clip_low) else "0.2", samples_to_target(n, y, w, EARLY_REWARD)))
    table = pd.DataFrame(reached, columns=["batch", "lr32", "clip", "samples_to_target"])
    for ax, (clip, rows) in zip(axes[:, -1], table.groupby("clip"), strict=True):
        for marker, (lr32, cell) in zip("os", rows.groupby("lr32"), strict=True):
            ax.plot(cell["batch"], cell["samples_to_target"], marker, alpha=0.4, color=f"C{marker == 's':d}")
            typical = np.exp(np.log(cell["samples_to_target"]).groupby(cell["batch"]).mean())
            ax.plot(typical.index, typical, "-", color=f"C{marker == 's':d}", label=rf"$\eta$ = {lr32:.0e} at B = 32")
        ax.set(xscale="log", yscale="log", xlabel="batch B", ylabel=f"completions to a reward of {EARLY_REWARD:.2f}", title=f"samples to target, clip {clip}")
        ax.set_xticks(batches := sorted(rows["batch"].unique()), [str(b) for b in batches])
        ax.set_yticks(ticks := [5_000, 10_000, 20_000, 40_000, 80_000], [f"{tick:,}" for tick in ticks])
        ax.minorticks_off()
        ax.legend()
    long = [t.rename(columns={m: "value", f"{m}_min": "min", f"{m}_max": "max"}).assign(metric=m) for m, t in tables.items()]
    return figure, pd.concat([*long, table.rename(columns={"samples_to_target": "value"}).assign(metric="samples_to_target")], ignore_index=True)


def failure(runs: Runs) -> tuple[Any, pd.DataFrame]:
    """Both metrics against samples along the square-root rule at two failing drift rates, with and without clip."""
    chosen = finished(runs, TESTBED, ["pilot_failure"])
    tables = {metric: over_seeds(curves(chosen, metric), metric) for metric in LABELS}
    cells = [(clip, lr32) for clip in ("none", "0.2") for lr32 in sorted(tables[METRIC]["lr32"].unique())]
    figure, axes = plt.subplots(len(LABELS), len(cells), figsize=(14, 6.5), sharey="row", sharex=True)
    for row, (metric, label) in enumerate(LABELS.items()):
        for ax, (clip, lr32) in zip(axes[row], cells, strict=True):
            table = tables[metric]
            draw_curves(ax, table[(table["clip"] == clip) & (table["lr32"] == lr32)], metric)
            ax.set_title(rf"clip {clip}, $\eta$ = {lr32:.1e} at B = 32", fontsize=10)
            ax.set_xlabel("training completions" if row else "")
        axes[row, 0].set_ylabel(label)
    axes[0, 0].legend()
    long = [t.rename(columns={m: "value", f"{m}_min": "min", f"{m}_max": "max"}).assign(metric=m) for m, t in tables.items()]
    return figure, pd.concat(long, ignore_index=True)


def schedule(name: str, clocks: Clocks, made: Schedule) -> tuple[Any, pd.DataFrame]:
    """The emitted schedule over the two clocks, and beside it its batch and the share of the failure clock it spends."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5))
    grid = two_clocks(left, clocks, made)
    samples = np.linspace(0, made.samples - 1, 200)
    settings = [made(n) for n in samples]
    hazard = [float(clocks.require("failure").hazard(s.batch, s.drift_rate)) for s in settings]
    spent = np.cumsum(hazard) * (samples[1] - samples[0])
    table = pd.DataFrame({"samples": samples, "batch": [s.batch for s in settings], "lr": [made.lr(n) for n in samples], "hazard_spent": spent})
    right.plot(samples, table["lr"], color="C0")
    right.set(xlabel="training completions", title=f"{name}: {METRIC} {TARGET:.2f} as target")
    right.set_ylabel("learning rate", color="C0")
    other = right.twinx()
    other.plot(samples, spent, color="C3")
    other.set_ylabel("share of the failure clock spent", color="C3")
    other.set_ylim(0, max(1.0, spent[-1]))
    other.grid(False)
    return figure, pd.concat([grid.assign(panel="clocks").iloc[::37], table.assign(panel="schedule").iloc[::10]], ignore_index=True)


def save(name: str, drawn: tuple[Any, pd.DataFrame], folder: Path) -> None:
    """SVG and PNG of the figure, and the CSV of its numbers to six digits."""
    folder.mkdir(parents=True, exist_ok=True)
    figure, table = drawn
    for suffix in ("svg", "png"):
        figure.savefig(folder / f"{name}.{suffix}", dpi=110, metadata={"Date": None} if suffix == "svg" else None)
    plt.close(figure)
    # %.5e, not %.6g: a float that prints like an integer would be compared as one
    table.to_csv(folder / f"{name}.csv", index=False, float_format="%.5e")


def draw_all(runs: Runs, clocks: dict[str, Clocks], emitted: dict[str, Schedule], folder: Path) -> None:
    """Every figure."""
    with mpl.rc_context(STYLE):
        save("progress", progress(runs), folder)
        save("failure", failure(runs), folder)
        for name, made in emitted.items():
            save(f"schedule_{name}", schedule(name, clocks[name], made), folder)
