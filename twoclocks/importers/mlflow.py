"""MLflow's file store: a folder a run with `metrics/<key>` files of "timestamp value step" and `params/<key>`; a step is an update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from twoclocks.errors import RecordsError
from twoclocks.importers.log import Log, joined, number, renamed
from twoclocks.importers.trl import NAMES

# transformers replaces what MLflow does not allow in a key; slashes stay and become folders
_PARAMS = {"num_generations": "group", "learning_rate": "lr"}


def matches(path: Path) -> bool:
    """Whether a path is a run's meta.yaml beside its metrics."""
    return path.name == "meta.yaml" and (path.parent / "metrics").is_dir()


def read(path: Path) -> list[Log]:
    """The run of one folder; group and learning rate come from its parameters.

    Raises
    ------
    RecordsError
        If a metric line is not "timestamp value step", or there is no metric.
    """
    folder, parts = path.parent, []
    for file in sorted(p for p in (folder / "metrics").rglob("*") if p.is_file()):
        key = file.relative_to(folder / "metrics").as_posix()
        lines = [line.split() for line in file.read_text(errors="replace").splitlines()]
        short = next((at for at, line in enumerate(lines, start=1) if len(line) < 3), None)
        if short is not None:
            raise RecordsError(f"{file}: line {short} is not 'timestamp value step'; remove the damaged line")
        if key in NAMES and lines:
            parts.append(pd.DataFrame([(number(t), number(v), number(k)) for t, v, k, *_ in lines], columns=["seconds", key, "step"]))
    if not parts:
        raise RecordsError(f"{folder}: no metrics of a trainer (reward, learning_rate ...)")
    notes: list[str] = []
    table = joined(parts, notes)
    rows = renamed(table, NAMES).assign(step=table["step"], seconds=(table["seconds"] - table["seconds"].min()) / 1000)
    settings: dict[str, Any] = {}
    for name, field in _PARAMS.items():
        stored = folder / "params" / name
        if stored.is_file() and (value := number(stored.read_text().strip())) == value:
            settings[field] = int(value) if field == "group" else value
    tag = folder / "tags" / "mlflow.runName"
    run = tag.read_text().strip() if tag.is_file() else folder.name
    return [Log(run, "mlflow", str(folder), "update", rows, settings, notes=notes)]
