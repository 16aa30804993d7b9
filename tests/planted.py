"""Valid rows of the two tables, for tests that build records by hand."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from twoclocks.schema import CURVE_COLUMNS, RUN_COLUMNS


def run_row(**changes: object) -> dict[str, object]:
    """A valid row of the run table."""
    row = {
        "schema_version": 1, "run_id": "r0", "sweep": "planted", "testbed": "planted", "model": "m", "task": "t", "device": "cpu", "status": "finished",
        "collapsed": None, "seed": 0, "batch": 32, "group": 8, "updates_per_rollout": 4, "lr": 1e-6, "drift_rate": 1e-6 / 32**0.5, "clip_low": 0.2,
        "clip_high": 0.2, "lr_warmup_samples": 0, "samples": 100_000, "samples_done": 100_000, "start_acc": 0.2, "heldout_problems": 1000,
        "max_grad_norm": 1.0, "dtype": "float32", "seconds": 1.0, "git_sha": "0", "versions": json.dumps({}), "config": json.dumps({}), "created": "2026-01-01",
    }  # fmt: skip
    assert set(row) == {c.name for c in RUN_COLUMNS}
    return {**row, **changes}


def curve_rows(run_id: str, batch: int, samples: np.ndarray, values: np.ndarray, metric: str = "heldout_acc") -> pd.DataFrame:
    """A valid curve of one metric; every other measured column is null."""
    table = pd.DataFrame({c.name: [None] * len(samples) for c in CURVE_COLUMNS})
    update = np.maximum(1, samples // batch).astype(int)
    table = table.assign(
        run_id=run_id, attempt=0, update=update, samples=samples.astype(int), samples_generated=samples.astype(int), rollout=update, batch=batch
    )
    return table.assign(**{metric: values})
