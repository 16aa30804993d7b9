"""Logs of any trainer as records: `read_runs` detects the format, asks for what a log does not hold, and says what it repaired."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from twoclocks.errors import RecordsError
from twoclocks.importers import mlflow, table, tensorboard, trackio, trl, verl
from twoclocks.importers.log import Log, number
from twoclocks.records import Runs
from twoclocks.records import read as read_records
from twoclocks.schema import CURVE_COLUMNS, RUN_COLUMNS, SCHEMA_VERSION, validate

SOURCES = {"trl": trl, "verl": verl, "tensorboard": tensorboard, "trackio": trackio, "mlflow": mlflow, "table": table}
GIVEN = ("completions", "prompts", "group", "updates_per_rollout", "lr", "clip_low", "clip_high", "lr_warmup_samples", "seed", "testbed", "model", "task")


def read_runs(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    source: str = "auto",
    settings: Mapping[str, Any] | pd.DataFrame | str | os.PathLike[str] | None = None,
    columns: dict[str, str] | None = None,
) -> Runs:
    """Runs from logs on disk: TRL trainer states, verl's jsonl, TensorBoard, trackio, MLflow, W&B exports, mapped tables, or records.

    Parameters
    ----------
    paths : path or paths
        Files, folders (searched for logs) or glob patterns.
    source : str
        "auto", "trl", "verl", "tensorboard", "trackio", "mlflow" or "table" (W&B exports among them).
    settings : mapping, DataFrame or file, optional
        What the logs do not say: group (completions per prompt), completions or prompts per optimizer update, and lr,
        updates_per_rollout (default 1), clip_low, clip_high (default: no clip), lr_warmup_samples (default 0), seed, testbed, model,
        task. A mapping holds for every
        run; a table has a row a run, named in its column `run`.
    columns : dict, optional
        Canonical name -> column, for tables that are no W&B export.

    Returns
    -------
    Runs
        `runs.runs["config"]` keeps each run's source, file, aggregation and repairs as JSON.

    Raises
    ------
    RecordsError
        If nothing is found, a file is damaged, or a step's size is neither in the log nor given.
    """
    files = _files(paths)
    if len(files) == 1 and (files[0] / "runs.parquet").is_file():
        return read_records(files[0])
    if source not in ("auto", *SOURCES):
        raise RecordsError(f"source={source!r}: no such format; choose auto or one of {', '.join(SOURCES)}")
    logs = [log for file in files for log in _read(file, source, columns)]
    if not logs:
        raise RecordsError(f"{', '.join(map(str, files[:3]))}: no log found; expected trainer_state.json, verl jsonl, event files, trackio, MLflow, or tables")
    given = _given(settings)
    rows: list[dict[str, Any]] = []
    curves: list[pd.DataFrame] = []
    for log in _longest(logs):
        row, curve = _assemble(log, given(log), len(rows))
        rows.append(row)
        curves.append(curve)
    runs = validate(pd.DataFrame(rows, columns=[c.name for c in RUN_COLUMNS]), "runs", "imported runs")
    return Runs(runs, validate(pd.concat(curves, ignore_index=True), "curves", "imported curves"))


def _files(paths: Any) -> list[Path]:
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found: list[Path] = []
    for path in several:
        text = os.fspath(path)
        here = [Path(p) for p in sorted(glob.glob(text))] if glob.has_magic(text) else [Path(text)]
        if not here or not all(p.exists() for p in here):
            raise RecordsError(f"{text}: no such file or folder")
        found += here
    return found


def _read(path: Path, source: str, columns: dict[str, str] | None) -> list[Log]:
    if path.is_dir():
        inside = [p for p in sorted(path.rglob("*")) if p.is_file() and any(s.matches(p) for s in SOURCES.values())]
        # Every checkpoint holds the whole history so far: the prefixes are dropped later
        return [log for p in inside for log in _read(p, source, columns)]
    for name, module in SOURCES.items():
        if source == name or (source == "auto" and columns is None and module.matches(path)) or (columns is not None and name == "table"):
            return table.read(path, columns) if module is table else module.read(path)
    raise RecordsError(f"{path}: no known log format; name it with source=, or map its columns with columns=")


def _longest(logs: list[Log]) -> list[Log]:
    """Of histories that begin alike only the longest: checkpoints of one run."""
    kept: list[Log] = []
    for log in sorted(logs, key=lambda g: -len(g.rows)):
        whole = next((other for other in kept if other.source == log.source and _is_prefix(log.rows, other.rows)), None)
        if whole is None:
            kept.append(log)
        else:
            whole.notes.append(f"{log.where}: the beginning of the same run, left out")
    return sorted(kept, key=lambda g: g.where)


def _is_prefix(short: pd.DataFrame, long: pd.DataFrame) -> bool:
    if list(short.columns) != [c for c in long.columns if c in short.columns]:
        return False
    head = long[short.columns].iloc[: len(short)].reset_index(drop=True)
    return bool(np.allclose(short.to_numpy(float), head.to_numpy(float), rtol=1e-9, atol=0.0, equal_nan=True))


def _given(settings: Any) -> Any:
    """A function from a log to what was given about it."""
    if settings is None or isinstance(settings, Mapping):
        return lambda log: _known(dict(settings or {}), "settings")
    named = settings if isinstance(settings, pd.DataFrame) else table.load(Path(settings))
    if "run" not in named.columns:
        raise RecordsError(f"settings: a table needs a column `run` with the runs' names; it has {', '.join(map(str, named.columns))}")
    rows = {str(row.pop("run")): {k: v for k, v in row.items() if not pd.isna(v)} for row in named.to_dict("records")}

    def found(log: Log) -> dict[str, Any]:
        if log.name not in rows:
            raise RecordsError(f"settings: no row for run {log.name!r} ({log.where}); it has {', '.join(rows)}")
        return _known(rows[log.name], f"settings, run {log.name}")

    return found


def _known(row: dict[str, Any], where: str) -> dict[str, Any]:
    if "batch" in row:
        raise RecordsError(f"{where}: batch= is prompts in some trainers and completions in others; say completions= or prompts= with group=")
    unknown = set(row) - set(GIVEN)
    if unknown:
        raise RecordsError(f"{where}: unknown field(s) {', '.join(sorted(unknown))}; known are {', '.join(GIVEN)}")
    return row


def _completions(log: Log, facts: dict[str, Any]) -> int:
    """Completions per optimizer update."""
    if "completions" in facts:
        return int(facts["completions"])
    if "prompts" in facts and "group" in facts:
        return int(facts["prompts"]) * int(facts["group"])
    if "samples" in log.rows and log.step == "update":
        size = log.rows["samples"].diff().div(log.rows["step"].diff()).dropna()
        if len(size) and size.iloc[0] >= 1:
            return round(float(size.iloc[0]))
    raise RecordsError(
        f"{log.where}: run {log.name!r}: how many completions an optimizer update takes is not in the log; pass settings={{'completions': ...}}, "
        "or 'prompts' with 'group'"
    )


def _assemble(log: Log, given: dict[str, Any], index: int) -> tuple[dict[str, Any], pd.DataFrame]:
    facts = {**log.settings, **given}
    batch, updates = _completions(log, facts), int(facts.get("updates_per_rollout", 1))
    if "group" not in facts:
        raise RecordsError(f"{log.where}: run {log.name!r}: completions per prompt are not in the log; pass settings={{'group': ...}}")
    rows = log.rows
    if rows.empty:
        raise RecordsError(f"{log.where}: run {log.name!r}: no row has a step; the log is empty or damaged")
    if "lr" not in facts:
        rates = rows["lr"].dropna() if "lr" in rows else pd.Series(dtype=float)
        if rates.empty:
            raise RecordsError(f"{log.where}: run {log.name!r}: no learning rate is logged; pass settings={{'lr': ...}}")
        facts["lr"] = float(rates.max())  # after the warm-up
    lr = number(facts["lr"])
    if "samples" in rows and rows["samples"].notna().all():
        samples = rows["samples"].to_numpy(float)
        update = samples / batch
    else:
        steps = rows["step"].to_numpy(float)
        update = {"update": steps, "rollout": steps * updates, "samples": steps / batch}[log.step]
        samples = update * batch
    rollout = np.ceil(update / updates)
    run_id = _run_id(log)
    curve = pd.DataFrame({c.name: rows[c.name].to_numpy() if c.name in rows and c.kind == "float" else None for c in CURVE_COLUMNS}, index=rows.index)
    curve = curve.assign(
        run_id=run_id,
        attempt=0,
        update=np.round(update).astype(int),
        samples=np.round(samples).astype(int),
        samples_generated=np.round(rollout * updates * batch).astype(int),
        rollout=rollout.astype(int),
        batch=batch,
    )
    kept = {"source": log.source, "where": log.where, "run": log.name, "aggregation": log.aggregation, "notes": log.notes}
    row = {c.name: None for c in RUN_COLUMNS} | {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        "sweep": "imported",
        "testbed": str(facts.get("testbed", "imported")),
        "model": str(facts.get("model", "unknown")),
        "task": str(facts.get("task", "unknown")),
        "device": "unknown",
        "status": "finished",
        "seed": int(facts.get("seed", index)),
        "batch": batch,
        "group": int(facts["group"]),
        "updates_per_rollout": updates,
        "lr": lr,
        "drift_rate": lr / batch**0.5,
        "clip_low": facts.get("clip_low"),
        "clip_high": facts.get("clip_high", facts.get("clip_low")),
        "lr_warmup_samples": int(facts.get("lr_warmup_samples", 0)),
        "samples": int(curve["samples"].max()),
        "samples_done": int(curve["samples"].max()),
        "dtype": "unknown",
        "seconds": float(rows["seconds"].max()) if "seconds" in rows and rows["seconds"].notna().any() else None,
        "git_sha": "unknown",
        "versions": "{}",
        "config": json.dumps(kept, sort_keys=True),
        "created": "unknown",
    }
    return row, curve


def _run_id(log: Log) -> str:
    """A name that is no path, and differs where file or run do."""
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", log.name).strip("-")[:60] or "run"
    return f"{slug}-{hashlib.sha256(f'{log.where}|{log.name}'.encode()).hexdigest()[:8]}"
