"""Tables of any origin: CSV, parquet and JSON lines, gzipped or not, with a column mapping, or with a trainer's own keys as columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from twoclocks.errors import RecordsError
from twoclocks.importers import jsonl, stores
from twoclocks.importers.log import Log, numbers, one_row_a_step, renamed
from twoclocks.schema import CURVE_COLUMNS

SUFFIXES = (".csv", ".parquet", ".csv.gz", *jsonl.SUFFIXES)
CANONICAL = {c.name for c in CURVE_COLUMNS if c.kind != "str"} | {"run"}


def matches(path: Path) -> bool:
    """Whether a path is a table."""
    return path.name.endswith(SUFFIXES)


def load(path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    """The table as it is, or some of its columns.

    Raises
    ------
    RecordsError
        If it is absent, too large, empty, binary, or not what its name says.
    """
    if path.name.endswith(".parquet"):
        return _parquet(path, columns)
    if path.name.endswith(jsonl.SUFFIXES):
        return pd.DataFrame([row for _, row in jsonl.objects(path)])
    from io import StringIO

    try:
        table = pd.read_csv(StringIO(jsonl.text(path)), low_memory=False)
    except (ValueError, pd.errors.ParserError, OverflowError) as error:
        raise RecordsError(f"{path}: not readable as csv ({error}); export it again") from error
    if table.empty:
        raise RecordsError(f"{path}: no rows")
    return table


def _parquet(path: Path, columns: list[str] | None) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        wanted = [c for c in columns if c in file.schema_arrow.names] if columns is not None else None
        held = file.read(wanted)
        # Names of runs as codes, and measurements as records keep them: a sweep of ten million rows stays in memory
        small = {pa.string(): pa.dictionary(pa.int32(), pa.string()), pa.large_string(): pa.dictionary(pa.int32(), pa.large_string())}
        held = held.cast(pa.schema([f.with_type(small.get(f.type, f.type)) for f in held.schema]))
        table = held.to_pandas(split_blocks=True, self_destruct=True)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise RecordsError(f"{path}: not readable as parquet ({type(error).__name__}: {error}); it may be truncated: fetch it again") from error
    if table.empty:
        raise RecordsError(f"{path}: no rows")
    return pd.DataFrame(table)


def read(path: Path, columns: dict[str, str] | None = None) -> list[Log]:
    """Runs of a table: by mapping if one is given, else by the keys of the trainer that logged it.

    Parameters
    ----------
    columns : dict, optional
        Canonical name -> column of the file; needs one of `samples`, `update` or `rollout`, and may name `run` to split by.

    Raises
    ------
    RecordsError
        If the columns are no trainer's and no mapping is given, or the mapping names what is not there.
    """
    if columns is not None:
        return _mapped(path, columns)
    return [stores.log_of(load(path), name=jsonl.stem(path), store="table", where=str(path), notes=[], store_step="_step")]


def _mapped(path: Path, columns: dict[str, str]) -> list[Log]:
    for name in columns:
        if name not in CANONICAL:
            raise RecordsError(f"columns: {name!r} is no canonical name; choose among {', '.join(sorted(CANONICAL))}")
    axis: Any = next((name for name in ("samples", "update", "rollout") if name in columns), None)
    if axis is None:
        raise RecordsError("columns: map one of samples, update or rollout, so that a row has a place")
    table = load(path, list(columns.values()) if path.name.endswith(".parquet") else None)
    for name, column in columns.items():
        if column not in table.columns:
            has = load(path).columns if path.name.endswith(".parquet") else table.columns
            raise RecordsError(f"{path}: no column {column!r} (mapped to {name}); it has {', '.join(map(str, has))}")
    measured = {column: name for name, column in columns.items() if name != "run"}
    groups = table.groupby(columns["run"], sort=False, observed=True) if "run" in columns else [(jsonl.stem(path), table)]
    logs = []
    for run, part in groups:
        notes: list[str] = []
        rows = renamed(part, measured).assign(step=numbers(part[columns[axis]]))
        logs.append(Log(str(run), "table", str(path), axis, one_row_a_step(rows, notes), notes=notes))
    return logs
