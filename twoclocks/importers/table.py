"""Tables: CSV, parquet and JSON lines with a column mapping, and W&B exports, whose columns are the trainer's keys behind `train/`.

A W&B history (run.history(), or the CSV of a chart with all its columns) counts log calls in `_step`; the x axis is
`train/global_step`. The CSV of one chart holds `<run> - <key>` columns of many runs, with `__MIN` and `__MAX` beside them.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd

from twoclocks.errors import RecordsError
from twoclocks.importers import trl
from twoclocks.importers.log import Log, numbers, one_row_a_step, renamed
from twoclocks.schema import CURVE_COLUMNS

SUFFIXES = (".csv", ".parquet", ".jsonl", ".csv.gz", ".jsonl.gz")
WANDB = {f"train/{key}": name for key, name in trl.NAMES.items() if not key.startswith("eval_")} | {
    "eval/reward": "heldout_acc",
    "_runtime": "seconds",
}
MAX_BYTES = 4 << 30


def matches(path: Path) -> bool:
    """Whether a path is a table."""
    return path.name.endswith(SUFFIXES)


def load(path: Path) -> pd.DataFrame:
    """The table as it is.

    Raises
    ------
    RecordsError
        If it is absent, too large, empty, binary, or not what its name says.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise RecordsError(f"{path}: larger than {MAX_BYTES} bytes; import part of it")
        if path.name.endswith(".parquet"):
            return pd.read_parquet(path)
        opened = gzip.open if path.name.endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8-sig", newline=None) as file:
            text = file.read()
    except RecordsError:
        raise
    except Exception as error:  # pyarrow, gzip and codecs raise unrelated types for damaged files
        raise RecordsError(
            f"{path}: not readable as {path.suffix.lstrip('.')} ({type(error).__name__}: {error}); it may be truncated: fetch it again"
        ) from error
    return _lines(path, text) if ".jsonl" in path.name else _csv(path, text)


def _lines(path: Path, text: str) -> pd.DataFrame:
    rows: list[Any] = []
    lines = [line for line in text.splitlines() if line.strip()]
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):  # a killed writer leaves a torn last line
                raise RecordsError(f"{path}: line {number} is not JSON ({error}); remove the damaged line") from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise RecordsError(f"{path}: expected one JSON object a line")
    return pd.DataFrame(rows)


def _csv(path: Path, text: str) -> pd.DataFrame:
    from io import StringIO

    try:
        table = pd.read_csv(StringIO(text), low_memory=False)
    except (ValueError, pd.errors.ParserError) as error:
        raise RecordsError(f"{path}: not readable as csv ({error}); export it again") from error
    if table.empty:
        raise RecordsError(f"{path}: no rows")
    return table


def read(path: Path, columns: dict[str, str] | None = None) -> list[Log]:
    """Runs of a table: by mapping if one is given, else as a W&B history or chart.

    Parameters
    ----------
    columns : dict, optional
        Canonical name -> column of the file; needs one of `samples`, `update` or `rollout`, and may name `run` to split by.

    Raises
    ------
    RecordsError
        If the columns are not those of a W&B export and no mapping is given, or the mapping names what is not there.
    """
    table = load(path)
    if columns is not None:
        return _mapped(path, table, columns)
    charts = [str(c) for c in table.columns if " - train/" in str(c) and not str(c).endswith(("__MIN", "__MAX"))]
    if charts and str(table.columns[0]) in ("Step", "train/global_step"):
        return _chart(path, table, charts)
    if "train/global_step" in table.columns:
        return [_wandb(path, table)]
    raise RecordsError(
        f"{path}: columns {', '.join(map(str, table.columns[:6]))} ... are no W&B export; say which is what: "
        "columns={'update': ..., 'reward': ..., 'lr': ...} (one of update, rollout or samples is needed)"
    )


def _wandb(path: Path, table: pd.DataFrame) -> Log:
    notes: list[str] = []
    rows = renamed(table, WANDB).assign(step=numbers(table["train/global_step"]))
    return Log(_stem(path), "wandb", str(path), "update", one_row_a_step(rows, notes), notes=notes)


def _chart(path: Path, table: pd.DataFrame, charts: list[str]) -> list[Log]:
    if str(table.columns[0]) == "Step":
        raise RecordsError(f"{path}: the chart's x axis is W&B's log-call counter (Step); set it to train/global_step and export again")
    logs = []
    for run in dict.fromkeys(c.split(" - train/")[0] for c in charts):
        own = {c: WANDB.get("train/" + c.split(" - train/")[1]) for c in charts if c.split(" - train/")[0] == run}
        notes: list[str] = []
        rows = renamed(table, {c: name for c, name in own.items() if name}).assign(step=numbers(table.iloc[:, 0]))
        logs.append(Log(run, "wandb", str(path), "update", one_row_a_step(rows.dropna(how="all", subset=rows.columns.drop("step")), notes), notes=notes))
    return logs


def _mapped(path: Path, table: pd.DataFrame, columns: dict[str, str]) -> list[Log]:
    known = {c.name for c in CURVE_COLUMNS} | {"run"}
    for name, column in columns.items():
        if name not in known:
            raise RecordsError(f"columns: {name!r} is no canonical name; choose among {', '.join(sorted(known))}")
        if column not in table.columns:
            raise RecordsError(f"{path}: no column {column!r} (mapped to {name}); it has {', '.join(map(str, table.columns))}")
    axis = next((name for name in ("samples", "update", "rollout") if name in columns), None)
    if axis is None:
        raise RecordsError("columns: map one of samples, update or rollout, so that a row has a place")
    groups = table.groupby(columns["run"], sort=False) if "run" in columns else [(_stem(path), table)]
    logs = []
    for run, part in groups:
        notes: list[str] = []
        rows = renamed(part, {column: name for name, column in columns.items() if name != "run"}).assign(step=numbers(part[columns[axis]]))
        logs.append(Log(str(run), "table", str(path), axis, one_row_a_step(rows, notes), notes=notes))  # type: ignore[arg-type]
    return logs


def _stem(path: Path) -> str:
    return path.name.split(".")[0]
