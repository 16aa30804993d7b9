"""Write the sample logs: `python -m experiments.samples [FOLDER]`; the committed ones were written by it.

Synthetic, with known clocks: a = 20, h0 = 2e6, h1 = 8e3, and collapse at 45,000 (1.8e-7/c) completions at every batch. Thirty-six
runs (4 batches, 3 learning rates on the square-root rule, 3 seeds), the same in every format.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.planted import evaluation_grid, world

HERE = Path(__file__).parent
BATCHES, LR32, GROUP, UPDATES = (32, 128, 512, 1024), (1e-6, 2e-6, 4e-6), 8, 4
TRUTH = {"a": 20.0, "h0": 2.0e6, "h1": 8.0e3}


def life(batch: float, drift_rate: float, clipped: bool) -> float:
    """Samples to collapse."""
    return 45_000 * (1.8e-7 / drift_rate)


def sweep() -> list[tuple[str, Any, pd.DataFrame]]:
    """(name, run row, curve) of every run, evaluated before training and at whole rollouts."""
    found = []
    for batch in BATCHES:
        rollout = UPDATES * batch
        looks = np.unique(np.round(evaluation_grid(100_000, 40) / rollout)) * rollout
        runs = world(**TRUTH, collapse=life, batches=(batch,), lr32=LR32, seeds=3, rng=batch + 6000, evaluations=looks)
        for row in runs.runs.itertuples():
            found.append((f"b{batch}-lr{row.lr:.2e}-s{row.seed}", row, runs.of(str(row.run_id))))
    return found


def settings(runs: list[tuple[str, Any, pd.DataFrame]]) -> pd.DataFrame:
    """What the logs do not say, a row a run."""
    fixed = {"group": GROUP, "updates_per_rollout": UPDATES, "clip_low": 0.2, "clip_high": 0.2}
    return pd.DataFrame([{"run": name, "completions": row.batch, "lr": float(f"{row.lr:.6g}"), "seed": row.seed, **fixed} for name, row, _ in runs])


def values(row: Any, curve: pd.DataFrame) -> list[tuple[int, int, float]]:
    """(update, rollout, held-out accuracy) of every look."""
    updates = (curve["samples"] // row.batch).astype(int)
    return list(zip(updates, updates // UPDATES, curve["heldout_acc"].round(4).astype(float), strict=True))


def write_trl(folder: Path, name: str, row: Any, looks: list[tuple[int, int, float]]) -> None:
    """A checkpoint's trainer_state.json."""
    history = [line for k, _, acc in looks for line in ({"step": k, "loss": 0.0, "learning_rate": row.lr}, {"step": k, "eval_reward": acc})]
    target = folder / name / f"checkpoint-{looks[-1][0]}"
    target.mkdir(parents=True)
    (target / "trainer_state.json").write_text(json.dumps({"global_step": looks[-1][0], "log_history": history}) + "\n")


def write_verl(folder: Path, name: str, row: Any, looks: list[tuple[int, int, float]]) -> None:
    """Verl's file logger."""
    lines = [{"step": k, "data": {"actor/lr": row.lr, "val-core/planted/acc/mean@8": acc}} for _, k, acc in looks]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_wandb(folder: Path, name: str, row: Any, looks: list[tuple[int, int, float]]) -> None:
    """A W&B history of a transformers trainer: training and evaluation are two log calls."""
    rows = [line for k, _, acc in looks for line in ({"train/global_step": k, "train/learning_rate": row.lr}, {"train/global_step": k, "eval/reward": acc})]
    pd.DataFrame(rows).rename_axis("_step").to_csv(folder / f"{name}.csv")


def write_openrlhf(folder: Path, name: str, row: Any, looks: list[tuple[int, int, float]]) -> None:
    """A W&B history of OpenRLHF: evaluations carry a step of their own."""
    rows = [
        line for _, k, acc in looks for line in ({"train/global_step": k, "train/actor_lr": row.lr}, {"eval/global_step": k, "eval/eval_planted_pass1": acc})
    ]
    pd.DataFrame(rows).rename_axis("_step").to_csv(folder / f"{name}.csv")


def write_open_instruct(folder: Path, name: str, row: Any, looks: list[tuple[int, int, float]]) -> None:
    """open-instruct's columns; its global_step is completions."""
    rows = [{"training_step": k, "global_step": k * UPDATES * row.batch, "lr": row.lr, "eval/scores": acc} for _, k, acc in looks]
    pd.DataFrame(rows).to_csv(folder / f"{name}.csv", index=False)


WRITERS: dict[str, Callable[[Path, str, Any, list[tuple[int, int, float]]], None]] = {
    "trl": write_trl,
    "verl": write_verl,
    "wandb": write_wandb,
    "openrlhf": write_openrlhf,
    "open-instruct": write_open_instruct,
}


def write_trackio(path: Path, runs: list[tuple[str, Any, pd.DataFrame]]) -> None:
    """Trackio's store: all runs in one table."""
    with sqlite3.connect(path) as store:
        store.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_id TEXT, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT)")
        for name, row, curve in runs:
            for k, _, acc in values(row, curve):
                told = json.dumps({"train/global_step": k, "train/learning_rate": row.lr, "eval/reward": acc})
                store.execute(
                    "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?, ?)", (name, "2026-01-01T00:00:00", name, k, told)
                )
    store.close()


def main(root: Path = HERE) -> None:
    """Write every format and the settings table below a folder."""
    runs = sweep()
    for kind, write in WRITERS.items():
        (root / kind).mkdir(parents=True)
        for name, row, curve in runs:
            write(root / kind, name, row, values(row, curve))
    write_trackio(root / "trackio.db", runs)
    settings(runs).to_csv(root / "runs.csv", index=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
