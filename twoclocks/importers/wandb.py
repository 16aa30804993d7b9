"""W&B exports: a run's history as CSV or parquet, and the CSV of a chart with many runs.

A history counts log calls in `_step`; with transformers the x axis is `train/global_step`. A chart's CSV holds
`<run> - <key>` columns, with `__MIN` and `__MAX` beside them.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from twoclocks.errors import RecordsError
from twoclocks.importers import jsonl, stores, table
from twoclocks.importers.dialects import recognised
from twoclocks.importers.log import Log

BOUNDS = ("__MIN", "__MAX")


def matches(path: Path) -> bool:
    """Whether a path is a table with W&B's own columns."""
    if not path.name.endswith((".csv", ".parquet", ".csv.gz")):
        return False
    try:
        columns = _columns(path)
    except Exception:  # whatever is wrong with it, the reader says so
        return False
    return bool({"_step", "_runtime", "_timestamp"} & set(columns)) or bool(_charted(columns))


def _columns(path: Path) -> list[str]:
    if path.name.endswith(".parquet"):
        import pyarrow.parquet as pq

        return list(map(str, pq.ParquetFile(path).schema_arrow.names))
    return list(map(str, pd.read_csv(path, nrows=0).columns))


def _charted(columns: list[str]) -> dict[str, list[str]]:
    """Run -> its keys, for the columns of a chart."""
    known, runs = stores.known_keys(), dict[str, list[str]]()
    for column in columns:
        run, dash, key = column.rpartition(" - ")
        if dash and (key in known or any(d.knows(key) for d in stores.DIALECTS)):
            runs.setdefault(run, []).append(key)
    return runs


def read(path: Path) -> list[Log]:
    """The runs of an export.

    Raises
    ------
    RecordsError
        If the columns are no trainer's, or a chart's x axis is the log-call counter.
    """
    history = table.load(path)
    charted = _charted(list(map(str, history.columns)))
    if charted:
        return [_chart(path, history, run, keys) for run, keys in charted.items()]
    return [stores.log_of(history, name=jsonl.stem(path), store="wandb", where=str(path), notes=[], store_step="_step")]


def _chart(path: Path, history: pd.DataFrame, run: str, keys: list[str]) -> Log:
    axis = str(history.columns[0])
    own = history[[f"{run} - {key}" for key in keys]].set_axis(keys, axis=1)
    dialect = recognised(stores.DIALECTS, [axis, *keys])
    if axis == "Step" and (dialect is None or not dialect.store_step):
        raise RecordsError(f"{path}: the chart's x axis is W&B's log-call counter (Step); set it to train/global_step and export again")
    own.insert(0, "_step" if axis == "Step" else axis, history.iloc[:, 0])
    return stores.log_of(own, name=run, store="wandb", where=str(path), notes=[], store_step="_step")
