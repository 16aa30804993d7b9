"""Committed records, and the selections that fits, claims and figures share."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from twoclocks.records import Runs, read

RESULTS = Path("experiments/results")
LR_BATCH = 32  # drift rates are named by the learning rate they mean at this batch


def records() -> Runs:
    """Every committed run and curve."""
    return read(RESULTS)


def finished(runs: Runs, testbed: str, sweeps: list[str], *, clipped: bool | None = None) -> Runs:
    """Finished runs of the named sweeps on a testbed; `clipped` True keeps clip 0.2, False keeps no clip."""
    chosen = runs.select(testbed=testbed, sweep=sweeps, status="finished")
    if clipped is None:
        return chosen
    table = chosen.runs
    clip = table["clip_low"].notna() if clipped else table["clip_low"].isna()
    return chosen.select(run_id=list(table.loc[clip, "run_id"]))


def lr_at_reference(drift_rate: pd.Series | float) -> pd.Series | float:
    """The learning rate at batch 32 that has this drift rate, rounded to the digits it was typed with."""
    lr = drift_rate * LR_BATCH**0.5
    return lr.round(9) if isinstance(lr, pd.Series) else round(lr, 9)
