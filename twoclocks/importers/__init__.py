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
from twoclocks.importers import live, mlflow, table, tensorboard, trackio, trl, verl, verl_rollouts, wandb, wandb_offline
from twoclocks.importers.log import Log, number
from twoclocks.importers.stores import DIALECTS
from twoclocks.records import MAX_CURVE_ROWS, Runs, thin
from twoclocks.records import read as read_records
from twoclocks.schema import CURVE_COLUMNS, RUN_COLUMNS, SCHEMA_VERSION, validate

SOURCES: dict[str, Any] = {
    "twoclocks": live,
    "trl": trl,
    "verl": verl,
    "verl-rollouts": verl_rollouts,
    "tensorboard": tensorboard,
    "trackio": trackio,
    "mlflow": mlflow,
    "wandb": wandb,
    "wandb-offline": wandb_offline,
    "table": table,
}
TRAINERS = {dialect.name for dialect in DIALECTS} - set(SOURCES)  # whose keys are recognised in any store
GIVEN = ("completions", "prompts", "group", "updates_per_rollout", "lr", "clip_low", "clip_high", "lr_warmup_samples", "seed", "testbed", "model", "task")
MOST_SAMPLES = 1e15
WHOLE = {"completions": 1, "prompts": 1, "group": 1, "updates_per_rollout": 1, "lr_warmup_samples": 0, "seed": 0}  # name -> least


def read_runs(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    source: str = "auto",
    settings: Mapping[str, Any] | pd.DataFrame | str | os.PathLike[str] | None = None,
    columns: dict[str, str] | None = None,
) -> Runs:
    """Runs from logs on disk: of TRL, verl, OpenRLHF, open-instruct, NeMo-RL and prime-rl, in whichever store they are kept.

    Stores are trainer_state.json, verl's jsonl and rollout dumps, TensorBoard, trackio, MLflow, W&B exports and offline runs,
    tables with a column mapping, and records. Histories that begin another are the same run at an earlier checkpoint: the
    longest is kept. A step that goes back begins a resumed segment, which replaces what it repeats. Runs of more than 200
    rows are thinned to 200 log-spaced ones. Each of these is said in the run's notes.

    Parameters
    ----------
    paths : path or paths
        Files, folders (searched for logs; tables in them that are no trainer's are left out) or glob patterns.
    source : str
        "auto", a store ("trl", "verl-rollouts", "tensorboard", "trackio", "mlflow", "wandb", "wandb-offline", "table"), or a trainer whose
        keys the logs must hold ("verl", "openrlhf", "open-instruct", "nemo-rl", "prime-rl").
    settings : mapping, DataFrame or file, optional
        What the logs do not say: group (completions per prompt), completions or prompts per optimizer update, and lr,
        updates_per_rollout (default 1 where a step is an update), clip_low, clip_high (default: no clip), lr_warmup_samples
        (default 0), seed, testbed, model, task. A mapping holds for every run; a table has a row a run, named in its column `run`.
    columns : dict, optional
        Canonical name -> column, for tables that are no trainer's.

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
    if source not in ("auto", *SOURCES, *TRAINERS):
        raise RecordsError(f"source={source!r}: no such format; choose auto or one of {', '.join([*SOURCES, *sorted(TRAINERS)])}")
    logs, skipped = _logs(files, source, columns)
    if not logs:
        why = f"; left out: {skipped[0]}" if skipped else "; expected trainer_state.json, verl jsonl, event files, trackio, MLflow, W&B or tables"
        raise RecordsError(f"{', '.join(map(str, files[:3]))}: no log found{why}")
    if source in (*TRAINERS, "verl") and any(log.source != source for log in logs):
        other = next(log for log in logs if log.source != source)
        raise RecordsError(f"{other.where}: run {other.name!r} holds the keys of {other.source}, not of {source}; leave source out")
    given = _given(settings)
    parts = [_assemble(log, given(log), number) for number, log in enumerate(_longest(logs))]
    runs = validate(pd.DataFrame([row for row, _ in parts], columns=[c.name for c in RUN_COLUMNS]), "runs", "imported runs")
    return Runs(runs, validate(pd.concat([curve for _, curve in parts], ignore_index=True), "curves", "imported curves"))


def _files(paths: Any) -> list[Path]:
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found: list[Path] = []
    for path in several:
        text = os.fspath(path)
        literal = Path(text).exists() or not glob.has_magic(text)  # a run's folder may be called run[1]
        here = [Path(text)] if literal else [Path(p) for p in sorted(glob.glob(text))]
        if not here or not all(p.exists() for p in here):
            raise RecordsError(f"{text}: no such file or folder")
        found += here
    return found


def _logs(files: list[Path], source: str, columns: dict[str, str] | None) -> tuple[list[Log], list[str]]:
    """(logs, why files of a searched folder were left out)."""
    logs: list[Log] = []
    skipped: list[str] = []
    for file in files:
        if not file.is_dir():
            logs += _read(file, source, columns)
            continue
        for inside in sorted(p for p in file.rglob("*") if p.is_file()):
            module = _module(inside, source, columns)
            if module is None:
                continue
            try:
                logs += _read(inside, source, columns)
            except RecordsError as error:
                if module is not table or columns is not None:
                    raise
                skipped.append(str(error))  # a folder holds other tables too: completions, settings
    return logs, skipped


def _module(path: Path, source: str, columns: dict[str, str] | None) -> Any:
    """The importer of a file, or None."""
    if columns is not None:
        return table if table.matches(path) else None
    wanted = {source: SOURCES[source]} if source in SOURCES and source != "verl" else SOURCES  # verl's keys live in any store
    return next((module for module in wanted.values() if module.matches(path)), None)


def _read(path: Path, source: str, columns: dict[str, str] | None) -> list[Log]:
    if columns is not None:
        return table.read(path, columns)
    named = SOURCES.get(source)
    elsewhere = named is verl and not verl.matches(path)  # its keys, in another store than its own jsonl
    module = _module(path, "auto", None) if named is None or elsewhere else named
    if module is None:
        raise RecordsError(f"{path}: no known log format; name it with source=, or map its columns with columns=")
    found: list[Log] = module.read(path)
    return found


def _longest(logs: list[Log]) -> list[Log]:
    """Of histories that begin alike only the longest: checkpoints of one run."""
    kept: list[Log] = []
    alike: dict[Any, list[Log]] = {}
    for log in sorted(logs, key=lambda g: -len(g.rows)):
        first = log.rows.iloc[0] if len(log.rows) else {}
        bucket = alike.setdefault((log.source, *(str(first.get(name)) for name in ("step", "reward", "lr"))), [])
        whole = next((other for other in bucket if _is_prefix(log.rows, other.rows)), None)
        if whole is None:
            bucket.append(log)
            kept.append(log)
        else:
            whole.notes.append(f"{log.where}: the beginning of the same run, left out")
    return sorted(kept, key=lambda g: (g.where, g.name))


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
        raise RecordsError(f"{where}: unknown field(s) {', '.join(sorted(map(str, unknown)))}; known are {', '.join(GIVEN)}")
    for name, value in row.items():
        if name in WHOLE:
            found = number(value)
            if not (found >= WHOLE[name] and found % 1 == 0):
                raise RecordsError(f"{where}: {name}={value!r} is not a whole number of at least {WHOLE[name]}")
            row[name] = int(found)
        elif name in ("lr", "clip_low", "clip_high"):
            found = number(value)
            if not (found > 0 or (found == 0 and name != "lr")):
                raise RecordsError(f"{where}: {name}={value!r} is not a positive number")
            row[name] = found
    return row


def _updates_per_rollout(log: Log, facts: dict[str, Any]) -> int:
    if "updates_per_rollout" in facts:
        return int(facts["updates_per_rollout"])
    if log.step == "rollout":
        raise RecordsError(
            f"{log.where}: run {log.name!r}: a step of {log.source} is a rollout, and how many optimizer updates it takes is not in the log; "
            "pass settings={'updates_per_rollout': ...} (prompts per rollout / prompts per update * epochs)"
        )
    return 1


def _completions(log: Log, facts: dict[str, Any], updates: int) -> int:
    """Completions per optimizer update."""
    if "completions" in facts:
        return int(facts["completions"])
    if "prompts" in facts and "group" in facts:
        return int(facts["prompts"]) * int(facts["group"])
    a_step = float(facts["rollout"]) if "rollout" in facts else _step_size(log)
    size = a_step / (updates if log.step == "rollout" else 1)
    if size >= 1 and abs(size - round(size)) < 1e-3 * size:
        return round(size)
    raise RecordsError(
        f"{log.where}: run {log.name!r}: how many completions an optimizer update takes is not in the log; pass settings={{'completions': ...}}, "
        "or 'prompts' with 'group'"
    )


def _step_size(log: Log) -> float:
    """Completions per step, where the log counts samples and every step takes as many; else NaN."""
    if "samples" not in log.rows or log.step == "samples":
        return float("nan")
    rows = log.rows[["step", "samples"]].dropna()
    size = rows["samples"].diff().div(rows["step"].diff()).dropna()
    return float(size.median()) if len(size) and np.isclose(size, size.median(), rtol=1e-3).mean() > 0.5 else float("nan")


def _assemble(log: Log, given: dict[str, Any], index: int) -> tuple[dict[str, Any], pd.DataFrame]:
    facts = {**log.settings, **given}
    updates = _updates_per_rollout(log, facts)
    batch = _completions(log, facts, updates)
    if "group" not in facts:
        raise RecordsError(f"{log.where}: run {log.name!r}: completions per prompt are not in the log; pass settings={{'group': ...}}")
    rows = log.rows
    if rows.empty:
        raise RecordsError(f"{log.where}: run {log.name!r}: no row has a step; the log is empty or damaged")
    if "lr" not in facts:
        rates = rows["lr"].dropna() if "lr" in rows else pd.Series(dtype=float)
        if rates.empty or not rates.max() > 0:
            raise RecordsError(f"{log.where}: run {log.name!r}: no positive learning rate is logged; pass settings={{'lr': ...}}")
        facts["lr"] = float(rates.max())  # after the warm-up
    lr = number(facts["lr"])
    run_id = _run_id(log)
    curve = _curve(log, batch, updates, run_id)
    if not curve["samples"].max() > 0:
        raise RecordsError(f"{log.where}: run {log.name!r}: the log ends at step 0; there is nothing to import")
    if len(curve) > MAX_CURVE_ROWS:
        log.notes.append(f"{len(curve)} rows were thinned to at most {MAX_CURVE_ROWS} log-spaced ones")
        curve = thin(curve, keep_evaluations=False)
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


def _curve(log: Log, batch: int, updates: int, run_id: str) -> pd.DataFrame:
    """Curve rows of a log: only what it measured; the schema reads what is absent as not measured.

    Raises
    ------
    RecordsError
        If it counts more completions than a whole number can hold.
    """
    rows = log.rows
    if "samples" in rows and rows["samples"].notna().all():
        samples = rows["samples"].to_numpy(float)
        update = samples / batch
    else:
        steps = rows["step"].to_numpy(float)
        update = {"update": steps, "rollout": steps * updates, "samples": steps / batch}[log.step]
        samples = update * batch
    if not (np.abs(samples) < MOST_SAMPLES).all() or (samples < 0).any():
        raise RecordsError(f"{log.where}: run {log.name!r}: step {rows['step'].max():g} is no count of {log.step}s; the log is damaged")
    rollout = np.ceil(update / updates)
    curve = pd.DataFrame({c.name: rows[c.name].to_numpy() for c in CURVE_COLUMNS if c.name in rows and c.kind == "float"})
    return curve.assign(
        run_id=run_id,
        attempt=0,
        update=np.round(update).astype(int),
        samples=np.round(samples).astype(int),
        samples_generated=np.round(rollout * updates * batch).astype(int),
        rollout=rollout.astype(int),
        batch=batch,
    )


def _run_id(log: Log) -> str:
    """A name that is no path, and differs where file or run do."""
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", log.name).strip("-")[:60] or "run"
    return f"{slug}-{hashlib.sha256(f'{log.where}|{log.name}'.encode(errors='replace')).hexdigest()[:8]}"
