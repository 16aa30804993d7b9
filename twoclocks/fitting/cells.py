"""Which runs may be fitted together, and what each of them says: samples to the targets, and collapse with its censoring."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from twoclocks.errors import FitError
from twoclocks.failure import Collapse
from twoclocks.fitting.curves import target_interval
from twoclocks.schedule import full_rate_samples

# A clock describes runs that differ in batch, learning rate and seed, and in nothing else
SHARED = ("testbed", "model", "task", "group", "updates_per_rollout", "clip_low", "clip_high", "lr_warmup_samples", "max_grad_norm", "dtype")
MIN_EVENTS = 5  # timed runs behind three parameters; with fewer, the noise fits itself
Curves = dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]


def rate(drift_rate: float) -> float:
    """A drift rate to six digits: lr/sqrt(B) of one rate differs in its last bit from batch to batch."""
    return float(f"{drift_rate:.6g}")


def usable(table: pd.DataFrame) -> pd.DataFrame:
    """Finished and killed runs; a killed one that was run again counts once.

    Raises
    ------
    FitError
        If there are none.
    """
    table = table[table["status"] != "failed"]
    rerun = set(table.loc[table["status"] == "finished", "config"])
    table = table[(table["status"] == "finished") | ~table["config"].isin(rerun)]
    if table.empty:
        raise FitError("no finished or killed runs to fit")
    return table


def shared(table: pd.DataFrame) -> dict[str, Any]:
    """What all runs have in common.

    Raises
    ------
    FitError
        If they differ in more than batch, lr and seed.
    """
    for name in SHARED:
        values = table[name].astype(object).where(table[name].notna(), None).unique()
        if len(values) > 1:
            shown = ", ".join("null" if v is None else f"{v:g}" if isinstance(v, float) else str(v) for v in values)
            raise FitError(f"runs differ in {name} ({shown}); fit one at a time: Runs.select({name}=...), or --where {name}=...")
    first = table.iloc[0]
    clip = None if pd.isna(first["clip_low"]) else (round(float(first["clip_low"]), 6), round(float(first["clip_high"]), 6))
    whole = {name: int(first[name]) for name in ("group", "updates_per_rollout", "lr_warmup_samples")}
    return {**whole, "clip": clip, "testbed": str(first["testbed"])}


def cell_table(table: pd.DataFrame, curves: Curves, collapses: dict[str, Collapse], targets: dict[str, list[float]], warmup: float) -> pd.DataFrame:
    """One row a run and target; times in full-rate completions (`full_rate_samples`), seconds per completion where measured.

    Parameters
    ----------
    targets : dict of run id -> levels
        In the order of `target` 0, 1, ...
    """
    rows = []
    for run in table.itertuples():
        name = str(run.run_id)
        n, y, w = curves[name]
        collapse = collapses[name]
        alive = n <= _lived(n, y, collapse)
        lived = float(n[alive][-1])
        pace = float(run.seconds) / run.samples_done if not pd.isna(run.seconds) and run.samples_done else np.nan
        for number, level in enumerate(targets[name]):
            lower, upper = target_interval(n[alive], y[alive], w[alive], level)
            if upper == 0:
                raise FitError(f"run {name}: starts at the target ({level:g}); choose a higher one, or leave the run out with Runs.select")
            times = {
                "target_lower": lower, "target_upper": upper, "lived": lived,
                "collapse_lower": collapse.lower, "collapse_upper": collapse.upper,
            }  # fmt: skip
            fixed = {"run_id": name, "batch": run.batch, "drift_rate": rate(run.drift_rate), "seed": run.seed, "collapse": collapse.kind}
            full = {key: float(full_rate_samples(value, warmup)) for key, value in times.items()}
            rows.append({**fixed, "target": number, **full, "seconds_per_sample": pace})
    return pd.DataFrame(rows)


def _lived(samples: np.ndarray, values: np.ndarray, collapse: Collapse) -> float:
    """Up to where a run can have reached a target: the last evaluation before its collapse.

    Counted up to the first one after it, as much as a whole step of the grid later, runs would seem to miss the target for longer than they did.
    """
    if collapse.kind == "right":
        return float(samples[-1])
    if collapse.kind == "interval":
        return collapse.lower
    early = samples <= collapse.upper  # when is not known; its best value came before
    return max(float(samples[early][int(np.argmax(values[early]))]), float(samples[samples > 0][0]))


def missing(cells: pd.DataFrame, event: pd.Series, what: str) -> str:
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


def cell_numbers(cells: pd.DataFrame) -> np.ndarray:
    """Which cell (batch, drift rate and target) each row belongs to."""
    return cells.groupby(["batch", "drift_rate", "target"]).ngroup().to_numpy()


def ranges(cells: pd.DataFrame) -> dict[str, Any]:
    """Fitted ranges of batch and drift rate."""
    return {
        "batch_range": (float(cells["batch"].min()), float(cells["batch"].max())),
        "drift_range": (float(cells["drift_rate"].min()), float(cells["drift_rate"].max())),
    }


def seeds_per_cell(cells: pd.DataFrame) -> int:
    """The fewest seeds that a batch and drift rate was run with."""
    return int(cells.groupby(["batch", "drift_rate"])["seed"].nunique().min())
