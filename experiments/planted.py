"""Planted worlds: records of runs whose two clocks are known, for tests, coverage benchmarks and the sample logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from twoclocks import progress
from twoclocks.records import Runs
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


def evaluation_grid(samples: int = 100_000, looks: int = 60) -> np.ndarray:
    """Sample counts of a log grid of evaluations, from 0."""
    return np.unique(np.concatenate([[0], np.geomspace(500, samples, looks)]).round())


def world(
    *,
    a: float = 20.0,
    h0: float = 0.0,
    h1: float = 0.0,
    saturation_batch: float = np.inf,
    collapse: Callable[[float, float, bool], float] = lambda b, c, k: np.inf,
    sd: Callable[[float], float] = lambda b: 0.1,
    early: Callable[[bool], float] = lambda clipped: 1.0,
    batches: tuple[int, ...] = (32, 128, 512, 2048),
    lr32: tuple[float, ...] = (2e-6, 5e-6),
    clips: tuple[bool, ...] = (True,),
    seeds: int = 3,
    noise: float = 0.003,
    rng: int = 0,
    sweep: str = "planted",
    testbed: str = "planted",
    evaluations: np.ndarray | None = None,
) -> Runs:
    """Runs on the square-root rule whose held-out accuracy rises linearly from 0.2 and falls at the collapse.

    Parameters
    ----------
    a, h0, h1, saturation_batch : float
        The progress clock; a run gains 0.1 at 0.1/p(B, c) samples (times `early(clipped)`), 0.25 at most.
    collapse : callable
        (B, c, clipped) -> median samples to collapse.
    sd : callable
        B -> log-normal spread of both times between seeds.
    noise : float
        Standard deviation of an evaluation.
    evaluations : array, optional
        Sample counts that are looked at; default `evaluation_grid()`.
    """
    evaluations = evaluation_grid() if evaluations is None else evaluations
    generator, rows, curves = np.random.default_rng(rng), [], []
    for batch, lr, clipped, seed in ((b, e, k, s) for b in batches for e in lr32 for k in clips for s in range(seeds)):
        c = lr / 32**0.5
        rate = float(progress.saturated_per_sample(batch, c, a=a, h0=h0, h1=h1, saturation_batch=saturation_batch))
        reach = early(clipped) * 0.1 / rate * np.exp(sd(batch) * generator.standard_normal()) if rate > 0 else np.inf
        end = collapse(batch, c, clipped) * np.exp(sd(batch) * generator.standard_normal())
        rise = 0.2 + 0.1 * np.minimum(evaluations / reach, 2.5)
        y = np.where(evaluations < end, rise, np.maximum(0.0, rise - 0.25)) + noise * generator.standard_normal(len(evaluations))
        name = f"{sweep}-{batch}-{lr:g}-{clipped:d}-{seed}"
        told: dict[str, Any] = {"run_id": name, "sweep": sweep, "testbed": testbed, "batch": batch, "lr": c * batch**0.5, "drift_rate": c, "seed": seed}
        clip = 0.2 if clipped else None
        rows.append(run_row(**told, clip_low=clip, clip_high=clip))
        curves.append(curve_rows(name, batch, evaluations, y))
    return Runs(pd.DataFrame(rows), pd.concat(curves, ignore_index=True))
