"""Run folders of our own experiments, live or closed: `run.json` and `curve.jsonl`; later attempts replace what they repeat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from twoclocks.errors import RecordsError
from twoclocks.importers.log import Log, numbers
from twoclocks.records import read_curve
from twoclocks.schema import CURVE_COLUMNS

SETTINGS = ("group", "updates_per_rollout", "lr", "clip_low", "clip_high", "lr_warmup_samples", "seed", "testbed", "model", "task")


def matches(path: Path) -> bool:
    """Whether a path is a curve beside its run's row."""
    return path.name == "curve.jsonl" and (path.parent / "run.json").is_file()


def read(path: Path) -> list[Log]:
    """The run of one folder.

    Raises
    ------
    RecordsError
        If the row or the curve is damaged, or the curve has no row yet.
    """
    try:
        row: dict[str, Any] = json.loads((path.parent / "run.json").read_text())
        settings = {name: row[name] for name in SETTINGS if row.get(name) is not None} | {"completions": row["batch"]}
        name = str(row["run_id"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordsError(f"{path.parent / 'run.json'}: not a readable run row ({error!r}); expected what experiments.train writes") from error
    try:
        curve = read_curve(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, RecordsError):
            raise
        raise RecordsError(f"{path}: not a readable curve ({error!r})") from error
    if curve.empty:
        raise RecordsError(f"{path}: no rows yet")
    measured = [c.name for c in CURVE_COLUMNS if c.kind == "float"]
    rows = curve[measured].apply(numbers).assign(step=numbers(curve["update"]), samples=numbers(curve["samples"]))
    return [Log(name, "twoclocks", str(path), "update", rows.dropna(subset=["step"]), settings=settings)]
