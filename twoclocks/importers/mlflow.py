"""MLflow's file store: a folder a run with `metrics/<key>` files of "timestamp value step" and `params/<key>`.

transformers logs bare keys there, at its update; the other trainers log the keys they use everywhere.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from twoclocks.errors import RecordsError
from twoclocks.importers import stores, trl
from twoclocks.importers.dialects import recognised
from twoclocks.importers.log import Log, joined, number

_PARAMS = {"num_generations": "group", "learning_rate": "lr"}
DIALECTS = (trl.BARE, *stores.DIALECTS)


def matches(path: Path) -> bool:
    """Whether a path is a run's meta.yaml beside its metrics."""
    return path.name == "meta.yaml" and (path.parent / "metrics").is_dir()


def read(path: Path) -> list[Log]:
    """The run of one folder; group and learning rate come from its parameters.

    Raises
    ------
    RecordsError
        If a metric line is not "timestamp value step", or there is no metric of a trainer.
    """
    folder, parts = path.parent, []
    for file in sorted(p for p in (folder / "metrics").rglob("*") if p.is_file()):
        key = file.relative_to(folder / "metrics").as_posix()
        if not any(dialect.knows(key) for dialect in DIALECTS):
            continue
        lines = [line.split() for line in file.read_text(errors="replace").splitlines()]
        short = next((at for at, line in enumerate(lines, start=1) if len(line) < 3), None)
        if short is not None:
            raise RecordsError(f"{file}: line {short} is not 'timestamp value step'; remove the damaged line")
        if lines:
            parts.append(pd.DataFrame([(number(t), number(v), number(k)) for t, v, k, *_ in lines], columns=["seconds", key, "step"]))
    if not parts:
        raise RecordsError(f"{folder}: no metrics of a trainer (reward, learning_rate, critic/score/mean ...)")
    notes: list[str] = []
    table = joined(parts, notes)
    if table.empty:
        raise RecordsError(f"{folder}: no metric has a step; the files are damaged")
    seconds = table.pop("seconds")
    table["_runtime"] = (seconds - seconds.min()) / 1000
    dialect = recognised(DIALECTS, [str(c) for c in table.columns])
    tag = folder / "tags" / "mlflow.runName"
    run = tag.read_text(errors="replace").strip() if tag.is_file() else folder.name
    log = dialect.log(table, name=run, source="mlflow", where=str(folder), notes=notes, store_step="step") if dialect else None
    if log is None:
        raise RecordsError(f"{folder}: metrics {', '.join(map(str, table.columns[1:6]))} are no one trainer's")
    for name, field in _PARAMS.items():
        stored = folder / "params" / name
        if stored.is_file() and (value := number(stored.read_text(errors="replace").strip())) == value:
            log.settings[field] = int(value) if field == "group" else value
    return [log]
