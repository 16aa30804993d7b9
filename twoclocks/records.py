"""The two tables every run ends up in: one row per run, and one row per (thinned) stretch of its updates.

A live run appends `curve.jsonl` and replaces `run.json`; `collect` turns finished run folders into the tables;
`write` and `read` move them to and from parquet. Unmeasured values are null, never 0.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from twoclocks.errors import RecordsError

SCHEMA_VERSION = 1
STATUSES = ("finished", "killed", "failed")
MAX_BYTES = 64 * 2**20  # a records file is untrusted input; ours stay well under 1 MiB
MAX_ROWS = 2_000_000
MAX_CURVE_ROWS = 200
NAME = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}"  # names are data; this keeps them from being paths


@dataclass(frozen=True)
class Column:
    """Name, kind (str, int, float, bool), whether it may be null, how a window of updates is summarised, and the unit."""

    name: str
    kind: str
    unit: str
    required: bool = False
    window: str = "mean"  # of the updates one thinned row stands for: mean, mean over its rollouts, or last


RUN_COLUMNS = (
    Column("schema_version", "int", "integer; this file is version 1", True),
    Column("run_id", "str", "unique name of the run: at most 80 of [A-Za-z0-9._-], no leading dot", True),
    Column("sweep", "str", "name of the sweep or run file", True),
    Column("testbed", "str", "model and task, as the claims table names them", True),
    Column("model", "str", "name of the start checkpoint", True),
    Column("task", "str", "name of the task", True),
    Column("device", "str", "accelerator or processor, as its driver names it", True),
    Column("status", "str", "finished, killed or failed", True),
    Column("collapsed", "bool", "collapse confirmed by the rule of twoclocks.failure when the sweep was collected; null if it has no evaluations"),
    Column("seed", "int", "of data order, sampling and optimizer; the start checkpoint is the same for all", True),
    Column("batch", "int", "completions per optimizer update", True),
    Column("group", "int", "completions per prompt", True),
    Column("updates_per_rollout", "int", "optimizer updates per rollout", True),
    Column("lr", "float", "learning rate after warm-up", True),
    Column("drift_rate", "float", "lr / sqrt(batch)", True),
    Column("clip_low", "float", "ratio clipped below 1 - clip_low; null means no clip"),
    Column("clip_high", "float", "ratio clipped above 1 + clip_high; null means no clip"),
    Column("lr_warmup_samples", "int", "completions over which the lr rises linearly from 0", True),
    Column("samples", "int", "training completions planned", True),
    Column("samples_done", "int", "training completions trained", True),
    Column("start_acc", "float", "held-out greedy accuracy of the start checkpoint, fraction"),
    Column("heldout_problems", "int", "problems behind every held-out accuracy"),
    Column("max_grad_norm", "float", "gradient-norm clip threshold; null means none"),
    Column("dtype", "str", "parameter dtype during training", True),
    Column("seconds", "float", "wall clock of training, s"),
    Column("git_sha", "str", "commit of the code that ran", True),
    Column("versions", "str", "JSON: package versions", True),
    Column("config", "str", "JSON: the full run configuration", True),
    Column("created", "str", "UTC time the run started, ISO 8601", True),
)

CURVE_COLUMNS = (
    Column("run_id", "str", "of the run table", True, "last"),
    Column("attempt", "int", "0, then +1 for each resume", True, "last"),
    Column("update", "int", "optimizer updates done", True, "last"),
    Column("samples", "int", "training completions done", True, "last"),
    Column("samples_generated", "int", "completions generated", True, "last"),
    Column("rollout", "int", "rollouts done", True, "last"),
    Column("batch", "int", "completions in this update", True, "last"),
    Column("lr", "float", "learning rate of this update", False, "last"),
    Column("reward", "float", "mean training reward of the rollouts in the window", window="rollout"),
    Column("heldout_acc", "float", "held-out greedy accuracy at `samples`, fraction", False, "last"),
    Column("drift_abs", "float", "mean |log ratio| to the rollout policy on the update's tokens before its step, nats"),
    Column("drift_k3", "float", "mean k3 estimate of KL(rollout policy || policy) on the same tokens, nats"),
    Column("clip_frac_low", "float", "fraction of tokens clipped below"),
    Column("clip_frac_high", "float", "fraction of tokens clipped above"),
    Column("entropy", "float", "mean token entropy, nats"),
    Column("grad_norm", "float", "l2 norm before gradient clipping"),
    Column("grad_clipped", "float", "share of updates whose gradient norm was above max_grad_norm"),
    Column("update_norm", "float", "l2 norm of the parameter change of one update"),
    Column("length", "float", "mean completion length, tokens", window="rollout"),
    Column("zero_std_frac", "float", "fraction of groups whose rewards are all equal", window="rollout"),
    Column("probe_k3", "float", "k3 KL on fixed held-out completions, rollout policy to the policy after the update, nats"),
    Column("probe_gain", "float", "dot product of the update with a second-batch gradient of expected reward, reward per update"),
    Column("seconds", "float", "wall clock since training began, evaluations and probes left out (the pilot sweeps count probes), s", False, "last"),
)

TABLES = {"runs": RUN_COLUMNS, "curves": CURVE_COLUMNS}
_DTYPES = {"str": "string", "int": "int64", "float": "float32", "bool": "boolean"}
# lr spans many decades and enters ratios of a few percent; float32 is kept for measured curves only.
_EXACT = {"lr", "drift_rate", "seconds"}


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
        rows = self.curves[self.curves["run_id"] == run_id].sort_values("samples")
        values = rows[column].to_numpy(float)
        seen = ~np.isnan(values)
        if rules[column] == "last":
            return rows["samples"].to_numpy(float)[seen], values[seen], np.ones(seen.sum())
        # Units are numbered 1, 2, ...; unit k begins when (k - 1) * size completions are done
        counter = rows["rollout" if rules[column] == "rollout" else "update"].to_numpy(float)
        done = rows["samples_generated" if rules[column] == "rollout" else "samples"].to_numpy(float)
        size = done / np.maximum(counter, 1)
        before = np.concatenate([[0.0], counter[:-1]])
        middle = np.maximum(0.0, (before + counter - 1) / 2) * size
        return middle[seen], values[seen], (np.maximum(counter - before, 1) * size)[seen]


def validate(table: pd.DataFrame, which: str, where: str) -> pd.DataFrame:
    """Check a table against its schema and return it with the schema's columns, order and dtypes.

    Raises
    ------
    RecordsError
        Names the file, the row, the column, the rule and the remedy.
    """
    columns = TABLES[which]
    missing = [c.name for c in columns if c.name not in table.columns]
    if missing:
        raise RecordsError(f"{where}: missing column(s) {', '.join(missing)} of the {which} table; write it with twoclocks.records.write")
    if which == "runs":
        versions = set(table["schema_version"].dropna())
        if versions - {SCHEMA_VERSION}:
            raise RecordsError(
                f"{where}: schema_version {sorted(versions)}; this release reads version {SCHEMA_VERSION} "
                "(units differ between versions): convert the file with the release that wrote it"
            )
    for column in columns:
        _check_column(table[column.name], column, where)
    checked = pd.DataFrame({c.name: _cast(table[c.name], c, where) for c in columns})
    if which == "runs":
        _check_runs(checked, where)
    return checked


def _check_column(values: pd.Series, column: Column, where: str) -> None:
    bad = values.isna()
    if column.kind == "float":
        number = pd.to_numeric(values, errors="coerce")
        text, infinite = number.isna() & values.notna(), np.isinf(number.to_numpy(float, na_value=0.0))
        if text.any():
            raise RecordsError(f"{where}: row {_first(text)}, column {column.name}: {values[text].iloc[0]!r} is not a number ({column.unit})")
        if infinite.any():
            raise RecordsError(f"{where}: row {int(np.flatnonzero(infinite)[0])}, column {column.name}: infinite; an unmeasured value is null")
        bad = number.isna()
    if column.required and bad.any():
        raise RecordsError(
            f"{where}: row {_first(bad)}, column {column.name}: null or NaN in a required column ({column.unit}); fill in the measured value or drop the run"
        )


def _first(mask: pd.Series) -> int:
    return int(np.flatnonzero(mask.to_numpy())[0])


def _cast(values: pd.Series, column: Column, where: str) -> pd.Series:
    dtype = "float64" if column.name in _EXACT else _DTYPES[column.kind]
    if column.kind == "int" and not column.required:
        dtype = "Int64"
    try:
        if column.kind == "int" and (pd.to_numeric(values.dropna()) % 1 != 0).any():
            raise ValueError("a fraction in a whole-number column")
        return values.astype(dtype)
    except (TypeError, ValueError) as error:
        raise RecordsError(f"{where}: column {column.name} should be {column.kind} ({column.unit}): {error}") from error


def _check_runs(table: pd.DataFrame, where: str) -> None:
    for name in ("run_id", "sweep"):
        shape = table[name].astype(str).str.fullmatch(NAME)
        if not shape.all():
            raise RecordsError(f"{where}: row {_first(~shape)}: {name} {table[name][~shape].iloc[0]!r} must match {NAME}")
    twice = table["run_id"].duplicated()
    if twice.any():
        raise RecordsError(f"{where}: row {_first(twice)}: run_id {table['run_id'][twice].iloc[0]} appears twice; run ids are unique")
    status = table["status"].isin(STATUSES)
    if not status.all():
        raise RecordsError(f"{where}: row {_first(~status)}: status {table['status'][~status].iloc[0]!r} is not one of {', '.join(STATUSES)}")
    positive = (table[["batch", "group", "updates_per_rollout", "lr", "samples"]] > 0).all(axis=1)
    if not positive.all():
        raise RecordsError(f"{where}: row {_first(~positive)}: batch, group, updates_per_rollout, lr and samples must be positive")


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


def thin(curve: pd.DataFrame, rows: int = MAX_CURVE_ROWS) -> pd.DataFrame:
    """At most `rows` log-spaced rows of one run's curve.

    Each row stands for the updates since the row before: rates are averaged over that window (nulls left out),
    counters and evaluations take their last value. A window ends at every evaluation, so none is lost or averaged.

    Raises
    ------
    RecordsError
        If the run has more evaluations than `rows`.
    """
    curve = curve.reset_index(drop=True)
    ends = set(np.flatnonzero(curve["heldout_acc"].notna().to_numpy()))
    if len(ends) > rows:
        raise RecordsError(f"run {curve['run_id'].iloc[0]}: {len(ends)} evaluations do not fit in {rows} rows; evaluate on a coarser grid")
    want, count = max(2, rows - len(ends)), len(curve)
    spaced = np.unique(np.geomspace(1, count, want).round().astype(int) - 1)
    window = np.searchsorted(np.sort(list(ends | set(spaced) | {count - 1})), np.arange(count))
    how = {c.name: c.window for c in CURVE_COLUMNS}
    groups = curve.groupby(window)
    return pd.DataFrame({name: groups[name].nth(-1).to_numpy() if rule == "last" else groups[name].mean() for name, rule in how.items()})


def schema_markdown() -> str:
    """SCHEMA.md of a records folder: every column with its kind, whether it may be null, and its unit."""
    lines = [f"# Records, schema version {SCHEMA_VERSION}", "", "Generated from `twoclocks.records`; licence CC-BY-4.0. Unmeasured values are null."]
    for which, columns in TABLES.items():
        title = "`runs.parquet`: one row a run" if which == "runs" else "`curves/<sweep>.parquet`: at most 200 log-spaced rows a run"
        lines += ["", f"## {title}", "", "| column | kind | null | meaning and unit |", "|---|---|---|---|"]
        lines += [f"| {c.name} | {c.kind} | {'no' if c.required else 'yes'} | {c.unit.replace('|', chr(92) + '|')} |" for c in columns]
    lines += ["", "A curve row stands for the updates since the row before it: rates are means over them, counters and evaluations are the last value."]
    return "\n".join(lines) + "\n"
