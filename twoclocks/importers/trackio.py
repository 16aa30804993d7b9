"""trackio's sqlite store: a row a log call with JSON metrics, keys as in W&B; opened read-only."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pandas as pd

from twoclocks.errors import RecordsError
from twoclocks.importers import stores
from twoclocks.importers.log import Log

MAX_ROWS = 5_000_000


def matches(path: Path) -> bool:
    """Whether a path is a sqlite database."""
    return path.suffix == ".db"


def read(path: Path) -> list[Log]:
    """Every run of a project.

    Raises
    ------
    RecordsError
        If it is no trackio database, or a row's metrics are no JSON object.
    """
    try:
        with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as store:
            rows: list[tuple[Any, ...]] = store.execute("SELECT run_name, metrics, timestamp, step FROM metrics ORDER BY id LIMIT ?", (MAX_ROWS,)).fetchall()
        store.close()
    except sqlite3.Error as error:
        raise RecordsError(f"{path}: no trackio database ({error}); expected a table metrics with run_name, step and metrics") from error
    runs: dict[str, list[dict[str, Any]]] = {}
    for number, (run, metrics, stamp, step) in enumerate(rows, start=1):
        try:
            values = json.loads(metrics)
            runs.setdefault(str(run), []).append({**values, "_timestamp": stamp, "_step": step})
        except (TypeError, ValueError) as error:
            raise RecordsError(f"{path}: row {number} of run {run!r}: metrics are not a JSON object ({error}); remove the row") from error
    if not runs:
        raise RecordsError(f"{path}: no rows")
    logs = []
    for run, found in runs.items():
        table = pd.DataFrame(found)
        stamps = pd.to_datetime(table.pop("_timestamp"), errors="coerce", utc=True, format="ISO8601")
        table["_runtime"] = (stamps - stamps.min()).dt.total_seconds()
        logs.append(stores.log_of(table, name=run, store="trackio", where=str(path), notes=[], store_step="_step"))
    return logs
