"""Reading and writing runs: the two tables of `twoclocks.schema` as parquet, and a live run's `curve.jsonl`.

A live run appends to its curve; once it is over the curve is thinned and both tables are written by temporary file and
`os.replace`. A sweep's curves are one file, never rewritten.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from twoclocks.errors import RecordsError
from twoclocks.schema import CURVE_COLUMNS, NAME, validate

MAX_BYTES = 64 * 2**20  # a records file is untrusted input; ours stay well under 1 MiB
MAX_ROWS = 2_000_000
MAX_CURVE_ROWS = 200


@dataclass(frozen=True)
class Runs:
    """Run table and curve table, keyed by run_id.

    Attributes
    ----------
    runs, curves : pandas.DataFrame
        Columns and units as in `RUN_COLUMNS` and `CURVE_COLUMNS`.
    """

    runs: pd.DataFrame
    curves: pd.DataFrame

    def select(self, **equal: Any) -> Runs:
        """Rows whose columns equal the given values; a list means any of them, None means null.

        Raises
        ------
        RecordsError
            If there is no such column.
        """
        keep = pd.Series(True, index=self.runs.index)
        for name, value in equal.items():
            if name not in self.runs.columns:
                raise RecordsError(f"select: no column {name!r}; the run table has {', '.join(self.runs.columns)}")
            column, listed = self.runs[name], list(value) if isinstance(value, list | tuple | set) else [value]
            wanted, null = [v for v in listed if v is not None], column.isna() & (None in listed)
            if not wanted:
                keep &= null
            elif pd.api.types.is_float_dtype(column):  # 0.2 was stored as float32
                keep &= null | np.isclose(column.to_numpy(float)[:, None], np.array(wanted, float), rtol=1e-6, atol=0).any(axis=1)
            else:
                keep &= null | column.isin(wanted).fillna(False).astype(bool)
        runs = self.runs[keep].reset_index(drop=True)
        return Runs(runs, self.curves[self.curves["run_id"].isin(runs["run_id"])].reset_index(drop=True))

    @cached_property
    def _places(self) -> dict[str, np.ndarray]:
        return self.curves.groupby("run_id").indices  # type: ignore[return-value]

    def of(self, run_id: str) -> pd.DataFrame:
        """The curve rows of one run, in order of samples; empty if it has none."""
        return self.curves.iloc[self._places.get(run_id, [])].sort_values("samples")

    def curve(self, run_id: str, column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(samples, values, weights) of one column of one run, nulls left out, float64.

        A point-in-time column (`heldout_acc`) sits at its row's samples with weight 1. A windowed column describes the
        policies that its updates, or its rollouts, began from: it sits at their mean sample count, with the completions
        behind it as weight.

        Raises
        ------
        RecordsError
            If it is not a measured column.
        """
        rules = {c.name: c.window for c in CURVE_COLUMNS if c.kind == "float"}
        if column not in rules:
            raise RecordsError(f"metric {column!r}: not a measured curve column; choose one of {', '.join(rules)}")
        rows = self.of(run_id)
        values = rows[column].to_numpy(float)
        seen = ~np.isnan(values)
        if rules[column] == "last":
            return rows["samples"].to_numpy(float)[seen], values[seen], np.ones(seen.sum())
        # A row stands for the updates (or rollouts) since the row before; each began `size` completions before its end
        counter, total = ("rollout", "samples_generated") if rules[column] == "rollout" else ("update", "samples")
        units, done = (np.diff(rows[name].to_numpy(float), prepend=0.0) for name in (counter, total))
        size, end = done / np.maximum(units, 1), rows[total].to_numpy(float)
        middle = np.maximum(0.0, end - (done + size) / 2)
        return middle[seen], values[seen], np.maximum(done, rows["batch"].to_numpy(float))[seen]


def read_table(path: Path, which: str) -> pd.DataFrame:
    """Read and validate one parquet table.

    Raises
    ------
    RecordsError
        If the file is absent, too large, truncated, not parquet, or breaks the schema.
    """
    if not path.is_file():
        raise RecordsError(f"{path}: no such file; expected the {which} table in parquet")
    if path.stat().st_size > MAX_BYTES:
        raise RecordsError(f"{path}: larger than {MAX_BYTES} bytes; thin the curves with twoclocks.records.thin")
    try:
        rows = pq.ParquetFile(path).metadata.num_rows
        table = pd.read_parquet(path) if rows <= MAX_ROWS else None
    except Exception as error:  # pyarrow raises several unrelated types for damaged files
        raise RecordsError(f"{path}: not a readable parquet file ({type(error).__name__}); it may be truncated: fetch or write it again") from error
    if table is None:
        raise RecordsError(f"{path}: {rows} rows, more than {MAX_ROWS}; thin the curves with twoclocks.records.thin")
    return validate(table, which, str(path))


def read(folder: str | os.PathLike[str]) -> Runs:
    """Read `runs.parquet` and every `curves/*.parquet` of a records folder.

    Raises
    ------
    RecordsError
        If a file is missing or breaks the schema, or a curve names a run that the run table lacks.
    """
    root = Path(folder)
    runs = read_table(root / "runs.parquet", "runs")
    files = sorted((root / "curves").glob("*.parquet"))
    if not files:
        raise RecordsError(f"{root / 'curves'}: no curves; expected at least one parquet file")
    parts = {file: read_table(file, "curves") for file in files}
    for file, part in parts.items():
        unknown = set(part["run_id"]) - set(runs["run_id"])
        if unknown:
            raise RecordsError(f"{file}: run_id {sorted(unknown)[0]} is not in {root / 'runs.parquet'}; add its run row")
    return Runs(runs, pd.concat(parts.values(), ignore_index=True))


def write_table(table: pd.DataFrame, which: str, path: Path) -> None:
    """Validate, then write one table by temporary file and `os.replace`, so a reader never sees half of it."""
    checked = validate(table, which, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    checked.to_parquet(temporary, index=False, compression="zstd")
    os.replace(temporary, path)


def write(records: Runs, folder: str | os.PathLike[str], sweep: str) -> None:
    """Add a sweep to a records folder: its curves as a new file, its rows appended to the run table.

    Raises
    ------
    RecordsError
        If the sweep's curves file exists already or a run id is taken: records are evidence and never rewritten.
    """
    root = Path(folder)
    if not re.fullmatch(NAME, sweep):
        raise RecordsError(f"sweep {sweep!r} must match {NAME}")
    curves = root / "curves" / f"{sweep}.parquet"
    if curves.exists():
        raise RecordsError(f"{curves}: exists; a sweep's curves are never rewritten: collect under another sweep name")
    runs = records.runs
    if (root / "runs.parquet").exists():
        runs = pd.concat([read_table(root / "runs.parquet", "runs"), validate(runs, "runs", "new runs")], ignore_index=True)
    validate(runs, "runs", str(root / "runs.parquet"))
    write_table(records.curves, "curves", curves)
    write_table(runs, "runs", root / "runs.parquet")


def append_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows to a live curve; they are on disk when this returns (call it at rollout borders)."""
    with path.open("a") as file:
        for row in rows:
            file.write(json.dumps(row, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_curve(path: Path) -> pd.DataFrame:
    """Rows of a live `curve.jsonl`: a later attempt replaces earlier rows at or past its start, a torn last line is dropped.

    Raises
    ------
    RecordsError
        If the file is too large, or a line other than the last is not JSON.
    """
    if path.stat().st_size > MAX_BYTES:
        raise RecordsError(f"{path}: larger than {MAX_BYTES} bytes; log fewer updates a row")
    lines = path.read_text().splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):  # only a run killed while writing leaves a torn line, and it is the last
                raise RecordsError(f"{path}: line {number} is not JSON ({error.msg}); remove the damaged line") from error
    table = pd.DataFrame(rows, columns=[c.name for c in CURVE_COLUMNS])
    for attempt in sorted(set(table["attempt"].dropna()))[1:]:
        start = table.loc[table["attempt"] == attempt, "samples"].min()
        table = table[(table["attempt"] >= attempt) | (table["samples"] < start)]
    return table.reset_index(drop=True)


def thin(curve: pd.DataFrame, rows: int = MAX_CURVE_ROWS, *, keep_evaluations: bool = True) -> pd.DataFrame:
    """At most `rows` log-spaced rows of one run's curve.

    Each row stands for the updates since the row before: rates are averaged over that window (nulls left out),
    counters and evaluations take their last value. A window ends at every evaluation, so none is lost or averaged.

    Parameters
    ----------
    keep_evaluations : bool
        Whether every evaluation has to stay; if not, half the rows at most end at log-spaced ones.

    Raises
    ------
    RecordsError
        If every evaluation has to stay and the run has more of them than `rows`.
    """
    curve, count = curve.reset_index(drop=True), len(curve)
    ends = np.flatnonzero(curve["heldout_acc"].notna().to_numpy()) if "heldout_acc" in curve else np.array([], int)
    if len(ends) > rows and keep_evaluations:
        raise RecordsError(f"run {curve['run_id'].iloc[0]}: {len(ends)} evaluations do not fit in {rows} rows; evaluate on a coarser grid")
    if not keep_evaluations and len(ends) > rows // 2:
        ends = ends[_log_spaced(len(ends), rows // 2)]
    ends = np.unique(np.concatenate([ends, _log_spaced(count, max(2, rows - len(ends))), [count - 1]]))
    starts = np.concatenate([[0], ends[:-1] + 1])
    how = {c.name: c.window for c in CURVE_COLUMNS}
    thinned = {name: curve[name].to_numpy()[ends] if how[name] == "last" else _window_means(curve[name], starts) for name in how if name in curve}
    return pd.DataFrame(thinned)


def _log_spaced(count: int, wanted: int) -> np.ndarray:
    return np.unique(np.geomspace(1, count, wanted).round().astype(int) - 1)


def _window_means(values: pd.Series, starts: np.ndarray) -> np.ndarray:
    numbers = pd.to_numeric(values).to_numpy(float, na_value=np.nan)
    seen = ~np.isnan(numbers)
    total, counted = np.add.reduceat(np.where(seen, numbers, 0.0), starts), np.add.reduceat(seen.astype(int), starts)
    return np.divide(total, counted, out=np.full(len(starts), np.nan), where=counted > 0)
