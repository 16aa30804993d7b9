"""trackio's sqlite store: a row a log call with JSON metrics, keys as in W&B; opened read-only."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pandas as pd

from twoclocks.errors import RecordsError
from twoclocks.importers.log import Log, numbers, one_row_a_step, renamed
from twoclocks.importers.table import WANDB

MAX_ROWS = 5_000_000


def matches(path: Path) -> bool:
    """Whether a path is a sqlite database."""
    return path.suffix == ".db"


def read(path: Path) -> list[Log]:
    """Every run of a project.

    Raises
    ------
    RecordsError
        If it is no trackio database, or a row's metrics are not JSON.
    """
    try:
        with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as store:
            rows: list[tuple[Any, ...]] = store.execute("SELECT run_name, metrics, timestamp FROM metrics ORDER BY id LIMIT ?", (MAX_ROWS,)).fetchall()
        store.close()
    except sqlite3.Error as error:
        raise RecordsError(f"{path}: no trackio database ({error}); expected a table metrics with run_name and metrics") from error
    runs: dict[str, list[dict[str, Any]]] = {}
    for number, (run, metrics, stamp) in enumerate(rows, start=1):
        try:
            values = json.loads(metrics)
            runs.setdefault(str(run), []).append({**values, "timestamp": stamp})
        except (TypeError, ValueError) as error:
            raise RecordsError(f"{path}: row {number} of run {run!r}: metrics are not JSON ({error})") from error
    logs = []
    for run, found in runs.items():
        table = pd.DataFrame(found)
        if "train/global_step" not in table:
            raise RecordsError(f"{path}: run {run!r} logs no train/global_step; export it as a table and map its columns")
        notes: list[str] = []
        stamps = pd.to_datetime(table["timestamp"], errors="coerce", utc=True, format="ISO8601")
        rows_ = renamed(table, WANDB).assign(step=numbers(table["train/global_step"]), seconds=(stamps - stamps.min()).dt.total_seconds())
        logs.append(Log(run, "trackio", str(path), "update", one_row_a_step(rows_, notes), notes=notes))
    if not logs:
        raise RecordsError(f"{path}: no rows")
    return logs
