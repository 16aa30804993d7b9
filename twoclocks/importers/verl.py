"""verl's `file` logger: lines {"step": n, "data": {...}}; a step is a rollout, values are means over its mini-batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from twoclocks.errors import RecordsError
from twoclocks.importers.log import Log, one_row_a_step, renamed

NAMES = {
    "critic/score/mean": "reward",
    "critic/rewards/mean": "reward",
    "actor/lr": "lr",
    "actor/grad_norm": "grad_norm",
    "actor/ppo_kl": "drift_k1",
    "actor/pg_clipfrac": "clip_frac_high",
    "actor/pg_clipfrac_lower": "clip_frac_low",
    "actor/entropy": "entropy",
    "actor/entropy_loss": "entropy",  # an entropy named loss is an entropy
    "response_length/mean": "length",
    "timing_s/step": "step_seconds",
}


def matches(path: Path) -> bool:
    """Whether a path is a verl log: JSON lines whose first line has step and data."""
    if path.suffix != ".jsonl":
        return False
    try:
        with path.open() as file:
            first: Any = json.loads(file.readline())
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and set(first) == {"step", "data"} and isinstance(first["data"], dict)


def read(path: Path) -> list[Log]:
    """The run of one file.

    Raises
    ------
    RecordsError
        If a line other than the last is not {"step", "data"}.
    """
    rows: list[dict[str, Any]] = []
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            rows.append({"step": row["step"], **row["data"]})
        except (ValueError, KeyError, TypeError) as error:
            if number < len(lines):
                raise RecordsError(f"{path}: line {number} is no verl row ({error}); remove the damaged line") from error
    if not rows:
        raise RecordsError(f"{path}: no rows")
    table, notes = pd.DataFrame(rows), ["a run that verl resumed has lost the rows before: its file logger starts anew"]
    evaluations = sorted(str(c) for c in table.columns if str(c).startswith("val-core/") and "mean@" in str(c))
    names = NAMES | dict.fromkeys(evaluations[:1], "heldout_acc")
    if len(evaluations) > 1:
        notes.append(f"heldout_acc is {evaluations[0]}; also logged: {', '.join(evaluations[1:])}")
    found = renamed(table, names).assign(step=pd.to_numeric(table["step"], errors="coerce"))
    rows_by_step = one_row_a_step(found, notes)
    if "step_seconds" in rows_by_step:
        rows_by_step["seconds"] = rows_by_step.pop("step_seconds").fillna(0).cumsum()
    rows_by_step = rows_by_step.drop(columns="drift_k1", errors="ignore")
    aggregation = {name: "mean over mini-batches of the rollout" for name in ("grad_norm", "clip_frac_high", "clip_frac_low", "entropy", "lr")}
    return [Log(path.stem, "verl", str(path), "rollout", rows_by_step, aggregation=aggregation, notes=notes)]
